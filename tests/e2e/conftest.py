"""One server with the default model for all tests of this folder, and what to do when a program is missing."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes import Server, serve

ALL = bool(os.environ.get("TEST_TOOLS"))
"""Whether programs are installed first, as `make test-all` does: then a missing one is a failure, not a skip."""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serve(["--served-model-name", "fables"]) as running:
        yield running


@pytest.fixture
def program() -> Callable[[str, str], str]:
    """The path of a program that pip does not bring; skips, saying where to get it, unless `make test-all` runs."""

    def find(name: str, comes_from: str) -> str:
        if not ALL:
            pytest.skip(f"{name} is tried by `make test-all` (from {comes_from})")
        found = shutil.which(name)
        assert found, f"{name} is missing; it comes from {comes_from}"
        return found

    return find
