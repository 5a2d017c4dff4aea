"""Compiled code is kept for the next start where there is room for it, and used all the same where there is none."""

import functools
import importlib.util
import logging
from typing import Any

logger = logging.getLogger(__name__)


def tolerate_full_disks() -> None:
    """Let numba, where it is there, go on when what it compiled cannot be written: it would raise, in the midst of a
    pass. Idempotent.
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
            save(self, signature, data)
        except OSError as error:
            logger.warning("compiled code is not kept for the next start: %s", error)

    caching.FunctionCache.save_overload = save_if_possible  # type: ignore[method-assign]
