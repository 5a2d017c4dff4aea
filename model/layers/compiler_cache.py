"""Compiled code is kept for the next start where there is room for it, and used all the same where there is none."""

import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_TURNS = "compiling.lock"
"""The file, in a folder of compiled code, of which processes lock a byte for each function that they compile."""

_OURS = Path(__file__).resolve().parents[1]


@functools.cache
def kernels_stamp() -> str:
    """Of all code that can be part of what numba compiles: the files of `model` that name numba."""
    contents = (path.read_bytes() for path in sorted(_OURS.rglob("*.py")))
    return hashlib.sha256(b"".join(content for content in contents if b"numba" in content)).hexdigest()


def tell_versions_apart() -> None:
    """Have numba compile our functions anew when any kernel has changed. By itself it looks at a function's own file,
    and goes on with what it compiled while a callee's file says something else by now: half of a new version would run,
    half of the old. Call before kernels are made. Idempotent.
    """
    from numba.core import caching

    stamp: Any = caching._SourceFileBackedLocatorMixin.get_source_stamp
    if hasattr(stamp, "__wrapped__"):
        return

    @functools.wraps(stamp)
    def stamp_with_callees(self: Any) -> Any:
        is_ours = Path(self._py_file).resolve().is_relative_to(_OURS)
        return (stamp(self), kernels_stamp()) if is_ours else stamp(self)

    caching._SourceFileBackedLocatorMixin.get_source_stamp = stamp_with_callees  # type: ignore[method-assign]


def tolerate_full_disks() -> None:
    """Let numba, where it is there, go on when what it compiled cannot be written: it would raise, in the midst of a
    pass. Processes that compile at once write one after the other: of two new versions of a function numba would give
    both the same file, and might run the one where the other is asked for. Idempotent.
    """
    if importlib.util.find_spec("numba") is None:
        return
    from numba.core import caching

    save: Any = caching.FunctionCache.save_overload
    if hasattr(save, "__wrapped__"):
        return

    @functools.wraps(save)
    def save_if_possible(self: Any, signature: Any, data: Any) -> None:
        try:
            with _locked(self.cache_path):
                save(self, signature, data)
        except OSError as error:
            logger.warning("compiled code is not kept for the next start: %s", error)

    caching.FunctionCache.save_overload = save_if_possible  # type: ignore[method-assign]


def compile_once() -> None:
    """Of processes that need the same function for the same types at once, let one compile it; the others wait, and
    load what it kept. Idempotent.

    Nobody waits in a ring: a process waits only for functions that are called by those whose turn it has.
    """
    if importlib.util.find_spec("numba") is None:
        return
    from numba.core.caching import FunctionCache
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_: Any = Dispatcher.compile
    if hasattr(compile_, "__wrapped__"):
        return

    @functools.wraps(compile_)
    def compile_in_turn(self: Any, signature: Any) -> Any:
        with global_compiler_lock:  # first: threads that had each other's turn and lock would wait for ever
            if not isinstance(self._cache, FunctionCache):
                return compile_(self, signature)
            with _turn(self._cache.cache_path, f"{self.py_func.__module__}.{self.py_func.__qualname__} {signature}"):
                return compile_(self, signature)

    Dispatcher.compile = compile_in_turn  # type: ignore[method-assign, assignment]


def do_without_blas() -> None:
    """Of numba: loading its first kernel it looks for scipy's, which takes a fifth of a second where scipy is there. No
    kernel of ours multiplies matrices by it. Idempotent.
    """
    if importlib.util.find_spec("numba") is None:
        return
    from numba.np import linalg

    def refuse() -> None:
        raise ImportError("no BLAS is wanted")

    linalg.ensure_blas = refuse


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Of all processes that lock this folder, one at a time."""
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _turn(folder: str, name: str) -> Iterator[None]:
    """Of all processes that ask for this name in this folder, one at a time; at once where nothing can be
    locked there.

    The locks are the process's, not the file's that is open: one it has it gets again, and all end with the process.
    """
    byte = zlib.crc32(name.encode())
    try:
        descriptor = _turns_of(folder)
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, byte)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


@functools.cache
def _turns_of(folder: str) -> int:
    """Open for as long as the process lives: closing any descriptor of the file would end all its locks."""
    os.makedirs(folder, exist_ok=True)
    return os.open(os.path.join(folder, _TURNS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
