"""The asynchronous client's connection, for asyncio: sends the pure calls of _calls, retries, and reads answers.

clients/python/write_client.py writes the synchronous client's connection from this file.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

import httpx

from lightwell_client._exceptions import LightwellError
from lightwell_client._stream import EventReader, failure_of
from lightwell_client._wire import (
    DEFAULT_BASE_URL,
    DEFAULT_TIMEOUT,
    LIMITS,
    Answer,
    Call,
    Config,
    error_of,
    tls_context,
)

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """The chunks of a streamed answer, as they come. Iterate over it once.

    The request is sent by the first step of the iteration. Leaving the `async with` block or `close()` ends the request
    on the server too, however far it has come.
    """

    def __init__(self, chunks: AsyncGenerator[T, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the request. Closing it again does no harm."""
        await self._chunks.aclose()


class AsyncConnection:
    """Sends calls to one server over persistent connections, and repeats safe calls."""

    def __init__(
        self,
        base_url: str = DEFAULT_BASE_URL,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float | httpx.Timeout | None = DEFAULT_TIMEOUT,
        max_retries: int = 2,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._config = Config.build(base_url, api_key, model, timeout, max_retries, http_client)
        self._owns_http = http_client is None
        self._http = http_client or httpx.AsyncClient(verify=tls_context(), limits=LIMITS)

    def __repr__(self) -> str:
        model = "" if self._config.model is None else f", model={self._config.model!r}"
        return f"{type(self).__name__}({self._config.root!r}{model})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing them again does no harm."""
        if self._owns_http:
            await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        """Return the whole answer, parsed."""
        response = await self._open(call)
        try:
            answer = Answer(response.status_code, response.headers, await response.aread())
        except httpx.HTTPError as error:
            raise failure_of(error) from error
        finally:
            await response.aclose()
        return call.parse(answer)

    async def _chunks(self, call: Call[T]) -> AsyncGenerator[T, None]:
        """Yield the chunks of a stream, read to its end, so that the connection can be used again."""
        response = await self._open(call)
        try:
            reader = EventReader(call.parse, response.headers.get("content-type", ""))
            try:
                async for piece in response.aiter_bytes():
                    for chunk in reader.feed(piece):
                        yield chunk
            except httpx.HTTPError as error:
                reader.finish(broken_by=error)
            else:
                reader.finish()
        finally:
            await response.aclose()

    async def _open(self, call: Call[Any]) -> httpx.Response:
        """Return the head of a successful answer, its body still to be read. After this no request is retried."""
        attempt = 0
        while True:
            try:
                return await self._open_once(call)
            except LightwellError as failure:
                wait = self._config.retries.wait(attempt, failure, random.random())
                if wait is None:
                    raise
            await asyncio.sleep(wait)
            attempt += 1

    async def _open_once(self, call: Call[Any]) -> httpx.Response:
        try:
            response = await self._http.send(self._config.http_request(self._http, call), stream=True)
        except httpx.HTTPError as error:
            raise failure_of(error) from error
        if response.is_success or response.status_code in call.accepted:
            return response
        try:
            content = await response.aread()
        except httpx.HTTPError:
            content = b""  # the status says enough
        finally:
            await response.aclose()
        raise error_of(Answer(response.status_code, response.headers, content), datetime.now(UTC))
