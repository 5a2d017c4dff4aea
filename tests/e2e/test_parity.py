"""The parity table as tests, and selections over HTTP, of every kind of checkpoint.

The routes run in this process for each checkpoint, and in a server process for four of them. The prompts and the
selections are different in every run; the seed is printed when a test fails.
"""

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import full_name, points_of, sizes, stack_config, stacks, why_absent
from lightwell.model.hooks.points import Point, Stack
from tests import parity, parity_numbers
from tests.e2e.checkpoints import folder_of, server_arguments
from tests.server.running import ROOT
from tests.support.shared import shared_server

IN_A_SERVER = "server of "
"""Prefix of the parameters that a server process serves."""
SERVED = [
    IN_A_SERVER + name if name in ("llama-gqa", "bart") else pytest.param(IN_A_SERVER + name, marks=pytest.mark.nightly)
    for name in parity.SERVED
]


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    asked: parity.OverHttp
    seed: int

    @property
    def config(self) -> ModelConfig:
        return self.asked.config


@pytest.fixture(scope="module", params=[*parity.ROWS, *SERVED])
def checkpoint(request: pytest.FixtureRequest) -> Iterator[Checkpoint]:
    seed = secrets.randbits(32)
    print(f"drawn from seed {seed}")  # shown when a test fails
    folder = folder_of(request.param.removeprefix(IN_A_SERVER))
    with (in_a_server if request.param.startswith(IN_A_SERVER) else parity.in_this_process)(folder) as asked:
        yield Checkpoint(folder, asked, seed)


@contextmanager
def in_a_server(folder: Path) -> Iterator[parity.OverHttp]:
    with httpx.Client(base_url=shared_server(*server_arguments(folder)).url, timeout=120) as http:
        yield parity.OverHttp(http.post, read_config(folder))


@pytest.mark.parametrize("name", parity.ROWS)
def test_float64_in_process_is_within_its_bounds(name: str) -> None:
    errors = parity.errors_in_process(folder_of(name), secrets.randbits(32))
    assert parity.over_bound("float64", errors) == []


def test_float32_over_http_is_within_its_bounds(checkpoint: Checkpoint) -> None:
    errors = parity.errors_over_http(checkpoint.asked, checkpoint.folder, checkpoint.seed)
    assert set(errors) == set(parity.QUANTITIES) - (set() if checkpoint.config.has_head else {"logits"})
    assert parity.over_bound("float32", errors) == []


def test_a_selection_is_a_slice_of_the_whole_bit_for_bit(checkpoint: Checkpoint) -> None:
    config, rng = checkpoint.config, random.Random(checkpoint.seed)
    (prompt, *_) = parity_numbers.draw_prompts(config, checkpoint.seed)
    asked: dict[str, Any] = {"input": prompt.ids}
    if config.encoder is not None:
        asked = {"input": prompt.encoder_ids, "decoder_input": prompt.ids}
    for stack in stacks(config):
        for point in rng.sample(points_of(config, stack), 5):
            layer = _a_layer(config, stack, point, rng)
            name = full_name(config, stack, point.name, layer)
            length = len(asked["input"]) if stack == stacks(config)[0] else len(prompt.ids)
            shape = sizes(config, stack, point, length, len(prompt.encoder_ids), layer)
            whole = checkpoint.asked.ask("/v1/trace", {**asked, "points": [name]})[name]
            assert whole.shape == shape, name
            chosen, expected = _drawn(point, whole, rng)
            part = checkpoint.asked.ask("/v1/trace", {**asked, "points": [name], **chosen})[name]
            assert torch.equal(part, expected), (name, chosen)


def test_rows_of_generated_tokens_are_those_of_the_exact_pass(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    if config.kind == "encoder":
        return  # an encoder generates no text
    (prompt, *_) = parity_numbers.draw_prompts(config, checkpoint.seed)
    body = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True, "attention": {}}
    body["prompt"] = prompt.encoder_ids or prompt.ids
    choice = checkpoint.asked.post("/v1/completions", json=body).json()["choices"][0]
    rows, generated = torch.tensor(choice["attention"]["attention"]), choice["token_ids"]
    if config.encoder is None:
        asked, first = {"input": prompt.ids + generated[:-1]}, len(prompt.ids) - 1
    else:
        asked, first = (
            {"input": prompt.encoder_ids, "decoder_input": [config.decoder_start_token_id, *generated[:-1]]},
            0,
        )
    exact = checkpoint.asked.ask("/v1/attention", asked)["attention.0"]
    assert torch.equal(rows, exact[:, :, first:, :])


def _a_layer(config: ModelConfig, stack: Stack, point: Point, rng: random.Random) -> int | None:
    if not point.in_block:
        return None
    layers = range(stack_config(config, stack).num_layers)
    return rng.choice([layer for layer in layers if why_absent(config, stack, point, layer) is None])


def _drawn(point: Point, whole: torch.Tensor, rng: random.Random) -> tuple[dict[str, list[int]], torch.Tensor]:
    """Return indices of each axis that can be selected, in any order, some counted from the end; and the expected
    selection.
    """
    fields = {
        "position": "positions",
        "query": "positions",
        "key": "key_positions",
        "head": "heads",
        "kv_head": "heads",
    }
    chosen: dict[str, list[int]] = {}
    for axis, name in enumerate(point.axes):
        if name not in fields:
            continue
        length = whole.shape[axis]
        indices = rng.sample(range(length), rng.randint(1, min(length, 6)))
        whole = whole.index_select(axis, torch.tensor(indices))
        chosen[fields[name]] = [index - length if rng.random() < 0.3 else index for index in indices]
    return chosen, whole


def test_the_page_has_every_checkpoint_within_its_bounds() -> None:
    text = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    http, process = text.split("## float64, in process")
    for precision, part in (("float32", http), ("float64", process)):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "e-" in line]
        written = {name: cells for name, *cells in rows if name in parity.ROWS}
        assert tuple(written) == parity.ROWS
        for name, cells in written.items():
            errors = {what: float(cell) for what, cell in zip(parity.QUANTITIES, cells, strict=True) if cell}
            assert parity.over_bound(precision, errors) == [], name
