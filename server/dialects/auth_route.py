"""The first checks of every route: the key and its limits, then the body's size, type and encoding, all before
any parsing.

It is a route class rather than a middleware, so that it knows which routes are open, and so that `receive` stays the
server's own for code that watches it for a disconnect.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from lightwell.server.batches.runner import OWNER_IN_SCOPE
from lightwell.server.config.auth.keys import Keyring, KnownKey
from lightwell.server.config.auth.quotas import LimitReached
from lightwell.server.engine.memory.process_memory import give_back_memory
from lightwell.server.generation.prompts.text_parts import naming
from lightwell.server.http.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    PayloadTooLarge,
    RateLimited,
    Unauthorized,
    UnsupportedMediaType,
    shown,
)
from lightwell.server.http.json_reader import JsonReader
from lightwell.server.http.turns import FairTurns
from lightwell.server.observability.access_log import CLIENT_CLOSED_REQUEST, current_key, current_record
from lightwell.server.schemas.base import MAX_FIELDS

MAX_BODY_VALUES = 1 << 21
"""Most commas in a body; no request needs more."""
_SMALL_BODY = 1 << 18
_PARSERS = tuple((ThreadPoolExecutor(1, "parse"), FairTurns()) for _ in range(2))
"""Read bodies one after the other, one small bodies of at most `_SMALL_BODY` bytes and one larger ones: each computing
thread makes the event loop wait some milliseconds at every iteration, and the threads of all other work must stay free.
"""
_READ_AT_ONCE = 1 << 15
"""Most bytes of a body that is parsed in one go, on the event loop: some milliseconds, and fewer lists than a large
one has.
"""

_GIVE_BACK_AFTER = 0.5
"""Seconds from the end of an answer until freed memory is returned to the kernel."""
KEY_IN_SCOPE = "lightwell.key"
"""Key of the request's ApiKey in an ASGI scope; it is missing while the server is open to all."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OpenRoute(APIRoute):
    """A route without a key; a route for GET also answers HEAD (RFC 9110, 9.1), and the HTTP server drops the body."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(self._as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. Raises BadRequest for a query with more than MAX_FIELDS fields."""
        num_fields = 1 + scope["query_string"].count(b"&")
        if num_fields > MAX_FIELDS:
            message = f"The query has {num_fields} fields; at most {MAX_FIELDS} are accepted."
            raise BadRequest(message, code="invalid_value")
        try:
            with naming(None):
                await super().handle(self._as_get(scope), receive, send)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of a library's Rust code: no handler of errors would see it
            raise RuntimeError(f"a library panicked: {error}") from None

    def _as_get(self, scope: Scope) -> Scope:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD" and "GET" in (self.methods or ())
        return {**scope, "method": "GET"} if is_head else scope


