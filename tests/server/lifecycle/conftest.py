"""A real server around the fake engine, for one test that changes or ends it."""

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer, running_server


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server() as server:
        server.wait_ready()
        yield server
