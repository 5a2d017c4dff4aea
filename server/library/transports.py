"""httpx transports to the routes of this process: the Python client sends to them as to a server.

httpx has ASGITransport, which collects a stream before it returns it, and runs the application in the caller's event
loop.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import httpx

from lightwell.server.http.exchange import Exchange, RequestHead
from lightwell.server.lifecycle.in_process import CLOSED, Application

T = TypeVar("T")


def _exchange_of(request: httpx.Request, body: bytes) -> Exchange:
    url = request.url
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return Exchange(RequestHead(request.method, url.path, url.raw_path.partition(b"?")[0], url.query, headers), body)


class LocalTransport(httpx.BaseTransport):
    """Requests of any thread, which waits for the answer."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _exchange_of(request, request.read())
        try:
            self._application.result(self._application.begin(exchange))
        except BaseException:
            self._application.leave(exchange)
            raise
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_Body(self._application, exchange))


class _Body(httpx.SyncByteStream):
    def __init__(self, application: Application, exchange: Exchange) -> None:
        self._application = application
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        try:
            while chunk := self._application.result(self._exchange.read()):
                yield chunk
        except ConnectionError as error:
            raise httpx.ReadError(str(error)) from error

    def close(self) -> None:
        self._application.leave(self._exchange)


class AsyncLocalTransport(httpx.AsyncBaseTransport):
    """Requests of any event loop."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _exchange_of(request, await request.aread())
        try:
            await _result(self._application, self._application.begin(exchange))
        except BaseException:
            self._application.leave(exchange)
            raise
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_AsyncBody(self._application, exchange))


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, application: Application, exchange: Exchange) -> None:
        self._application = application
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await _result(self._application, self._exchange.read()):
                yield chunk
        except ConnectionError as error:
            raise httpx.ReadError(str(error)) from error

    async def aclose(self) -> None:
        self._application.leave(self._exchange)


async def _result(application: Application, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine in the thread of the routes. Raises ConnectionError if `close` ended it."""
    if asyncio.get_running_loop() is application.loop:  # of `LLM.generate`, which would wake this loop by a socket
        return await work
    try:
        return await asyncio.wrap_future(application.call(work))
    except asyncio.CancelledError:
        if application.is_closed:
            raise ConnectionError(CLOSED) from None
        raise
