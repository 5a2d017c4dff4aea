"""A small real HTTP server that implements the HTTP API with a toy model, and fails on request.

It is independent of the client and of Lightwell's own server, so tests against it check the HTTP API itself.
"""

import base64
import contextlib
import json
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TEXT = " über den Bach: 🐟!"
"""The text that the toy model generates after every prompt."""


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    """The answer to give. With `pieces` the body is sent chunked, piece by piece."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] | None = None
    before_piece: Callable[[int], None] = lambda index: None
    """Called with the index of each piece before it is sent, and once after the last."""
    drop: bool = False
    """Whether to close the connection before the end of the answer; without a body and pieces, before its
    beginning.
    """


def events(*chunks: Any, done: bool = True) -> list[bytes]:
    """Return chunks as server-sent events, each a piece of its own."""
    lines = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return [*lines, b"data: [DONE]\n\n"] if done else lines


def event_stream(pieces: list[bytes], **how: Any) -> Reply:
    return Reply(headers={"Content-Type": "text/event-stream; charset=utf-8"}, pieces=pieces, **how)


def error(status: int, message: str, headers: dict[str, str] | None = None, **more: Any) -> Reply:
    body = {"error": {"message": message, "type": "test_error", "param": None, "code": None} | more}
    return Reply(status=status, body=body, headers=headers or {})


def completion_chunk(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None, "new_field": 1}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "toy", "choices": [choice]}


def chat_chunk(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "toy", "choices": [choice]}


USAGE = {"prompt_tokens": 3, "completion_tokens": len(TEXT), "total_tokens": 3 + len(TEXT)}


def toy_answer(seen: Seen) -> Reply:
    """Return the toy model's answer to any route."""
    body = seen.body or {}
    match seen.method, seen.path:
        case "POST", "/v1/completions" if body.get("stream"):
            chunks = [completion_chunk(letter) for letter in TEXT] + [completion_chunk("", "stop")]
            if body.get("stream_options", {}).get("include_usage"):
                chunks.append({"id": "cmpl-1", "created": 1, "model": "toy", "choices": [], "usage": USAGE})
            return event_stream(events(*chunks))
        case "POST", "/v1/completions":
            return Reply(body=completion_chunk(TEXT, "stop") | {"usage": USAGE})
        case "POST", "/v1/chat/completions" if body.get("stream"):
            chunks = [chat_chunk({"role": "assistant", "content": ""}), *(chat_chunk({"content": c}) for c in TEXT)]
            return event_stream(events(*chunks, chat_chunk({}, "stop")))
        case "POST", "/v1/chat/completions":
            choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
            return Reply(body={"id": "chat-1", "created": 1, "model": "toy", "choices": [choice], "usage": USAGE})
        case "POST", "/v1/embeddings":
            return Reply(body=toy_embeddings(body))
        case "POST", "/tokenize":
            ids = list(str(body.get("prompt") or body["messages"]).encode())
            strings = [chr(i) for i in ids]
            return Reply(body={"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": strings})
        case "POST", "/detokenize":
            return Reply(body={"prompt": bytes(body["tokens"]).decode()})
        case "GET", "/v1/models":
            model = {"id": "toy", "object": "model", "created": 1, "owned_by": "lightwell", "max_model_len": 512}
            return Reply(body={"object": "list", "data": [model]})
        case "GET", "/v1/capabilities":
            return Reply(body={"points": ["attn.hook_pattern"]})
        case "GET", "/version":
            return Reply(body={"version": "0.1.0"})
        case "GET", "/health/ready":
            return Reply(body={"status": "ready"})
    return error(404, f"no route {seen.method} {seen.path}")


def toy_embeddings(body: dict[str, Any]) -> dict[str, Any]:
    """Return [length, index] for each text; out of order, as the order is given by `index`."""
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    vectors = [(float(len(text)), float(index)) for index, text in enumerate(texts)]
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(struct.pack("<2f", *vector)).decode()
            if body.get("encoding_format") == "base64"
            else list(vector),
        }
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "model": "toy", "data": data[::-1], "usage": {"prompt_tokens": 3, "total_tokens": 3}}


class WireServer:
    """A server on a free loopback port until closed. Scripted replies go first, then the toy model answers."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.script: deque[Reply] = deque()
        self.broken_pipes = threading.Semaphore(0)
        """Released each time a client left before its answer was complete."""
        self.num_connections = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def will(self, *replies: Reply) -> None:
        """Answer the next requests with `replies`."""
        self.script.extend(replies)

    @property
    def paths(self) -> list[str]:
        return [seen.path for seen in self.seen]


class _Handler(BaseHTTPRequestHandler):
    owner: WireServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.owner.num_connections += 1
        super().setup()

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # clients of these tests leave as they like
            super().handle()

    def log_message(self, *_: object) -> None:
        """Send nothing."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(json.loads(content))

    def _answer(self, body: Any) -> None:
        seen = Seen(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        self.owner.seen.append(seen)
        reply = self.owner.script.popleft() if self.owner.script else toy_answer(seen)
        try:
            if reply.pieces is not None:
                self._send_pieces(reply)
            elif not (reply.drop and reply.body is None):
                self._send_whole(reply)
        except (BrokenPipeError, ConnectionResetError):
            self.owner.broken_pipes.release()
            reply.drop = True
        if reply.drop:
            self.close_connection = True

    def _send_whole(self, reply: Reply) -> None:
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json"} | reply.headers
        # A dropped answer promises more bytes than it sends.
        headers["Content-Length"] = str(len(content) + (10 if reply.drop else 0))
        self._send_head(headers)
        self.wfile.write(content)

    def _send_pieces(self, reply: Reply) -> None:
        assert reply.pieces is not None
        self.send_response(reply.status)
        self._send_head(reply.headers | {"Transfer-Encoding": "chunked"})
        for index, piece in enumerate(reply.pieces):
            reply.before_piece(index)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        reply.before_piece(len(reply.pieces))
        if not reply.drop:
            self.wfile.write(b"0\r\n\r\n")

    def _send_head(self, headers: dict[str, str]) -> None:
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
