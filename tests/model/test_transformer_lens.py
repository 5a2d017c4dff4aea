"""Every point that TransformerLens has too, against its numbers, under its names and ours.

The numbers are stored in tests/reference/transformer_lens.safetensors, since TransformerLens needs an environment of
its own. `make test-nightly` computes them again; `python -m tests.model.test_transformer_lens` saves them.
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.hooks.point_names import UnknownPoint, full_name, read_name
from lightwell.model.loading.loader import load_model
from tests import tiny
from tests.network import CPU, look_at_everything

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "reference" / "transformer_lens_numbers.py"
PYTHON = ROOT / ".tools" / "transformer-lens" / "bin" / "python"
KEPT = SCRIPT.with_name("transformer_lens.safetensors")

# LayerNorm and learned positions; RMSNorm, rotation and key heads; norms before and after, soft caps and windows; norms
# after, and of queries and keys.
VARIANTS = ("gpt2", "llama-gqa", "gemma2", "olmo2")
NOT_OURS = re.compile(
    r"(.*\.)?(hook_(cos|sin|hidden_states|[qk]_normed)|attn\.[qk]_norm\..*|(rotary_emb|ln[12]_post)\.hook_in)"
)
BEFORE_A_NORM = ["attn.hook_out", "mlp.hook_out", "mlp.out.hook_out"]
BEFORE_THE_CAP = ["hook_unembed", "unembed.hook_out"]


class Numbers:
    """The numbers of TransformerLens, by variant and by each of its names."""

    def __init__(self, file: Path) -> None:
        with safe_open(file, "pt") as kept:
            about = kept.metadata()
            tensors = {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118 (it is no dict)
        same = json.loads(about["same"])
        self.tokens: list[int] = json.loads(about["tokens"])
        self.by_name = {**tensors, **{name: tensors[first] for name, first in same.items()}}

    def of(self, variant: str) -> dict[str, torch.Tensor]:
        return {name.partition("/")[2]: x for name, x in self.by_name.items() if name.partition("/")[0] == variant}


def make_checkpoints(folder: Path) -> list[Path]:
    return [tiny.make_variant(name, folder / name) for name in VARIANTS]


def ask_transformer_lens(checkpoints: list[Path], file: Path) -> None:
    """Run TransformerLens on the checkpoints and write its numbers to the file. Raises CalledProcessError."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    command = [str(PYTHON), str(SCRIPT), *map(str, checkpoints), str(file)]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=file.parent, timeout=600)


def assert_near(name: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(
        found, expected, atol=tolerance, rtol=tolerance, msg=lambda message: f"{name}: {message}"
    )


@pytest.mark.every_family
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_shared_point_is_transformer_lens_s_under_both_of_its_names(variant: str, tmp_path: Path) -> None:
    kept = Numbers(KEPT)
    folder = tiny.make_variant(variant, tmp_path / variant)
    config = read_config(folder)
    ours = look_at_everything(load_model(folder, config, torch.float32, CPU), kept.tokens)
    found, unknown = set(), set()
    for name, expected in kept.of(variant).items():
        try:
            read = read_name(config, name)
        except UnknownPoint:
            unknown.add(name)
            continue
        full = full_name(config, read.stack, read.point.name, read.layer)
        seen = ours[full] > -torch.inf  # where TransformerLens writes the most negative number
        assert ours[full].shape == expected.shape, name
        assert (expected[~seen] == torch.finfo(torch.float32).min).all(), name
        assert_near(name, ours[full][seen], expected[seen], 1e-4)
        found.add(full)
    absent = BEFORE_A_NORM if config.norm_placement in ("sandwich", "output") else []
    absent = [*absent, *(BEFORE_THE_CAP if config.final_logit_softcap else [])]
    assert {name for name in unknown if not NOT_OURS.fullmatch(name) and not name.endswith(tuple(absent))} == set()
    last = f"blocks.{config.num_layers - 1}."
    shared = {name for name in ours if not name.startswith("blocks.") or name.startswith(("blocks.0.", last))}
    assert {name for name in shared - found if config.rope or "hook_rot_" not in name} == set()


@pytest.mark.tool
def test_the_numbers_kept_are_those_of_transformer_lens(tmp_path: Path) -> None:
    if not os.environ.get("TEST_TOOLS"):
        pytest.skip("TransformerLens is asked by `make test-nightly` (tests/tools/install.sh)")
    ask_transformer_lens(make_checkpoints(tmp_path), tmp_path / "found.safetensors")
    kept, found = Numbers(KEPT), Numbers(tmp_path / "found.safetensors")
    assert kept.by_name.keys() == found.by_name.keys()
    for name, expected in kept.by_name.items():
        assert_near(name, found.by_name[name], expected, 1e-5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        ask_transformer_lens(make_checkpoints(Path(made)), KEPT)
