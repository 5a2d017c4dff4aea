"""How the processes that hold one model fail together. A process is in one group at a time: this file has its own."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model.folder import ModelLoadError
from model.layers.mlp import Mlp
from model.parallel.commands import Load
from model.parallel.leader import RanksApart
from server.engine.ranks import Ranks
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import CPU, build, generate, request, run
from tests.server.engine.test_tensor_parallel import load_shared
from tests.server.running import wait_for


@pytest.fixture(scope="module")
def ranks() -> Iterator[tuple[Ranks, list[str]]]:
    """And what was told of their loss."""
    lost: list[str] = []
    with num_threads(1):
        found = Ranks.start(2, CPU, on_loss=lost.append)
        yield found, lost
        found.close()


def test_a_rank_that_cannot_load_says_why(ranks: tuple[Ranks, list[str]], tmp_path: Path) -> None:
    ranks[0].tell(Load(tmp_path / "nothing", torch.float32, None, None))
    with pytest.raises(ModelLoadError, match=r"rank 1 of the model could not be loaded: .*nothing.*config.json"):
        ranks[0].wait_loaded()


def test_a_pass_that_fails_on_one_rank_ends_the_worker_as_the_end_of_a_rank_does(
    ranks: tuple[Ranks, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that isolates failures may run the step again: the other rank still waits inside it."""
    (others, lost) = ranks
    engine = build(load_shared(tiny.make_variant("llama-gqa", tmp_path), others))

    def fail(*_: object) -> None:
        raise MemoryError("no memory in the middle of a layer")

    monkeypatch.setattr(Mlp, "hidden", fail)
    with pytest.raises(RanksApart, match="no memory in the middle of a layer"):
        run(engine, [request(1, [5, 6, 7], generate(3))])
    (rank,) = others.pids
    os.kill(rank, signal.SIGKILL)
    told = wait_for(lambda: lost, "its end is told")
    assert told == [f"rank 1 of the model (process {rank}) ended with status -9"]
