"""The processes that hold one model together with this one, which is rank 0: how they are started and how they end.

They live and die together. A rank that ends takes rank 0's process with it, which the API process replaces like any
lost worker; when rank 0 ends, however suddenly, the kernel closes its pipes, and the others leave. Commands go down a
pipe of each process and are pickled: both ends are ours, and nobody else can write to it. Tensors go between the ranks
by `model.parallel.group`.
"""

import contextlib
import logging
import multiprocessing
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from model.folder import ModelLoadError
from model.parallel.commands import Command
from model.parallel.group import Group

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """The first thing that a rank is told."""

    store: Path
    rank: int
    size: int
    device: torch.device
    threads: int
    compile: bool
    memory: int | None
    """Most bytes that this process may take once its model is loaded."""


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
        compile: bool = True,
        memory: int | None = None,
        on_loss: Callable[[str], None],
    ) -> "Ranks":
        """Start ranks 1 .. size - 1 and meet them. Rank i of a GPU's is on the i-th card after `device`.

        on_loss: called from another thread, with what happened, when one of them has ended. Raises OSError when no
        process can be started.
        """
        folder = Path(tempfile.mkdtemp(prefix="lightwell-ranks-"))  # nobody else may read it
        started = cls(on_loss)
        try:
            for number in range(1, size):
                setup = Setup(folder / "store", number, size, _device_of(device, number), threads, compile, memory)
                started._add(number, setup)
            started._group = Group.join(folder / "store", 0, size, _device_of(device, 0))
        except BaseException:
            started.close()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        logger.info("%d processes hold the model together; beside this one %s", size, started.pids)
        return started

    @property
    def pids(self) -> list[int]:
        """Of the other ranks."""
        return [rank.process.pid for rank in self._ranks]

    def tell(self, command: Command) -> None:
        """Send a command to all. Raises OSError when one has ended."""
        message = multiprocessing.reduction.ForkingPickler.dumps(command)
        for rank in self._ranks:
            rank.pipe.send_bytes(message)

    def wait_loaded(self) -> None:
        """Until every rank has loaded what it was told to. Raises ModelLoadError for the first that cannot."""
        for number, rank in enumerate(self._ranks, 1):
            try:
                problem = rank.pipe.recv()
            except (EOFError, OSError):
                problem = "it ended"
            if problem is not None:
                raise ModelLoadError(f"rank {number} of the model could not be loaded: {problem}")

    def close(self) -> None:
        """End all of them, and leave the group."""
        self._is_closing = True
        for rank in self._ranks:
            rank.pipe.close()
        if self._group is not None:
            self._group.leave()  # which ends a pass that one of them waits in
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(5.0)
            rank.process.kill()
            rank.process.wait()

    def _add(self, number: int, setup: Setup) -> None:
        rank = _start()
        self._ranks.append(rank)
        threading.Thread(target=self._watch, args=(number, rank.process), daemon=True).start()
        rank.pipe.send(setup)

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._is_closing:
            self._on_loss(f"rank {number} of the model (process {process.pid}) ended with status {status}")


def _start() -> _Rank:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "server.engine.rank", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return _Rank(process, Connection(ours.detach()))


def _device_of(device: torch.device, rank: int) -> torch.device:
    return torch.device("cuda", (device.index or 0) + rank) if device.type == "cuda" else device
