"""Threads of the kernels' tests."""

from collections.abc import Iterator

import pytest

from lightwell.model.kernels import library


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Begin each test with two threads, and restore the number of threads afterwards."""
    before = library.num_threads()
    library.set_num_threads(2)
    yield
    library.set_num_threads(before)
