"""Whole answers in float32, and in bfloat16 that is widened, have the same bits on CPUs of every level: hidden states,
attention and logits of every family but one. Each level is forced, on our kernels and on torch's own alike.
"""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from model.checkpoint.folder import PACKAGED
from model.kernels import library
from tests import tiny
from tests.server.running import ROOT

ANSWERS = """
import hashlib
import sys
from pathlib import Path

import torch

from model.checkpoint.registry import read_config
from model.kernels.choice import KernelConfig
from model.loading.loader import load_model
from tests.network import CPU, look_at_everything

widened = KernelConfig("native", "float32")
seed, dtype, *folders = sys.argv[1:]
torch.set_num_threads(1)
for folder in map(Path, folders):
    config = read_config(folder)
    length = min(config.max_model_len, 1024)
    model = load_model(folder, config, getattr(torch, dtype), CPU, max_model_len=length, kernels=widened)
    ids = torch.randint(5, config.vocab_size, (2, 37), generator=torch.Generator().manual_seed(int(seed))).tolist()
    points = look_at_everything(model, ids[0], ids[1] if config.kind == "encoder-decoder" else (), chunk=19)
    for name, numbers in sorted(points.items()):
        numbers = numbers.float().contiguous()
        print(folder.name, name, hashlib.sha256(numbers.numpy().tobytes()).hexdigest())
"""
COMPUTED_BY_TORCH = "qwen3_5"
"""The family whose exponentials are torch's, in delta nets and gates: `/v1/capabilities` promises no such thing."""
TORCH_LEVELS = {"avx2": "avx2", "avx512": "avx512", "avx512_bf16": "avx512", "amx": "avx512"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    room = tmp_path_factory.mktemp("variants")
    names = [name for name in tiny.VARIANTS if name != COMPUTED_BY_TORCH]
    return [str(PACKAGED), *(str(tiny.make_variant(name, room / name)) for name in names)]


@pytest.mark.skipif(len(library.levels()) < 2, reason="this CPU has one level alone")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_answers_have_the_same_bits_at_every_level(dtype: str, folders: list[str]) -> None:
    arguments = [str(random.randrange(1 << 30)), dtype, *folders]

    def answers(level: str, torch_level: str) -> list[str]:
        environment = {library.LEVEL_VARIABLE: level, "ATEN_CPU_CAPABILITY": torch_level}
        done = subprocess.run(
            [sys.executable, "-c", ANSWERS, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    lowest, highest = library.levels()[0], library.levels()[-1]
    with ThreadPoolExecutor(2) as pool:
        low = pool.submit(answers, lowest, "default")
        high = answers(highest, TORCH_LEVELS.get(highest, "default"))
    assert len(high) > 500
    assert [f"{a} {b}" for a, b in zip(low.result(), high, strict=True) if a != b] == [], arguments[0]
