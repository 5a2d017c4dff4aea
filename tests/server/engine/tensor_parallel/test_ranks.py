"""Failures of the processes that share one model. A process is in one group at a time, so this file has its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.layers.mlp import Mlp
from lightwell.model.ranks.commands import Load
from lightwell.model.ranks.leader import RanksApart
from lightwell.model.sharding.group import Group
from lightwell.server.engine.tensor_parallel import ranks as ranks_module
from lightwell.server.engine.tensor_parallel.ranks import Ranks
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import CPU, build, generate, request, run
from tests.server.engine.tensor_parallel.test_tensor_parallel import load_shared
from tests.server.running import ROOT, wait_for


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Delay the threads that watch ranks: on a busy machine a second may pass before they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "_LAST_WORDS", 60.0)
        yield


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, list[str]]]:
    """Ranks, and the reports of their loss. They start in a folder with a foreign module `model`, which they must not
    import.
    """
    lost: list[str] = []

    def note(loss: str) -> None:
        time.sleep(0.1)  # as long as writing a log line may take
        lost.append(loss)

    folder = tmp_path_factory.mktemp("anybodys")
    (folder / "model.py").write_text("raise SystemExit('not ours')")
    with num_threads(1):
        with contextlib.chdir(folder):
            found = Ranks.start(2, CPU, on_loss=note)
        yield found, lost
        found.close()


def test_a_rank_that_ends_before_all_have_met_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that torch does not wait for minutes for such a rank."""
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


@pytest.mark.nightly
def test_three_meet() -> None:
    """Start three real ranks: each must find every other."""
    lost: list[str] = []
    with num_threads(1):
        found = Ranks.start(3, CPU, on_loss=lost.append)
        assert (found.group.rank, found.group.size, len(found.pids)) == (0, 3, 2)
        found.close()
    assert not lost


class Process(subprocess.Popen[bytes]):
    """An idle process that lives until it is killed. It counts the limits of the waits for its end.

    A wait with a limit returns at once: `clock` is advanced instead.
    """

    def __init__(self, clock: SimpleNamespace) -> None:
        super().__init__(["sleep", "600"])
        self.clock, self.is_killed = clock, False
        self.limits: list[float] = []
        """Limits that passed, in seconds."""

    def kill(self) -> None:
        super().kill()
        self.is_killed = True

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None or self.is_killed:
            return super().wait()
        self.limits.append(timeout)
        self.clock.now += timeout
        raise subprocess.TimeoutExpired(self.args, timeout)


@dataclass
class Played:
    """Idle processes in place of ranks, and the ends of the pipes that ranks would have."""

    clock: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(now=1000.0))
    """The time, in seconds, that `Ranks` sees."""
    ranks: Ranks | None = None
    pipes: list[Connection] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def start(self, size: int, folder: Path) -> None:
        self.ranks = Ranks.start(size, CPU, folder=folder, on_loss=self.lost.append)

    def start_met(self, size: int, folder: Path) -> Ranks:
        starting = threading.Thread(target=self.start, args=(size, folder))
        starting.start()
        wait_for(lambda: len(self.pipes) == size - 1, "all are started")
        for pipe in self.pipes:
            pipe.send(None)
        starting.join(60)
        assert self.ranks is not None
        return self.ranks


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    found = Played()

    def start() -> ranks_module._Rank:
        ours, theirs = Pipe()
        found.processes.append(Process(found.clock))
        found.pipes.append(theirs)
        return ranks_module._Rank(found.processes[-1], ours)

    monkeypatch.setattr(ranks_module, "_start", start)
    monkeypatch.setattr(ranks_module, "time", SimpleNamespace(monotonic=lambda: found.clock.now))
    monkeypatch.setattr(Group, "join", lambda _store, rank, size, _device: Group(rank, size))
    monkeypatch.setattr(Group, "leave", lambda _self: None)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def test_where_they_meet_stays_until_each_has_met_all_others(played: Played, tmp_path: Path) -> None:
    """Check the file where they meet: two may still search for each other when both have found rank 0."""
    starting = threading.Thread(target=played.start, args=(4, tmp_path))
    starting.start()
    wait_for(lambda: len(played.pipes) == 3, "all are started")
    for pipe in played.pipes:
        starting.join(0.1)
        assert played.ranks is None
        assert list(tmp_path.iterdir())
        pipe.send(None)
    starting.join(60)
    assert played.ranks is not None
    assert not list(tmp_path.iterdir())


def test_ranks_that_load_are_not_waited_for_and_others_all_at_once(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a user who started a server with a damaged file gets the error without a wait."""
    monkeypatch.setattr(ranks_module, "_LEAVING", 1.0)
    played.start_met(4, tmp_path).close()
    assert [process.limits for process in played.processes] == [[], [], []]
    played.pipes.clear()
    loaded = played.start_met(4, tmp_path)
    for pipe in played.pipes:
        pipe.send(None)
    loaded.wait_loaded()
    loaded.close()
    assert [process.limits for process in played.processes[3:]] == [[1.0], [0.0], [0.0]]
    assert all(process.poll() is not None for process in played.processes)
    assert not played.lost


@pytest.mark.parametrize(("is_loaded", "raised"), [(False, ModelLoadError), (True, RanksApart)])
def test_a_command_for_a_rank_that_has_ended_tells_how_it_ended(
    is_loaded: bool, raised: type[BaseException], played: Played, tmp_path: Path
) -> None:
    """Check the error: a broken pipe is no fault of the checkpoint, but an OSError would be taken for one."""
    ranks = played.start_met(2, tmp_path)
    if is_loaded:
        played.pipes[0].send(None)
        ranks.wait_loaded()
    played.pipes[0].close()
    played.processes[0].kill()
    with pytest.raises(raised, match=r"^rank 1 of the model \(process \d+\) ended with status -9$"):
        ranks.settle(None)
    assert len(played.lost) == is_loaded
    ranks.close()


def test_a_rank_leaves_at_once_where_who_started_it_has_ended() -> None:
    nobodys = str(os.getppid())  # no child of ours is a child of that one
    command = [sys.executable, "-X", "importtime", "-m", "lightwell.server.engine.tensor_parallel.rank", "0", nobodys]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "torch" not in done.stderr, "that would take seconds"


def test_a_rank_that_cannot_load_says_why(ranks: tuple[Ranks, list[str]], tmp_path: Path) -> None:
    ranks[0].send(Load(tmp_path / "nothing", torch.float32, None, None))
    with pytest.raises(ModelLoadError, match=r"rank 1 of the model could not be loaded: .*nothing.*config.json"):
        ranks[0].wait_loaded()


def test_a_pass_that_fails_on_one_rank_ends_the_worker_as_the_end_of_a_rank_does(
    ranks: tuple[Ranks, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the step is not run again to isolate the failure: the other rank still waits inside it."""
    (others, lost) = ranks
    engine = build(load_shared(tiny.make_variant("llama-gqa", tmp_path), others))
    (rank,) = others.pids

    def fail(*_: object) -> None:
        os.kill(rank, signal.SIGKILL)  # the end of the rank is known before the failure of the pass
        raise MemoryError("no memory in the middle of a layer")

    monkeypatch.setattr(Mlp, "apply_gate", fail)
    with pytest.raises(RanksApart, match="no memory in the middle of a layer"):
        run(engine, [request(1, [5, 6, 7], generate(3))])
    assert lost == [f"rank 1 of the model (process {rank}) ended with status -9"]
