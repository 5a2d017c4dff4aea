"""httpx transports to the routes of this process: the Python client sends to them as to a server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import httpx

from lightwell.server.lifecycle.in_process import Application, Exchange, RequestHead

T = TypeVar("T")


def _head_of(request: httpx.Request) -> RequestHead:
    url = request.url
    return RequestHead(
        request.method,
        url.path,
        url.raw_path.partition(b"?")[0],
        url.query,
        [(name.lower(), value) for name, value in request.headers.raw],
    )


class LocalTransport(httpx.BaseTransport):
    """Requests of any thread, which waits for the answer."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        exchange = self._wait(self._application.open(_head_of(request), request.read()))
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_Body(self, exchange))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work in the routes' thread, which an interrupt of this thread cancels."""
        future: Future[T] = self._application.call(work)
        try:
            return future.result()
        except CancelledError:
            raise httpx.ReadError("the LLM was closed") from None
        except BaseException:
            future.cancel()
            raise


class _Body(httpx.SyncByteStream):
    def __init__(self, transport: LocalTransport, exchange: Exchange) -> None:
        self._transport = transport
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._transport._wait(self._exchange.read()):
            yield chunk

    def close(self) -> None:
        _leave(self._transport._application, self._exchange)


class AsyncLocalTransport(httpx.AsyncBaseTransport):
    """Requests of any event loop."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        opening = self._application.call(self._application.open(_head_of(request), await request.aread()))
        exchange = await asyncio.wrap_future(opening)
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_AsyncBody(self._application, exchange))


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, application: Application, exchange: Exchange) -> None:
        self._application = application
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await asyncio.wrap_future(self._application.call(self._exchange.read())):
            yield chunk

    async def aclose(self) -> None:
        _leave(self._application, self._exchange)


def _leave(application: Application, exchange: Exchange) -> None:
    async def leave() -> None:
        exchange.close()

    with contextlib.suppress(RuntimeError):  # it is closed, and the request with it
        application.call(leave())
