"""How the processes that hold one model fail together. A process is in one group at a time: this file has its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model.folder import ModelLoadError
from model.layers.mlp import Mlp
from model.parallel.commands import Load
from model.parallel.group import Group
from model.parallel.leader import RanksApart
from server.engine.ranks import Ranks
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import CPU, build, generate, request, run
from tests.server.engine.test_tensor_parallel import load_shared
from tests.server.running import ROOT


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, list[str]]]:
    """And what was told of their loss; started where a module lies that has a name of ours."""
    lost: list[str] = []

    def note(loss: str) -> None:
        time.sleep(0.1)  # as long as a log may take
        lost.append(loss)

    folder = tmp_path_factory.mktemp("anybodys")
    (folder / "model.py").write_text("raise SystemExit('not ours')")
    with num_threads(1):
        with contextlib.chdir(folder):
            found = Ranks.start(2, CPU, on_loss=note)
        yield found, lost
        found.close()


def test_a_rank_that_ends_before_all_have_met_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would wait for it for minutes, and the worker be started again and again."""
    stores: list[Path] = []

    def join(store: Path, *_: object) -> None:
        stores.append(store)
        threading.Event().wait()

    false = shutil.which("false")
    assert false is not None
    monkeypatch.setattr(sys, "executable", false)  # a Python that cannot start
    monkeypatch.setattr(Group, "join", join)
    lost: list[str] = []
    with pytest.raises(ModelLoadError, match=r"rank 1 of the model .* ended with status 1"):
        Ranks.start(2, CPU, folder=tmp_path, on_loss=lost.append)
    assert not lost
    assert stores[0].parent.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_rank_leaves_at_once_where_who_started_it_has_ended() -> None:
    nobodys = str(os.getppid())  # no child of ours is a child of that one
    command = [sys.executable, "-X", "importtime", "-m", "server.engine.rank", "0", nobodys]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "torch" not in done.stderr, "that would take seconds"


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
    (rank,) = others.pids

    def fail(*_: object) -> None:
        os.kill(rank, signal.SIGKILL)  # that it has ended is known before anybody hears of the pass
        raise MemoryError("no memory in the middle of a layer")

    monkeypatch.setattr(Mlp, "hidden", fail)
    with pytest.raises(RanksApart, match="no memory in the middle of a layer"):
        run(engine, [request(1, [5, 6, 7], generate(3))])
    assert lost == [f"rank 1 of the model (process {rank}) ended with status -9"]
