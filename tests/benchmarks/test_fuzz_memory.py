"""Drawn shapes and mutated checkpoints are refused in one line or compute, by a small run of the fuzzer."""

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fuzz import memory
from benchmarks.fuzz.checkpoints import Sources, read_and_run
from benchmarks.fuzz.kernels import CASES, run_kernel
from model.kernels import library


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
def test_whatever_is_drawn_is_refused_in_one_line_or_computes() -> None:
    seed = random.SystemRandom().randrange(2**32)
    wrong = memory.run_cases(0, 40, seed, lambda number: None)
    assert not wrong, (f"python -m benchmarks.fuzz.memory --seed {seed} --count 40", wrong)


def test_every_kernel_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    called, call = set[str](), library.Kernels.call

    def noted(self: library.Kernels, name: str, *arguments: Any) -> None:
        called.add(f"{name}_{self.level}")
        call(self, name, *arguments)

    monkeypatch.setattr(library.Kernels, "call", noted)
    before, level, number = library.num_threads(), library.kernels().level, 0
    exported = re.findall(rb"\0(\w+_%b)(?=\0)" % level.encode(), library.library_path().read_bytes())
    names = {name.decode() for name in exported}
    assert len(names) > 40
    while not names <= called and number < 500:
        number += 1
        for name in CASES:
            rng = random.Random(f"{name} {number}")
            torch.manual_seed(rng.randrange(2**63))
            run_kernel(name, rng)
    library.set_num_threads(before)
    assert names - called == set()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
def test_every_checkpoint_computes_before_it_is_changed(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "sources")
    for name in sources.names:
        shutil.copytree(tmp_path / "sources" / name, tmp_path / name)
        assert read_and_run(tmp_path / name) == "computes"


@pytest.mark.nightly
def test_no_case_reads_outside_its_memory() -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    seed = random.SystemRandom().randrange(2**32)
    assert memory.check(0, 2000, seed) == []
