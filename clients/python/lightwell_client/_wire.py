"""Addresses, headers and answers of all calls. It is pure; the network is in _client and
_async_client.
"""

import contextlib
import json
import os
import platform
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar

import httpx
from pydantic import BaseModel

from lightwell_client._exceptions import ERROR_OF_STATUS, ApiError, InvalidResponse, ServerError
from lightwell_client._retry import RetryPolicy, parse_retry_after
from lightwell_client._version import __version__

T = TypeVar("T")

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
"""Limits of the connections. Streams hold a connection each: the server's queue is the limit, not the client's pool."""
JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    """Header values by name, in any capitals if it is an httpx.Headers."""
    content: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Return the body as JSON.

        Raises:
            InvalidResponse: it is something else.
        """
        try:
            return json.loads(self.content)
        except ValueError as error:
            kind = self.media_type or "no content type"
            raise InvalidResponse(f"expected JSON, got {kind}: {_shortened(self.content)!r}") from error


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how its answer is read. In a stream, `parse` reads the data of one event."""

    method: str
    path: str
    parse: Callable[[Any], T]
    body: dict[str, Any] | None = None
    accept: str = JSON
    options: Mapping[str, Any] = field(default_factory=dict)
    """The caller's timeout and extra_headers."""
    accepted: frozenset[int] = frozenset()
    """Error statuses that are an answer here, not a failure."""


@dataclass(frozen=True, slots=True)
class Config:
    """A client's settings, computed once."""

    root: str
    """The server's address without a slash or /v1 at its end."""
    api_key: str | None = field(repr=False)
    model: str | None
    timeout: httpx.Timeout
    retries: RetryPolicy

    @classmethod
    def build(
        cls,
        base_url: str,
        api_key: str | None,
        model: str | None,
        timeout: float | httpx.Timeout | None,
        max_retries: int,
        http_client: httpx.Client | httpx.AsyncClient | None,
    ) -> "Config":
        """Build the settings from the arguments of a client; an `http_client` keeps its own timeout unless another is
        given.

        Raises:
            ValueError: `base_url` is no http(s) address, `max_retries` is negative.
        """
        if http_client is not None and timeout is DEFAULT_TIMEOUT:
            timeout = http_client.timeout
        return cls(normalise_base_url(base_url), api_key, model, httpx.Timeout(timeout), RetryPolicy(max_retries))

    def http_request(self, http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
        """Return the call as bytes and headers; what `http` adds to each request (cookies, headers of its own) stays.

        Raises:
            ValueError: the body contains values outside JSON, such as NaN.
        """
        headers = {"accept": call.accept, "user-agent": _user_agent()}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        headers.update(call.options.get("extra_headers") or {})
        timeout = httpx.Timeout(call.options["timeout"]) if "timeout" in call.options else self.timeout
        url = self.root + call.path
        try:
            return http.build_request(call.method, url, headers=headers, json=call.body, timeout=timeout)
        except ValueError as error:
            raise ValueError(f"the request holds NaN or infinity, which JSON cannot say: {error}") from None


@cache
def tls_context() -> ssl.SSLContext:
    """Return httpx's own context, made once per process: reading the certificates takes longer than most requests."""
    return httpx.create_ssl_context()


def normalise_base_url(base_url: str) -> str:
    """Return the address without a slash or /v1 at the end, so that either form of an OpenAI-style address works.

    Raises:
        ValueError: not an http or https address.
    """
    url = httpx.URL(base_url)
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"base_url is {base_url!r}; it must be an address like {DEFAULT_BASE_URL!r}")
    return base_url.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def error_of(answer: Answer, now: datetime) -> ApiError:
    """Return the exception for an error status. It reads the one error shape, and makes do with whatever else a
    proxy sends.
    """
    body: Any = None
    with contextlib.suppress(ValueError):
        body = json.loads(answer.content)
    error = body.get("error", body) if isinstance(body, dict) else body
    details = error if isinstance(error, dict) else {"message": error if isinstance(error, str) else None}
    message = details.get("message") or details.get("detail") or _shortened(answer.content) or "no message"
    kind = ERROR_OF_STATUS.get(answer.status, ServerError if answer.status >= 500 else ApiError)
    return kind(
        message if isinstance(message, str) else json.dumps(message),
        status=answer.status,
        type=details.get("type"),
        param=details.get("param"),
        code=details.get("code"),
        request_id=answer.headers.get("x-request-id"),
        retry_after=parse_retry_after(answer.headers.get("retry-after"), now),
    )


def plain(value: Any) -> Any:
    """Return `value` as JSON can express it: numpy arrays and numbers, ranges and other sequences become lists and
    numbers, a slice "start:end", and a message of an answer its original JSON.

    Raises:
        TypeError: JSON has no such value, or a slice has steps.
    """
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if isinstance(value, slice):
        if value.step not in (None, 1):
            raise TypeError(f"{value} has steps; a slice without them, or a list of indices, is accepted")
        ends = ":".join("" if end is None else str(int(end)) for end in (value.start, value.stop))
        return "all" if ends == ":" else ends
    if hasattr(value, "__array__") and not hasattr(value, "tolist"):  # a result, or an array with its axes
        value = value.__array__()
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, exclude_none=True)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    try:
        items = list(value)
    except TypeError:
        raise TypeError(f"{value!r} is nothing that a request can hold; texts, numbers, arrays and lists are") from None
    return [plain(item) for item in items]


def _shortened(content: bytes, limit: int = 200) -> str:
    return content[: limit * 4].decode(errors="replace")[:limit]


def _user_agent() -> str:
    return f"lightwell-client/{__version__} httpx/{httpx.__version__} Python/{platform.python_version()} {os.name}"
