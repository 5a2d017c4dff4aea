"""Whole answers in float32, and in bfloat16 that is widened, have the same bits on CPUs of every level: hidden states,
attention and logits of every family. Each level is forced, on our kernels and on torch's own alike.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.kernels import library
from tests import tiny
from tests.model.answer_hashes import answer_hashes
from tests.model.kernels.levels import NOT_COMPILED, at_level
from tests.support.families import is_chosen
from tests.support.processes import ROOT

TORCH_LEVELS = {"avx512": "avx512", "avx512_bf16": "avx512"}
"""Torch's own level at each of our levels below the highest; at others it is torch's lowest."""


@pytest.mark.skipif(len(library.levels()) < 2, reason=f"one level cannot differ; of another: {NOT_COMPILED}")
@pytest.mark.parametrize("which", ["chosen", pytest.param("all", marks=pytest.mark.nightly)])
def test_whole_answers_have_the_same_bits_at_every_level(which: str, tmp_path: Path) -> None:
    """The chosen families at the lowest and the highest level; all families at all levels."""
    names = [name for name in tiny.VARIANTS if which == "all" or is_chosen(name)]
    folders = [str(PACKAGED), *(str(tiny.make_variant(name, tmp_path / name)) for name in names)]
    seed, (*lower, highest) = random.randrange(1 << 30), library.levels()
    with at_level(highest):
        expected = answer_hashes(seed, folders)
    assert len(expected) > 16 * len(names)
    for level in lower if which == "all" else lower[:1]:
        environment = {library.LEVEL_VARIABLE: level, "ATEN_CPU_CAPABILITY": TORCH_LEVELS.get(level, "default")}
        command = [sys.executable, "-m", "tests.model.answer_hashes", str(seed), *folders]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=1800
        )
        assert done.returncode == 0, done.stderr
        found = done.stdout.splitlines()
        assert [f"{a} {b}" for a, b in zip(found, expected, strict=True) if a != b] == [], (level, seed)
