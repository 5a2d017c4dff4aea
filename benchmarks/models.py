"""The models that the serving benchmarks serve, and the formats and numbers of clients that each is measured with."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoint import make_checkpoint
from benchmarks.processes import ROOT

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
    "default": Model(lambda cache: ROOT / "model" / "fables", ("float32",), (1, 8, 64), ttft_ms=100, tpot_ms=10),
}
"""The 124M checkpoint with random weights, and the model that ships with Lightwell."""


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add `--cache` and `--home`."""
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the 124M checkpoint is kept")
    parser.add_argument("--home", type=Path, default=CACHE / "peers", help="where peers are installed")
