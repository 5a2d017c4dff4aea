"""Hashes of all numbers of a network's answer, for tests that compare CPUs.

python -m tests.model.answer_hashes SEED FOLDER...
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.loading.loader import load_model
from tests.invariance import num_threads
from tests.network import CPU, look_at_everything

DTYPES = (torch.float32, torch.bfloat16)


def answer_hashes(seed: int, folders: list[str]) -> list[str]:
    """Return a line for each checkpoint, dtype and named point: their names and a hash of the point's numbers."""
    with num_threads(1):
        return [line for folder in folders for dtype in DTYPES for line in _of(folder, dtype, seed)]


def _of(folder: str, dtype: torch.dtype, seed: int) -> Iterator[str]:
    path = Path(folder)
    config = read_config(path)
    length = min(config.max_model_len, 1024)
    model = load_model(path, config, dtype, CPU, max_model_len=length, kernels=KernelConfig("native", "float32"))
    ids = torch.randint(5, config.vocab_size, (2, 37), generator=torch.Generator().manual_seed(seed)).tolist()
    points = look_at_everything(model, ids[0], ids[1] if config.kind == "encoder-decoder" else (), chunk=19)
    for name, numbers in sorted(points.items()):
        numbers = numbers.float().contiguous()
        yield f"{path.name} {dtype} {name} {hashlib.sha256(numbers.numpy().tobytes()).hexdigest()}"


if __name__ == "__main__":
    print("\n".join(answer_hashes(int(sys.argv[1]), sys.argv[2:])))
