"""Connection of the terminal's commands to a server: JSON requests and streamed answers."""

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib import error, request
from urllib.parse import urlsplit

from lightwell.server.terminal.command_errors import CommandError, UsageError

_TIMEOUT = 600.0
"""Seconds without a byte of the answer."""


class Connection:
    """An OpenAI-compatible server at an address, with or without /v1 at its end."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = (url if "//" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"URL {url!r:.200} is not valid; an address such as http://127.0.0.1:8000 is accepted")
        key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                "the API key contains a character that is not allowed in a header; printable ASCII is accepted"
            )
        # A proxy cannot reach this machine's own addresses.
        is_here = urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        self._opener = request.build_opener(*([request.ProxyHandler({})] if is_here else []))
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON answer to a POST of the body, or to a GET. Raises CommandError."""
        with self._open(path, body) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer. Raises CommandError, also for an error inside the stream."""
        with self._open(path, body | {"stream": True, "stream_options": {"include_usage": True}}) as answer:
            for line in answer:
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    event = json.loads(data)
                    if "error" in event:
                        raise CommandError(f"{self.url}{path}: {_reason(data)}")
                    yield event

    def model(self) -> str:
        """Return the name of the server's first model. Raises CommandError."""
        names = [str(model["id"]) for model in self.ask("/v1/models").get("data") or []]
        if not names:
            raise CommandError(f"{self.url} serves no model")
        return names[0]

    @contextlib.contextmanager
    def _open(self, path: str, body: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._opener.open(request.Request(self.url + path, data, self._headers), timeout=_TIMEOUT) as answer:
                yield answer
        except error.HTTPError as refusal:
            raise CommandError(f"{self.url}{path}: {refusal.code} {_reason(refusal.read())}", refusal.code) from None
        except (OSError, ValueError, http.client.HTTPException) as failure:
            raise CommandError(f"{self.url}{path}: {failure}") from failure


def _reason(raw: bytes) -> str:
    try:
        problem = json.loads(raw)["error"]
        return str(problem["message"] if isinstance(problem, dict) else problem)
    except (ValueError, KeyError, TypeError):
        return raw[:500].decode(errors="replace")