def guarded_route(keys: Keyring, max_body_bytes: int) -> type[APIRoute]:
    """Return a class of routes that run only for requests with a valid key and a readable JSON body."""

    is_due = False

    def give_back() -> None:
        nonlocal is_due
        is_due = False
        asyncio.get_running_loop().run_in_executor(_PARSERS[0][0], give_back_memory)

    class GuardedRoute(OpenRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal is_due
            try:
                await self._handle(self._as_get(scope), receive, send)
            finally:
                if not is_due:  # small pieces of memory, of a body or an answer, are kept by the C library
                    is_due = True
                    asyncio.get_running_loop().call_later(_GIVE_BACK_AFTER, give_back)

        async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            known = None
            if scope["method"] in (
                self.methods or ()
            ):  # or 405 comes first: it reveals no more than the API's description
                known = check_key(scope, keys)
            if known is None:
                await super().handle(scope, receive, send)
                return
            record = current_record.get()
            if record is not None:
                record.key = known.key.name  # also in the log of refused requests
            scope[KEY_IN_SCOPE] = known.key
            self.check_right(known)
            is_background = OWNER_IN_SCOPE in scope
            try:
                await keys.begin(known, takes_tokens=self.body_field is not None, is_background=is_background)
            except LimitReached as error:
                raise RateLimited(str(error), code=error.code, retry_after=error.retry_after) from None
            if record is not None:
                record.use = known.use
            try:
                await super().handle(scope, receive, send)  # until the last byte of the answer is written
            finally:
                keys.end(known, is_background=is_background)

        def check_right(self, known: KnownKey) -> None:
            """Check whether this key may use this route: every key may."""

        def get_route_handler(self) -> Handler:
            self.strict_content_type = False  # `read_body` has checked it
            handle = super().get_route_handler()
            reads_body = self.body_field is not None

            async def guarded(request: Request) -> Response:
                if reads_body:
                    await read_body(request, max_body_bytes, self.body_field)
                return await handle(request)

            return guarded

    return GuardedRoute


def admin_route(keys: Keyring, max_body_bytes: int) -> type[APIRoute]:
    """Return a guarded route class for admin keys. While there are none, the route does not exist, so that no client
    can try keys on it.
    """

    class AdminRoute(guarded_route(keys, max_body_bytes)):  # type: ignore[misc]  # a class made for these keys
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            return super().matches(scope) if keys.has_admin else (Match.NONE, {})

        def check_right(self, known: KnownKey) -> None:
            if not known.key.is_admin:
                raise Forbidden(f"The API key {known.key.name!r} is not an admin key.", code="admin_key_needed")

    return AdminRoute


def check_key(scope: Scope, keys: Keyring) -> KnownKey | None:
    """Return the key in the headers, `Authorization` or else Anthropic's `x-api-key`, or None if the server is open to
    all. A row of a batch has its owner's key. Raises Unauthorized.
    """
    if keys.is_open:
        return None
    headers = Headers(scope=scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    # Header values reach us as latin-1, byte for byte.
    given = token.encode("latin-1", "replace").strip()
    owner = scope.get(OWNER_IN_SCOPE)
    known = keys.find(given) if owner is None else keys.owned_by(owner)
    if known is not None and not known.key.is_expired:
        return known
    problem = "The API key is wrong." if given else "An API key is needed."
    problem = "The API key has expired." if known is not None else problem
    code = "expired_api_key" if known is not None else "invalid_api_key"
    raise Unauthorized(f"{problem} Send it as: Authorization: Bearer KEY, or x-api-key: KEY.", code=code)


async def read_body(request: Request, max_bytes: int, field: Any = None) -> None:
    """Read the body into the request; a large one is also validated, as `field` of FastAPI has it.

    Raises UnsupportedMediaType, PayloadTooLarge, RequestValidationError, or BadRequest for broken UTF-8.
    """
    _check_content_type(request)
    encoding = request.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"Content-Encoding is {shown(encoding)}; a body without Content-Encoding is accepted.",
            code="unsupported_content_encoding",
        )
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(int(announced), max_bytes)
    chunks, size, num_commas = [], 0, 0
    try:
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(size, max_bytes)
            num_commas += chunk.count(b",")  # a little of the event loop's time with each chunk
            if num_commas > MAX_BODY_VALUES:
                raise PayloadTooLarge(
                    f"The body has more than {MAX_BODY_VALUES} commas, so parsing it would take too long; send fewer "
                    "or shorter inputs, and arrays as base64.",
                    code="body_too_large",
                )
    except ClientDisconnect:
        message = f"The client left after {size} bytes of its request's body."
        raise ApiError(CLIENT_CLOSED_REQUEST, message, "invalid_request_error", code="client_left") from None
    if not any(map(bytes.strip, chunks)):
        raise BadRequest("The body is empty; a JSON object is accepted.", code="json_invalid")
    # FastAPI finds the body where Request.body() keeps it, and the parsed value where Request.json() keeps that.
    if size > _READ_AT_ONCE:
        request._body = b"{}"  # never read
        parser, turns = _PARSERS[size > _SMALL_BODY]
        async with turns.turn(current_key(), size):
            run = partial(asyncio.get_running_loop().run_in_executor, parser)
            request._json = await run(_parse, chunks)
            if field is not None:  # FastAPI takes the model as it is
                model, errors = await run(partial(field.validate, request._json, loc=("body",)))
                if errors:
                    raise RequestValidationError(errors, body=request._json)
                request._json = model
        return
    request._body = body = b"".join(chunks)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _no_utf8(body[error.start], error.start) from None


def _check_content_type(request: Request) -> None:
    """Raise UnsupportedMediaType if the body may come from a page of another origin without a preflight.

    Browsers send a preflight if a page sends JSON, but not for a form, text/plain, or a Blob without a type (no
    Content-Type): these are rejected. Clients other than browsers may omit the type, and on Ollama's routes send any
    other, as `curl -d` does. Browsers are recognised by `Origin`, which they send with every POST by `fetch`,
    `sendBeacon` or a form, and by `Sec-Fetch-Site`, which they send with every request.
    """
    headers = request.headers
    content_type = headers.get("content-type")
    if "origin" not in headers and "sec-fetch-site" not in headers:
        if request.url.path.startswith("/api/"):
            MutableHeaders(raw=request.scope["headers"])["content-type"] = "application/json"  # FastAPI reads it
            return
        if content_type is None:
            return
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        got = shown(content_type) if content_type else "none"
        raise UnsupportedMediaType(
            f"Content-Type is {got}; application/json is accepted.", code="unsupported_media_type"
        )


def _parse(chunks: list[bytes]) -> Any:
    """Parse a large body without blocking the event loop for long. Joining the chunks takes 0.4 ms per MB."""
    body = b"".join(chunks)
    chunks.clear()
    reader = JsonReader(body, may_be_ids=_may_be_ids)
    try:
        return reader.read()
    except json.JSONDecodeError as error:
        told = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
        raise RequestValidationError([told]) from None
    except UnicodeDecodeError as error:
        raise _no_utf8(error.object[error.start], reader.position + error.start) from None
    except (RecursionError, ValueError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "There was an error parsing the body") from error


def _may_be_ids(names: Sequence[str]) -> bool:
    """Return whether a field may be of token ids: a field of the body, or an input of its interventions."""
    return len(names) == 1 or (len(names) == 3 and names[0] == "interventions" and names[2].endswith("input"))


def _no_utf8(byte: int, place: int) -> BadRequest:
    return BadRequest(
        f"The body is not UTF-8: byte {byte:#04x} at {place}; JSON in UTF-8 is accepted.", code="json_invalid"
    )


def _too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body has {size} bytes or more; at most {limit} are accepted (--max-body-bytes).", code="body_too_large"
    )
