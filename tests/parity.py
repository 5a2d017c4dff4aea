"""Measures how far every family's numbers are from transformers': `python -m tests.parity [--write FOLDER] [name ...]`.

It uses small random checkpoints (`tests.tiny`) and ordinary random tokens. It prints two tables in Markdown, family x
quantity. Each entry is the largest error over all layers, heads and positions of the prompts, relative to the largest
absolute value of its tensor; `--write docs` puts them into docs/parity.md. It ends with status 1 when an entry is over
its bound. No server process is started: HTTP requests go to the application in this process.

The text of the two tables describes the comparisons and their method.

It uses only the routes and the slow reference, not the engine's internals.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import ModelConfig
from lightwell.model.loading.loader import load_model
from tests import reference, tiny
from tests.network import CPU, FLOAT32_BOUND, look_at_everything
from tests.parity_numbers import Errors, Numbers, Prompt, draw_prompts
from tests.server.inline_engine import InlineEngine
from tests.server.serving import build_site

OVER_HTTP = """The answers of the HTTP routes are compared with transformers (eager attention) in float32. The routes
and the engine run in the process of the comparison. The test repeats the comparison of four checkpoints with a
separate server process.

transformers does not return attention scores. Lightwell's scores are therefore compared with the logarithm of the
pattern of transformers. Before the comparison, the mean over the visible keys of each row is subtracted from both."""
IN_PROCESS = """Each entry is the larger error of two comparisons in float64: Lightwell's network with the slow
reference (tests/reference), and the reference with transformers.

transformers rounds some values to float32 even in a float64 network: in norms, rotary tables and softmaxes. The
reference rounds the same values; without this, the results differ by 1e-5. The delta rules of transformers run
without their conversion to float32.

If the softmax of a family rounds to float32, the logarithm of its pattern has at most seven digits. The entry for
scores is then from the first comparison only."""
QUANTITIES = ("logits", "patterns", "scores", "hidden states", "embeddings")
BOUNDS = {"float32": dict.fromkeys(QUANTITIES, FLOAT32_BOUND), "float64": dict.fromkeys(QUANTITIES, 1e-10)}
ROWS = (
    "llama", "llama-gqa", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_5", "gpt_oss", "smollm3",
    "granite", "granite4", "lfm2", "gemma2", "gemma3", "gemma4", "gemma4-e2b", "gemma4-experts", "gemma3n", "phi3",
    "olmo2", "olmo3", "gpt2", "gpt_neox", "gpt_neox-sequential", "opt", "opt-post", "bert", "roberta", "distilbert",
    "mpnet", "modernbert", "embedding_gemma", "jina_bert", "jina_embeddings_v3", "t5", "t5-gated-untied", "bart",
    "marian",
)  # fmt: skip
"""Names of tests.tiny.VARIANTS that are measured."""
SERVED = ("llama-gqa", "gemma3", "bert", "bart")
"""Those that tests/e2e/test_parity.py also measures with a server process."""
SMALL_STEPS = {"max_num_seqs": 8, "max_num_batched_tokens": 16}
"""Settings with which prompts are read in chunks; an encoder reads its input whole."""


class Theirs:
    """The numbers of transformers, eager."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.config = read_config(folder)
        self.network = tiny.theirs(folder, dtype)

    def numbers(self, prompt: Prompt) -> Numbers:
        given: dict[str, Any] = {"output_attentions": True, "output_hidden_states": True}
        inputs = {"input_ids": torch.tensor([prompt.ids])}
        if self.config.encoder is not None:
            inputs = {"input_ids": torch.tensor([prompt.encoder_ids]), "decoder_input_ids": torch.tensor([prompt.ids])}
        with torch.no_grad():
            seen = self.network(**inputs, **given)
        if self.config.encoder is not None:
            attentions = (*seen.encoder_attentions, *seen.decoder_attentions, *seen.cross_attentions)
            hidden = (*seen.encoder_hidden_states, *seen.decoder_hidden_states)
            last = seen.encoder_last_hidden_state
        else:
            attentions, hidden = seen.attentions, seen.hidden_states
            last = hidden[-1]
        patterns = [layer[0] for layer in attentions]
        if self.config.altup is not None:  # ours is the first of several streams; theirs lacks a final one
            with torch.no_grad():
                last = self.network.model(**inputs).last_hidden_state
            hidden = (*(state[0] for state in hidden[:-1]), last)
        if self.config.embedding_size is not None:
            # The last is projected to the token table's width; our last hidden state is the one before it.
            hidden = hidden[:-1]
            last = hidden[-1]
        return Numbers(
            patterns=patterns,
            scores=[pattern.log() for pattern in patterns],
            hidden=[state[0] for state in hidden],
            embedding=last[0].mean(0),
            logits=seen.logits[0] if self.config.has_head else None,
        )


