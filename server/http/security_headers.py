"""Headers for browsers on every answer: no type guessing, frames, storage or referrers; and access for the pages of
other origins, none unless named (`--cors-origin`).

It is pure ASGI, so that `receive` remains the server's own. Headers that a route sets itself are kept.
"""

from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_EXPOSED = "x-request-id, request-id, retry-after"
_PREFLIGHT_SECONDS = "600"


class BrowserHeaders:
    """Wraps an ASGI application. Pages of `origins` may call it with any header; browsers never send keys on their own.

    A preflight request of another origin is answered by the application, which has no OPTIONS: 405, with nothing
    allowed.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope)
        origin = sent.get("origin", "")
        is_allowed = origin in self._origins

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if self._origins:
                    headers.add_vary_header("Origin")
                if is_allowed:
                    headers["access-control-allow-origin"] = origin
                    headers["access-control-expose-headers"] = _EXPOSED
            await send(message)

        if is_allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in sent:
            await _answer_preflight(sent.get("access-control-request-headers", ""), send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)


async def _answer_preflight(asked_headers: str, send: Send) -> None:
    headers = {
        "access-control-allow-methods": "GET, HEAD, POST, DELETE",
        "access-control-allow-headers": asked_headers,
        "access-control-max-age": _PREFLIGHT_SECONDS,
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if value]
    await send({"type": "http.response.start", "status": 204, "headers": raw})
    await send({"type": "http.response.body", "body": b""})
