"""Runs kernels at a level of CPU below the highest. Knows no kernel."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from model.kernels import library


@contextmanager
def at_level(level: str) -> Iterator[None]:
    """Run this process's kernels at a level, one of `levels()`, as LIGHTWELL_KERNEL_LEVEL has a new process do."""
    with patch.dict(os.environ, {library.LEVEL_VARIABLE: level}):
        library.kernels.cache_clear()
        try:
            yield
        finally:
            library.kernels.cache_clear()
