"""Worker processes that wait for their jobs, so that the first one can import torch while the API process reads the
model's files.

It imports the standard library only; the jobs come from `server.lifecycle.litserve_adapter`.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the server. A terminal or a service manager sends them to all of its processes at once."""

_IMPORTS = ("lightwell.server.lifecycle.litserve_adapter", "torch", "lightwell.server.engine.engine")
"""The modules that take longest to import. A thread of `lightwell.command` loads torch's library meanwhile."""
_LARGE = 64 << 20
"""Bytes of weights that fit no cache."""


class WorkerProcess:
    """A process that imports modules and then waits for its job."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        """Start the process. Raises OSError if the machine has no memory, files or processes left for it."""
        context = multiprocessing.get_context("spawn")
        receiver, self._sender = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=_wait_for_job, args=(receiver, imports), name="worker")
        with receiver, without_stop_signals():
            self.process.start()

    def run(self, job: Callable[..., object], *arguments: object) -> BaseProcess:
        """Have the process run the pickled `job(*arguments)` and then end."""
        with self._sender, contextlib.suppress(BrokenPipeError):  # it has ended: its sentinel reports it
            self._sender.send((job, arguments))
        return self.process


_early: list[WorkerProcess] = []


def start_early(threads: int | None, model: Path) -> None:
    """Start the first worker process before its job is known. model: its folder or GGUF file."""
    with worker_environment(threads, weight_bytes(model)):
        _early.append(WorkerProcess(_IMPORTS))


def take() -> WorkerProcess:
    """Return the process that was started early, or else a new one."""
    return _early.pop() if _early else WorkerProcess()


def end_unused() -> None:
    """End the process that was started early, if it got no job."""
    while _early:
        process = _early.pop().process
        process.kill()
        process.join()


def weight_bytes(model: Path) -> int:
    """Return the bytes of a GGUF file, or of the files in a folder that can hold weights. Raises OSError."""
    files = [model] if model.is_file() else model.glob("*")
    return sum(file.stat().st_size for file in files if file.suffix.lower() in (".safetensors", ".bin", ".gguf"))


@contextlib.contextmanager
def without_stop_signals() -> Iterator[None]:
    """Block the stop signals: they end the API process, which lets its workers finish first.

    A process that starts meanwhile inherits the mask, so that Ctrl-C in the middle of its imports changes nothing.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        # Before the process starts: multiprocessing unblocks SIGINT and SIGTERM when it has started the tracker.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _wait_for_job(receiver: Connection, imports: Sequence[str]) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it is for the API process
    gc.disable()  # until `freeze_garbage`: imports make no garbage, and collections take a tenth of their time
    with contextlib.suppress(Exception):  # the job imports the module again, and reports the error
        for name in imports:
            importlib.import_module(name)
    with receiver:
        try:
            job, arguments = receiver.recv()
        except EOFError:  # the API process ended
            return
    job(*arguments)


@contextlib.contextmanager
def worker_environment(threads: int | None, num_bytes: int) -> Iterator[None]:
    """Set the environment of a worker that starts meanwhile: the next model's may differ."""
    before = dict(os.environ)
    prepare_environment(threads, num_bytes)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys() - {"PYTHONSAFEPATH"}:
            del os.environ[name]
        os.environ.update(before)


def prepare_environment(threads: int | None, num_bytes: int = _LARGE) -> None:
    """Set the environment of a worker; variables that are set already are kept. num_bytes: of the model's weights.

    glibc returns large buffers to the kernel and faults them in again: without that, products run up to three times
    faster. In huge pages large weights are read 5 to 14 % faster.

    PYTHONSAFEPATH: `python -c`, with which multiprocessing starts processes, searches the working directory for
    modules. That may be a model's folder, and its code must not run.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(8 << 30))
    if num_bytes >= _LARGE:
        os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    set_spin_count(num_bytes)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def set_spin_count(num_bytes: int) -> None:
    """Set how long threads of a parallel loop wait by spinning; torch's library reads it when it is loaded.

    Next to a busy process a step took 312 ms, and 62 ms with waiters that sleep after 10,000 spins (a tenth of a
    millisecond). Small models wait for 1,000 spins, and lose half of their speed next to a busy process instead of two
    thirds.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000" if num_bytes >= _LARGE else "1000")
