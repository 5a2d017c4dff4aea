"""Runs kernels at a level of CPU below the highest. Knows no kernel."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from lightwell.model.kernels import library

each_level = pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=() if level in (library.levels()[0], library.levels()[-1]) else pytest.mark.nightly)
        for level in library.levels()
    ],
)
"""Runs a test at each compiled level: `make test` at the lowest and the highest."""

NOT_COMPILED = "this level is not compiled: `python model/kernels/build.py --all-levels` compiles every level"


@contextmanager
def at_level(level: str) -> Iterator[None]:
    """Run this process's kernels at one of `levels()`, like LIGHTWELL_KERNEL_LEVEL in a new process."""
    with patch.dict(os.environ, {library.LEVEL_VARIABLE: level}):
        library.kernels.cache_clear()
        try:
            yield
        finally:
            library.kernels.cache_clear()
