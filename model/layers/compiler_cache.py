"""Compiled code is kept for the next start where there is room for it, and used all the same where there is none."""

import fcntl
import functools
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)


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
