"""The models that the serving benchmarks serve, and the formats and numbers of clients that each is measured with."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoint import make_checkpoint
from benchmarks.gguf_models import random_q4_k, smollm2_bf16, smollm2_deep, smollm2_q8_0
from benchmarks.peers.engines import STORED
from lightwell.model.checkpoint.gguf.folder import folder_of
from lightwell.model.checkpoint.resolve import smollm2_file
from tests.support.processes import ROOT

CACHE = ROOT / "benchmarks" / ".cache"


@dataclass(frozen=True)
class Model:
    folder: Callable[[Path], Path]
    """Returns the folder of the checkpoint; it is made under the given cache where it must be made."""
    dtypes: tuple[str, ...]
    concurrencies: tuple[int, ...]
    ttft_ms: float
    """Milliseconds within which a good request has its first token."""
    tpot_ms: float
    """Milliseconds a token, within which a good request has the others."""


MODELS = {
    "124m": Model(make_checkpoint, ("float32", "bfloat16", "int8"), (1, 8, 32), ttft_ms=500, tpot_ms=50),
    "fables": Model(lambda cache: ROOT / "model" / "fables", ("float32",), (1, 8, 64), ttft_ms=100, tpot_ms=10),
}
"""The 124M checkpoint with random weights, and the model that ships with Lightwell."""


def _gguf(make: Callable[[Path], Path], concurrencies: tuple[int, ...] = (1, 8, 32)) -> Model:
    return Model(lambda cache: folder_of(make(cache)), (STORED,), concurrencies, ttft_ms=500, tpot_ms=50)


GGUF_MODELS = {
    "smollm2-q4_1": _gguf(lambda cache: smollm2_file()),
    "smollm2-q8_0": _gguf(smollm2_q8_0),
    "smollm2-bf16": _gguf(smollm2_bf16),
    "smollm2-deep": _gguf(smollm2_deep),
    "1.1b-q4_k": _gguf(random_q4_k),
}
"""GGUF files, which llama.cpp serves unchanged too; they are only measured if they are named."""


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", type=Path, default=CACHE, help="where made checkpoints are kept")


def add_peers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, default=CACHE / "peers", help="where peers are installed")


def add_folders(parser: argparse.ArgumentParser) -> None:
    add_cache(parser)
    add_peers(parser)
