"""The server with the default model that tests of this folder share, and programs that pip does not install."""

import os
import shutil
from collections.abc import Callable

import pytest

from tests.support.processes import Server
from tests.support.shared import shared_server

ALL = bool(os.environ.get("TEST_TOOLS"))
"""Whether `make test-nightly` installed the programs: then a missing one is a failure, not a skip."""


@pytest.fixture(scope="session")
def server() -> Server:
    """The default model in float32: sums equal their terms to six digits. Other tests use the server meanwhile."""
    return shared_server("--served-model-name", "fables", "--dtype", "float32")


@pytest.fixture
def program() -> Callable[[str, str], str]:
    """Find the path of a program that pip does not install; skip the test without the tools of `make test-nightly`."""

    def find(name: str, comes_from: str) -> str:
        found = shutil.which(name)
        if not found and not ALL:
            pytest.skip(f"{name} is missing; it comes from {comes_from}")
        assert found, f"{name} is missing; it comes from {comes_from}"
        return found

    return find
