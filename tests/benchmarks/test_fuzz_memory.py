"""Drawn shapes and mutated checkpoints are refused in one line or compute, by a small run of the fuzzer."""

import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fuzz import memory
from benchmarks.fuzz.checkpoints import Sources, read_and_run
from benchmarks.fuzz.kernels import CASES, run_kernel
from lightwell.model.kernels import library


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # peft asks for a deprecated attribute
        return Sources(tmp_path_factory.mktemp("sources"))


def test_whatever_is_drawn_is_refused_in_one_line_or_computes(sources: Sources) -> None:
    seed = random.SystemRandom().randrange(2**32)
    wrong = memory.run_cases(0, 40, seed, sources, lambda number: None)
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


def test_every_checkpoint_computes_before_it_is_changed(sources: Sources, tmp_path: Path) -> None:
    for name in sources.names:
        shutil.copytree(sources.room / name, tmp_path / name)
        assert read_and_run(tmp_path / name) == "computes"


@pytest.mark.nightly
def test_no_case_reads_outside_its_memory() -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    seed = random.SystemRandom().randrange(2**32)
    assert memory.check(0, 2000, seed) == []
