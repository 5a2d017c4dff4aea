"""A toy server, and both clients behind one interface, so that every behaviour is tested on each."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lightwell_client import AsyncClient, Client
from tests.client.wire_server import WireServer


class Asker:
    """Calls a method of the client under test and waits for its result; `collect` reads a stream to its end."""

    def __init__(self, kind: str, url: str, **settings: Any) -> None:
        self.client: Any = Client(url, **settings) if kind == "sync" else AsyncClient(url, **settings)
        self._runner = asyncio.Runner() if kind == "async" else None

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        result = getattr(self.client, method)(*args, **options)
        return result if self._runner is None else self._runner.run(result)

    def collect(self, method: str, *args: Any, into: list[Any] | None = None, **options: Any) -> list[Any]:
        """Return the chunks of a stream; they are also put into `into` one by one, for when it breaks off."""
        chunks: list[Any] = [] if into is None else into
        stream = getattr(self.client, method)(*args, **options)
        if self._runner is None:
            chunks.extend(stream)
            return chunks

        async def read() -> None:
            async for chunk in stream:
                chunks.append(chunk)

        self._runner.run(read())
        return chunks

    def close(self) -> None:
        self.call("close")
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(autouse=True)
def _no_figure_left() -> Iterator[None]:
    """pyplot keeps each figure, and warns of more than twenty in a process."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """The client under test: sync or async."""
    return str(request.param)


@pytest.fixture
def ask(kind: str, server: WireServer) -> Iterator[Asker]:
    asker = Asker(kind, server.url)
    yield asker
    asker.close()


@pytest.fixture
def client(server: WireServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
