"""The synchronous client's connection: sends the pure calls of _calls, retries, and reads answers.

clients/python/write_client.py writes this file from _async_connection.py: change that one.
"""

import random
import time
from collections.abc import Generator, Iterator
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


class Stream(Generic[T]):
    """The chunks of a streamed answer, as they come. Iterate over it once.

    The request is sent by the first step of the iteration. Leaving the `with` block, `close()`, or letting go of the
    stream ends the request on the server too, however far it has come.
    """

    def __init__(self, chunks: Generator[T, None, None]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the request. Closing it again does no harm."""
        self._chunks.close()


class Connection:
    """Sends calls to one server over persistent connections, and repeats safe calls."""

    def __init__(
        self,
        base_url: str = DEFAULT_BASE_URL,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float | httpx.Timeout | None = DEFAULT_TIMEOUT,
        max_retries: int = 2,
        http_client: httpx.Client | None = None,
    ) -> None:
        self._config = Config.build(base_url, api_key, model, timeout, max_retries, http_client)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(verify=tls_context(), limits=LIMITS)

    def __repr__(self) -> str:
        model = "" if self._config.model is None else f", model={self._config.model!r}"
        return f"{type(self).__name__}({self._config.root!r}{model})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Closing them again does no harm."""
        if self._owns_http:
            self._http.close()

    def _send(self, call: Call[T]) -> T:
        """Return the whole answer, parsed."""
        response = self._open(call)
        try:
            answer = Answer(response.status_code, response.headers, response.read())
        except httpx.HTTPError as error:
            raise failure_of(error) from error
        finally:
            response.close()
        return call.parse(answer)

    def _chunks(self, call: Call[T]) -> Generator[T, None, None]:
        """Yield the chunks of a stream, read to its end, so that the connection can be used again."""
        response = self._open(call)
        try:
            reader = EventReader(call.parse, response.headers.get("content-type", ""))
            try:
                for piece in response.iter_bytes():
                    yield from reader.feed(piece)
            except httpx.HTTPError as error:
                reader.finish(broken_by=error)
            else:
                reader.finish()
        finally:
            response.close()

    def _open(self, call: Call[Any]) -> httpx.Response:
        """Return the head of a successful answer, its body still to be read. After this no request is retried."""
        attempt = 0
        while True:
            try:
                return self._open_once(call)
            except LightwellError as failure:
                wait = self._config.retries.wait(attempt, failure, random.random())
                if wait is None:
                    raise
            time.sleep(wait)
            attempt += 1

    def _open_once(self, call: Call[Any]) -> httpx.Response:
        try:
            response = self._http.send(self._config.http_request(self._http, call), stream=True)
        except httpx.HTTPError as error:
            raise failure_of(error) from error
        if response.is_success or response.status_code in call.accepted:
            return response
        try:
            content = response.read()
        except httpx.HTTPError:
            content = b""  # the status says enough
        finally:
            response.close()
        raise error_of(Answer(response.status_code, response.headers, content), datetime.now(UTC))
