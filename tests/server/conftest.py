"""The application of most tests of the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.serving import Site, site


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Site]:
    """An application with the fake engine and no settings of its own."""
    async with site(tmp_path) as built:
        yield built
