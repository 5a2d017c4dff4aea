"""Starts worker processes. Each waits for its job, so that the first one can import torch while the API process reads
the model's files.

It knows neither LitServe nor the engine, and imports the standard library only.
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

_IMPORTS = ("server.lifecycle.litserve_adapter", "torch", "server.engine.engine")
"""The modules that take longest to import: torch's library is read at the same time (`lightwell_command`)."""
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
        """Have the process run `job(*arguments)`, all of which are pickled, and then end."""
        with self._sender, contextlib.suppress(BrokenPipeError):  # it has ended, which its sentinel tells
            self._sender.send((job, arguments))
        return self.process


_early: list[WorkerProcess] = []


def start_early(threads: int | None, model: Path) -> None:
    """Start the first worker process before its job is known. model: its folder or GGUF file."""
    prepare_environment(threads, weight_bytes(model))
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
    return sum(file.stat().st_size for file in files if file.suffix in (".safetensors", ".bin", ".gguf"))


@contextlib.contextmanager
def without_stop_signals() -> Iterator[None]:
    """Block the stop signals: they end the API process, which lets its workers finish first.

    A process that starts meanwhile inherits the mask, so that Ctrl-C in the middle of its imports changes nothing.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        # multiprocessing would start it with the process, and unblock SIGINT and SIGTERM after that
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _wait_for_job(receiver: Connection, imports: Sequence[str]) -> None:
    gc.disable()  # until `freeze_garbage`: there is none in what imports make, a tenth of whose time it took
    with contextlib.suppress(ImportError):  # the job meets it again, and reports it
        for name in imports:
            importlib.import_module(name)
    with receiver:
        try:
            job, arguments = receiver.recv()
        except EOFError:  # the API process ended
            return
    job(*arguments)


def prepare_environment(threads: int | None, weight_bytes: int = _LARGE) -> None:
    """Set what a worker's environment must hold before it starts; what is already set is kept. `weight_bytes` is the
    size of its model's files.

    glibc gives large buffers back to the kernel and faults them in again, page by page; when configured not to, the
    same products run up to three times faster. Threads of a parallel loop wait for one another by spinning, which on a
    busy machine takes the core from the thread that is waited for: next to other busy processes a step took 312 ms, and
    62 ms with waiters that sleep after 10,000 spins (a tenth of a millisecond, which on a quiet machine costs nothing).
    Small models wait for shorter: with 1,000 spins they lose half or less next to a busy process where 10,000 lose two
    thirds, and on a quiet machine no more than the measurements vary. In huge pages, if the kernel has them on request,
    large weights are read 5 to 14 % faster, and a start takes a third of a second longer (glibc from 2.35 on; an older
    one ignores a name that it does not know).

    multiprocessing starts its processes as `python -c ...`, which searches the working directory for modules first.
    That may be a model's folder, whose code must not run: the variable makes Python leave it out (3.11 and later).
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(8 << 30))
    is_large = weight_bytes >= _LARGE
    if is_large:
        os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000" if is_large else "1000")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