def from_points(config: ModelConfig, points: Mapping[str, torch.Tensor]) -> Numbers:
    """Return the numbers of all points by full name, from the network or from the reference."""

    def each(stack: ModelConfig, prefix: str, point: str) -> list[torch.Tensor]:
        layers = stack.attention_layers if "attn." in point else range(stack.num_layers)
        return [points[f"{prefix}blocks.{layer}.{point}"] for layer in layers]

    def maps(point: str) -> list[torch.Tensor]:
        if config.encoder is None:
            return each(config, "", f"attn.{point}")
        return [
            *each(config.encoder, "encoder.", f"attn.{point}"),
            *each(config, "decoder.", f"attn.{point}"),
            *each(config, "decoder.", f"cross_attn.{point}"),
        ]

    def states(stack: ModelConfig, prefix: str) -> list[torch.Tensor]:
        post = points[f"{prefix}blocks.{stack.num_layers - 1}.hook_resid_post"]
        last = points[f"{prefix}ln_final.hook_out"] if stack.final_norm else post
        return [*each(stack, prefix, "hook_resid_pre"), last]

    prefix = "decoder." if config.encoder else ""
    encoded = states(config.encoder, "encoder.") if config.encoder else []
    hidden = states(config, prefix)
    if config.embedding_size is not None:
        hidden.pop()
    return Numbers(
        patterns=maps("hook_pattern"),
        scores=maps("hook_attn_scores"),
        hidden=[*encoded, *hidden],
        embedding=(encoded or hidden)[-1].mean(0),
        logits=points[f"{prefix}logits"] if config.has_head else None,
    )


