"""The processes that hold one model together with this one, which is rank 0: how they are started and how they end.

They live and die together. A rank that ends takes rank 0's process with it, which the API process replaces like any
lost worker; when rank 0 ends, however suddenly, the kernel closes its pipes, and the others leave. Commands go down a
pipe of each process and are pickled: both ends are ours, and nobody else can write to it. Tensors go between the ranks
by `model.sharding.group`.
"""

import contextlib
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import torch

from model.checkpoint.folder import ModelLoadError
from model.ranks.commands import Command
from model.ranks.leader import RanksApart
from model.sharding.group import Group

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[3]
_LAST_WORDS = 1.0
"""Seconds that who watches a rank has to say how it ended, before somebody says what came of that."""
_LEAVING = 5.0
"""Seconds that all ranks together have to end by themselves."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first thing that a rank is told."""

    store: Path
    rank: int
    size: int
    device: torch.device
    threads: int
    start_logging: Callable[[str], object] | None
    """Called with a name for the process."""


@dataclass(frozen=True, slots=True)
class Settle:
    """All that is needed for serving is there: from now on take no more memory than that and `limit_memory` allow."""

    memory: int | None
    num_processes: int


@dataclass(frozen=True, slots=True)
class _Rank:
    process: subprocess.Popen[bytes]
    pipe: Connection


