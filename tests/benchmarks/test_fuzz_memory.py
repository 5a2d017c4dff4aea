"""Drawn weights and mutated checkpoints are refused in one line or compute, by a small run of the fuzzer."""

import random
import shutil
from pathlib import Path

import pytest

from benchmarks.fuzz import memory
from benchmarks.fuzz.checkpoints import Sources, read_and_run


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
def test_whatever_is_drawn_is_refused_in_one_line_or_computes() -> None:
    seed = random.SystemRandom().randrange(2**32)
    wrong = memory.run_cases(0, 40, seed, lambda number: None)
    assert not wrong, (f"python -m benchmarks.fuzz.memory --seed {seed} --count 40", wrong)


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