class OverHttp:
    """The routes of a checkpoint, queried over HTTP as a user does it; `post` is an httpx.Client's method."""

    def __init__(self, post: Callable[..., httpx.Response], config: ModelConfig) -> None:
        self.post, self.config = post, config

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Return tensors by name, without the number of the input."""
        response = self.post(path, json=body, headers={"Accept": "application/vnd.safetensors"})
        assert response.status_code == 200, response.text
        return {name.removeprefix("0/"): value for name, value in load(response.content).items()}

    def numbers(self, prompt: Prompt) -> Numbers:
        two = self.config.encoder is not None
        asked = {"input": prompt.encoder_ids, "decoder_input": prompt.ids} if two else {"input": prompt.ids}
        parts = ("encoder", "decoder", "cross") if two else (self.config.kind,)
        maps = {
            kind: [
                layer
                for part in parts
                for layer in self.ask("/v1/attention", {**asked, "part": part, "kind": kind})["attention.0"]
            ]
            for kind in ("pattern", "scores")
        }
        prefix = "decoder." if two else ""
        encoded = self.streams(self.config.encoder, "encoder.", asked) if self.config.encoder else []
        streams = self.streams(self.config, prefix, asked)
        projected = self.config.embedding_size is not None
        embed = {"input": asked["input"], "pooling": "mean", "normalize": False}
        if projected:
            embed["layer"] = self.config.num_layers - 1
        return Numbers(
            patterns=maps["pattern"],
            scores=maps["scores"],
            hidden=[*encoded, *(streams[:-1] if projected else streams)],
            embedding=self.ask("/v1/embeddings", embed)["embedding.0"],
            logits=self.trace(["logits"], asked)[f"{prefix}logits"] if self.config.has_head else None,
        )

    def trace(self, points: Sequence[str], asked: dict[str, Any]) -> dict[str, torch.Tensor]:
        return self.ask("/v1/trace", {**asked, "points": points})

    def streams(self, stack: ModelConfig, prefix: str, asked: dict[str, Any]) -> list[torch.Tensor]:
        """Return the input of each block of a stack, and the output of the last, normed if there is a final norm."""
        last = "ln_final.hook_out" if stack.final_norm else f"blocks.{stack.num_layers - 1}.hook_resid_post"
        names = [*(f"blocks.{layer}.hook_resid_pre" for layer in range(stack.num_layers)), last]
        traced = self.trace([f"{prefix}{name}" for name in names], asked)
        return [traced[f"{prefix}{name}"] for name in names]


def _worst(found: Sequence[Errors]) -> Errors:
    return {name: max(errors[name] for errors in found if name in errors) for name in QUANTITIES if name in found[0]}


@contextmanager
def in_this_process(folder: Path) -> Iterator[OverHttp]:
    """Run the application of a checkpoint without a socket. Its steps are small, so that prompts are read in chunks."""
    engine = InlineEngine(folder=folder, options={} if read_config(folder).kind == "encoder" else SMALL_STEPS)
    site = build_site(folder, engine, config=engine.model_config)
    with asyncio.Runner() as runner:
        yield OverHttp(lambda *given, **named: runner.run(site.http.post(*given, **named)), engine.model_config)
        runner.run(site.http.aclose())


def errors_over_http(asked: OverHttp, folder: Path, seed: int) -> Errors:
    """Return the errors in float32: the routes of the checkpoint against transformers."""
    theirs = Theirs(folder, torch.float32)
    prompts = draw_prompts(asked.config, seed)
    return _worst([asked.numbers(prompt).errors(theirs.numbers(prompt)) for prompt in prompts])


def errors_in_process(folder: Path, seed: int) -> Errors:
    """Return the errors in float64: network - reference, and reference with casts - transformers."""
    config = read_config(folder)
    theirs, weights = Theirs(folder, torch.float64), load_weights(folder, config, torch.float64)
    network = load_model(folder, config, torch.float64, CPU)
    found = []
    for prompt in draw_prompts(config, seed):
        ours = from_points(config, look_at_everything(network, prompt.ids, prompt.encoder_ids))
        plain, cast = (
            from_points(config, reference.run(config, weights, prompt.ids, prompt.encoder_ids, hf_casts=casts).points)
            for casts in (False, True)
        )
        found += [ours.errors(plain), cast.errors(theirs.numbers(prompt))]
        if config.family in reference.formulas.SOFTMAX_IN_FLOAT32:
            del found[-1]["scores"]
    return _worst(found)


def over_bound(precision: str, errors: Errors) -> list[str]:
    """Return the entries that are too large, as sentences."""
    bounds = BOUNDS[precision]
    return [f"{name}: {value:.1e} > {bounds[name]:.0e}" for name, value in errors.items() if not value <= bounds[name]]


def table(precision: str, rows: Mapping[str, Errors]) -> str:
    """Return a table in Markdown; `rows` by the name of the checkpoint."""
    lines = ["| checkpoint | " + " | ".join(QUANTITIES) + " |", "|---" * (len(QUANTITIES) + 1) + "|"]
    for name, errors in rows.items():
        entries = [f"{errors[quantity]:.1e}" if quantity in errors else "" for quantity in QUANTITIES]
        lines.append(f"| {name} | " + " | ".join(entries) + " |")
    bounds = [f"{BOUNDS[precision][quantity]:.0e}" for quantity in QUANTITIES]
    return "\n".join([*lines, "| *bound* | " + " | ".join(bounds) + " |"])


def page(over_http: Mapping[str, Errors], in_process: Mapping[str, Errors]) -> str:
    """Return what `--write` writes."""
    return "\n\n".join(
        (
            "# Differences from transformers",
            "This page lists the largest differences between the results of Lightwell and of transformers, for each "
            "family. `python -m tests.parity --write docs` writes it, and tests/e2e/test_parity.py checks it.",
            "Each row is a small random checkpoint (tests/tiny) with random ordinary tokens as its input; some "
            "families have several rows, with different options. Each entry is the largest error over all layers, "
            "heads and positions, relative to the largest absolute value in its tensor. It is empty if a family has "
            "no logits.",
            "## float32, over HTTP",
            _flat(OVER_HTTP),
            table("float32", over_http),
            "## float64, in process",
            _flat(IN_PROCESS),
            table("float64", in_process) + "\n",
        )
    )


def _flat(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description="Errors against transformers.")
    parser.add_argument("names", nargs="*", default=ROWS, help="checkpoints of tests.tiny")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="also write FOLDER/parity.md")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in tiny.VARIANTS]:
        parser.error(f"no checkpoint {', '.join(unknown)}; there are {', '.join(tiny.VARIANTS)}")
    over_http, in_process, failures = {}, {}, []
    with tempfile.TemporaryDirectory() as top:
        for name in given.names:
            folder = tiny.make_variant(name, Path(top) / name)
            with in_this_process(folder) as asked:
                over_http[name] = errors_over_http(asked, folder, given.seed)
            in_process[name] = errors_in_process(folder, given.seed)
            print(f"{name}: {over_http[name]} {in_process[name]}", file=sys.stderr, flush=True)
            for precision, errors in (("float32", over_http[name]), ("float64", in_process[name])):
                failures += [f"{name}, {precision}, {problem}" for problem in over_bound(precision, errors)]
    text = page(over_http, in_process)
    print(text)
    if given.write is not None:
        (given.write / "parity.md").write_text(text, encoding="utf-8")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