class Ranks:
    """All ranks but this one, and the group that they make with it."""

    def __init__(self, on_loss: Callable[[str], None]) -> None:
        """`start` makes one."""
        self._ranks: list[_Rank] = []
        self._group: Group | None = None
        self._on_loss = on_loss
        self._changing = threading.Lock()
        self._is_loading = True
        """Until a model is there: who waits for that tells of a loss, and `on_loss` is not called."""
        self._loss = ""
        self._is_loss_reported = threading.Event()
        self._news: SimpleQueue[str | None] = SimpleQueue()
        """What comes of meeting: what went wrong, or None."""
        self._is_closing = False

    @property
    def group(self) -> Group:
        assert self._group is not None
        return self._group

    @classmethod
    def start(
        cls,
        size: int,
        device: torch.device,
        *,
        threads: int = 1,
        folder: Path | None = None,
        start_logging: Callable[[str], object] | None = None,
        on_loss: Callable[[str], None],
    ) -> "Ranks":
        """Start ranks 1 .. size - 1 and meet them. Rank i of a GPU's is on the i-th card after `device`.

        folder: where they meet, which nobody else may enter; None makes one. start_logging: called in each of them with
        its name; it is pickled. on_loss: called from another thread, with what happened, when one of them has ended
        after a model was loaded. Raises OSError when no process can be started, ModelLoadError when one ends before all
        have met.
        """
        started = cls(on_loss)
        with tempfile.TemporaryDirectory(prefix="lightwell-ranks-", dir=folder, ignore_cleanup_errors=True) as place:
            store = Path(place) / "store"
            try:
                for number in range(1, size):
                    on = _device_of(device, number)
                    started._add(number, Setup(store, number, size, on, threads, start_logging))
                started._meet(store, size, _device_of(device, 0))
            except BaseException:
                started.close()
                raise
        logger.info("%d processes hold the model together; beside this one %s", size, started.pids)
        return started

    @property
    def pids(self) -> list[int]:
        """Of the other ranks."""
        return [rank.process.pid for rank in self._ranks]

    def send(self, command: Command | Settle) -> None:
        """Send a command to all. Where one has ended, raises ModelLoadError until a model is there, then RanksApart."""
        message = multiprocessing.reduction.ForkingPickler.dumps(command)
        try:
            for rank in self._ranks:
                rank.pipe.send_bytes(message)
        except OSError as error:  # which says nothing of how it ended
            self._is_loss_reported.wait(_LAST_WORDS)
            loss = self._loss or f"a rank of the model cannot be told anything: {error}"
            raise ModelLoadError(loss) if self._is_loading else RanksApart(loss) from error

    def wait_loaded(self) -> None:
        """Until every rank has loaded what it was told to. Raises ModelLoadError for the first that cannot."""
        self._wait("could not be loaded")
        with self._changing:
            self._is_loading = False
        if self._loss:  # before `on_loss` was to hear of it
            raise ModelLoadError(self._loss)

    def settle(self, memory: int | None) -> None:
        """Call when everything is there that serving needs: bound the memory of each rank, as `limit_memory` does.

        Raises ModelLoadError when one has taken more than `memory` (bytes) already, else what `send` raises.
        """
        self.send(Settle(memory, len(self._ranks) + 1))
        self._wait("cannot serve")

    def wait_for_loss(self) -> None:
        """Return when `on_loss` was called, or when it is not soon: to be asked where a pass has failed, whose reason
        is better known to who watches the ranks.
        """
        self._is_loss_reported.wait(_LAST_WORDS)

    def close(self) -> None:
        """End all of them, and leave the group."""
        self._is_closing = True
        for rank in self._ranks:
            rank.pipe.close()
            if self._is_loading:
                rank.process.kill()  # where it waits for the others, or reads weights, it does not see the pipe end
        if self._group is not None:
            self._group.leave()  # which ends a pass that one of them waits in
        end = time.monotonic() + _LEAVING
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, end - time.monotonic()))
            rank.process.kill()
            rank.process.wait()

    def _add(self, number: int, setup: Setup) -> None:
        rank = _start()
        self._ranks.append(rank)
        threading.Thread(target=self._watch, args=(number, rank.process), daemon=True).start()
        with contextlib.suppress(ConnectionError):  # it has ended, which is noticed where all meet
            rank.pipe.send(setup)

    def _meet(self, store: Path, size: int, device: torch.device) -> None:
        """Join the group, in a thread of its own: there torch waits minutes for a rank that has ended. Returns when no
        rank needs `store` any more: two others may still look there for each other when both have found this one.
        """

        def join() -> None:
            try:
                self._group = Group.join(store, 0, size, device)
                self._wait("could not meet the others")
            except ModelLoadError as error:
                self._news.put(str(error))
            except Exception as error:
                self._is_loss_reported.wait(_LAST_WORDS)
                self._news.put(f"the processes that hold the model could not meet: {error}")
            else:
                self._news.put(None)

        threading.Thread(target=join, name="meeting", daemon=True).start()
        problem = self._news.get()
        if problem is not None:
            raise ModelLoadError(problem)

    def _wait(self, what: str) -> None:
        """For a word of every rank. Raises ModelLoadError for the first that `what`."""
        for number, rank in enumerate(self._ranks, 1):
            try:
                problem = rank.pipe.recv()
            except (EOFError, OSError):
                self._is_loss_reported.wait(_LAST_WORDS)
                problem = self._loss or "it ended"
            if problem is not None:
                raise ModelLoadError(f"rank {number} of the model {what}: {problem}")

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if self._is_closing:
            return
        loss = f"rank {number} of the model (process {process.pid}) ended with status {status}"
        with self._changing:
            self._loss, is_reported_here = loss, not self._is_loading
        if is_reported_here:
            self._on_loss(loss)
        self._news.put(loss)
        self._is_loss_reported.set()


def _start() -> _Rank:
    ours, theirs = socket.socketpair()
    # It finds modules where this process does, but for the working directory, which may hold any model.py.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(_ROOT)])}
    with theirs:
        fd = theirs.fileno()
        command = [sys.executable, "-P", "-m", "server.engine.tensor_parallel.rank", str(fd), str(os.getpid())]
        process = subprocess.Popen(command, env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL)
    return _Rank(process, Connection(ours.detach()))


def _device_of(device: torch.device, rank: int) -> torch.device:
    return torch.device("cuda", (device.index or 0) + rank) if device.type == "cuda" else device
