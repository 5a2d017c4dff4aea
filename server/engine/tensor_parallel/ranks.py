"""Start and end of the ranks, the processes that hold one model together. This process is rank 0.

They end together. If another rank ends, rank 0's process ends too, and the API process replaces it like any lost
worker; if rank 0 ends, the kernel closes its pipes, and the others end. Each rank gets pickled commands through its own
pipe, to which no other process can write. Tensors are exchanged through `model.sharding.group`.
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

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.ranks.leader import RanksApart
from lightwell.model.sharding.group import Group

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).absolute().parents[4]
_LAST_WORDS = 1.0
"""Seconds to wait for the report of a rank's end before reporting its consequences."""
_LEAVING = 5.0
"""Seconds to wait for the end of all ranks before killing them."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message that a rank receives."""

    store: Path
    rank: int
    size: int
    device: torch.device
    threads: int
    start_logging: Callable[[str], object] | None
    """Called in the rank with a name for the process."""


@dataclass(frozen=True, slots=True)
class Settle:
    """A command to a rank after loading: limit the memory as in `limit_memory`, to `memory` bytes."""

    memory: int | None
    num_processes: int


@dataclass(frozen=True, slots=True)
class _Rank:
    process: subprocess.Popen[bytes]
    pipe: Connection


class Ranks:
    """All ranks except this one, and the group of all."""

    def __init__(self, on_loss: Callable[[str], None]) -> None:
        """Prepare without ranks; use `start`."""
        self._ranks: list[_Rank] = []
        self._group: Group | None = None
        self._on_loss = on_loss
        self._changing = threading.Lock()
        self._is_loading = True
        """Whether no model is loaded yet: until then the waiting caller reports a loss, and `on_loss` is not called."""
        self._loss = ""
        self._is_loss_reported = threading.Event()
        self._news: SimpleQueue[str | None] = SimpleQueue()
        """The result of the meeting: an error, or None."""
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
        """Start ranks 1 .. size - 1 and meet them. On GPUs, rank i runs on the i-th GPU after `device`.

        folder: the place of the meeting, which only this user may enter; None makes one. start_logging: called in each
        rank with its name; it is pickled. on_loss: called from another thread, with a message, when a rank ends after a
        model was loaded. Raises OSError if no process can be started, ModelLoadError if one ends before the meeting.
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
        logger.info("%d processes hold the model together: this one and %s", size, started.pids)
        return started

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the other ranks."""
        return [rank.process.pid for rank in self._ranks]

    def send(self, command: object) -> None:
        """Send a command to all ranks. If one has ended, raises ModelLoadError while a model loads, then RanksApart."""
        message = multiprocessing.reduction.ForkingPickler.dumps(command)
        try:
            for rank in self._ranks:
                rank.pipe.send_bytes(message)
        except OSError as error:  # it does not contain the reason
            self._is_loss_reported.wait(_LAST_WORDS)
            loss = self._loss or f"a rank of the model is unreachable: {error}"
            raise ModelLoadError(loss) if self._is_loading else RanksApart(loss) from error

    def wait_loaded(self) -> None:
        """Wait until every rank has loaded its part. Raises ModelLoadError for the first that fails."""
        self._wait("could not be loaded")
        with self._changing:
            self._is_loading = False
        if self._loss:  # from before, so without a call of `on_loss`
            raise ModelLoadError(self._loss)

    def settle(self, memory: int | None) -> None:
        """Limit the memory of each rank, as `limit_memory` does, after everything for serving is loaded.

        Raises ModelLoadError if a rank uses more than `memory` (bytes) already, or the errors of `send`.
        """
        self.send(Settle(memory, len(self._ranks) + 1))
        self._wait("cannot serve")

    def wait_for_loss(self) -> None:
        """Wait for a call of `on_loss`, but not long. Call it when a pass has failed: the thread that watches the ranks
        knows the reason better.
        """
        self._is_loss_reported.wait(_LAST_WORDS)

    def close(self) -> None:
        """End all ranks, and leave the group."""
        self._is_closing = True
        for rank in self._ranks:
            rank.pipe.close()
            if self._is_loading:
                rank.process.kill()  # it does not see the pipe's end while it reads weights or waits for the others
        if self._group is not None:
            self._group.leave()  # ends a pass in which a rank waits
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
        with contextlib.suppress(ConnectionError):  # it has ended; the meeting reports this
            rank.pipe.send(setup)

    def _meet(self, store: Path, size: int, device: torch.device) -> None:
        """Join the group, in a separate thread because torch waits minutes for a rank that has ended. Returns when no
        rank needs `store` any more: two others may still meet there after both have met this one.
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
        """Wait for an answer from every rank. Raises ModelLoadError with `what` for the first with a problem."""
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
    # It finds modules as this process does, except in the working directory, which may contain any model.py.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(_ROOT)])}
    with theirs:
        fd = theirs.fileno()
        command = [
            sys.executable,
            "-P",
            "-m",
            "lightwell.server.engine.tensor_parallel.rank",
            str(fd),
            str(os.getpid()),
        ]
        process = subprocess.Popen(command, env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL)
    return _Rank(process, Connection(ours.detach()))


def _device_of(device: torch.device, rank: int) -> torch.device:
    return torch.device("cuda", (device.index or 0) + rank) if device.type == "cuda" else device
