"""Makes bodies of JSON that are large within the limits: wide, deep, long and mixed, in every field of every route;
measures how long they make a neighbour's stream wait.

    python -m benchmarks.fuzz --shapes 40
"""

import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.support.processes import Server

ALLOWED = 0.05
"""Seconds that a stream may wait longer with a body than without it."""
ROUNDS = 5
"""Rounds with the body and without it, in turn; medians are compared."""
_HEADERS = {"content-type": "application/json"}
_STREAM = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
_MAX_BYTES = 32 << 20
_MAX_VALUES = 1 << 21
_MAX_DEPTH = 12_000
_SIZES = (1 << 18, 1 << 21, 1 << 23, _MAX_BYTES - 1000)
"""Approximate bytes of a value."""


@dataclass(frozen=True)
class Shape:
    """One request."""

    name: str
    path: str
    body: bytes
    together: int = 1
    """Connections that send it at once."""


def worst() -> Iterator[Shape]:
    """Return one of each shape that once held up streams for seconds."""
    part = b'{"type":"text","text":"a"}'
    message = b'{"role":"user","content":[' + b",".join([part] * 250) + b"]}"
    ids = b",".join([b"1234"] * (_MAX_VALUES - 10))
    yield Shape("parts", "/v1/chat/completions", b'{"messages":[' + b",".join([message] * 4096) + b"]}")
    yield Shape("objects", "/v1/completions", _with("metadata", b"[" + b",".join([b"{}"] * 1_500_000) + b"]"))
    yield Shape("lists", "/v1/completions", b'{"prompt":[' + b",".join([b"[]"] * 1_000_000) + b"]}")
    yield Shape("ids", "/v1/completions", b'{"prompt":[' + ids + b"]}")
    yield Shape("ids", "/v1/embeddings", b'{"input":[' + ids + b"]}")
    yield Shape("ids", "/detokenize", b'{"tokens":[' + ids[: 5 * 1_000_000 - 1] + b"]}")
    fields = b",".join(b'"n%d":1' % i for i in range(130_000))
    yield Shape("8 of many fields", "/v1/completions", _with("metadata", b"{" + fields + b"}"), together=8)
    many = b",".join([b"[" + b",".join([b"1234"] * 500) + b"]"] * 2048)
    yield Shape("lists of ids", "/v1/embeddings", b'{"input":[' + many + b"]}")


def drawn(seed: int, count: int, openapi: dict[str, Any], largest: int = _MAX_BYTES) -> Iterator[Shape]:
    """Return random shapes, of at most `largest` bytes: a value of some kind in a field of some route, known or not."""
    draw = random.Random(seed)
    fields = _fields(openapi)
    for _ in range(count):
        path = draw.choice(list(fields))
        field = draw.choice([*fields[path], "metadata", "nobody_knows"])
        kind = draw.choice(list(_KINDS))
        value = _KINDS[kind](draw, min(draw.choice(_SIZES), largest))
        yield Shape(f"{kind} in {field}", path, _with(field, value))


def _with(field: str, value: bytes) -> bytes:
    """Return a body that is in order except for this field."""
    needed = {name: value for name, value in (("prompt", b'"x"'), ("input", b'"x"')) if name != field}
    told = b",".join(b'"%s":%s' % (name.encode(), text) for name, text in needed.items())
    return b'{%s,"%s":%s}' % (told, field.encode(), value)


def _fields(openapi: dict[str, Any]) -> dict[str, list[str]]:
    """Return the fields of the body of each route that takes one."""
    found: dict[str, list[str]] = {}
    for path, methods in openapi["paths"].items():
        body = methods.get("post", {}).get("requestBody")
        if body is not None and "{" not in path:
            schema = body["content"]["application/json"]["schema"]
            named = schema.get("$ref", "").rpartition("/")[2]
            found[path] = list(openapi["components"]["schemas"].get(named, schema).get("properties", {}))
    return found


def _scalar(draw: random.Random) -> bytes:
    return draw.choice(
        (
            b"7",
            b"%d" % draw.randrange(50_000),
            b"-1",
            b"0.125",
            b"1e-400",
            b"null",
            b"true",
            b'""',
            b'"a"',
            b"{}",
            b"[]",
        )
    )


def _text(draw: random.Random, size: int) -> bytes:
    piece = draw.choice((b"a", b"\\n", b"\\u4e2d", b"\\ud83d\\ude00", "中".encode(), "😀".encode(), b"[{", b"a " * 9))
    return b'"' + piece * (size // len(piece)) + b'"'


def _wide(draw: random.Random, size: int) -> bytes:
    item = _scalar(draw)
    return b"[" + b",".join([item] * min(size // (len(item) + 1), _MAX_VALUES - 10)) + b"]"


def _object(draw: random.Random, size: int) -> bytes:
    count = min(size // 12, draw.choice((1_000, 100_000, _MAX_VALUES - 10)))
    value = _scalar(draw)
    return b"{" + b",".join(b'"n%d":%s' % (i, value) for i in range(count)) + b"}"


def _deep(draw: random.Random, size: int) -> bytes:
    depth = draw.choice((100, 400, _MAX_DEPTH))
    begin, end = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nest = begin * depth + b"1" + end * depth
    return b"[" + b",".join([nest] * draw.choice((1, max(1, min(size, 1 << 21) // len(nest))))) + b"]"


def _long(draw: random.Random, size: int) -> bytes:
    return draw.choice((_text(draw, size), b"1" * size, b"0." + b"3" * size, b" " * size + b"1"))


def _lists(draw: random.Random, size: int) -> bytes:
    length = draw.choice((2, 125, 1_000))
    item = b"[" + b",".join([b"1234"] * length) + b"]"
    return b"[" + b",".join([item] * max(1, min(size // len(item), _MAX_VALUES // (length + 1)))) + b"]"


def _mixed(draw: random.Random, size: int) -> bytes:
    count = draw.randrange(2, 12)
    kinds = draw.choices((_text, _wide, _object, _deep, _lists), k=count)
    return b"[" + b",".join(kind(draw, size // count) for kind in kinds) + b"]"


_KINDS: dict[str, Callable[[random.Random, int], bytes]] = {
    "wide": _wide,
    "object": _object,
    "deep": _deep,
    "long": _long,
    "lists": _lists,
    "mixed": _mixed,
}


def waiting_seconds(server: Server, shape: Shape) -> tuple[float, float, set[int]]:
    """Return the longest that a neighbour's stream waits for a piece with the body, and without one (medians), and
    the statuses that the body is answered with.
    """
    beside: list[float] = []
    without: list[float] = []
    statuses: set[int] = set()
    with _Neighbour(server) as neighbour:
        for _ in range(ROUNDS):
            neighbour.begin()
            began = time.monotonic()
            with ThreadPoolExecutor(shape.together) as pool:
                statuses.update(pool.map(lambda _: _answer(server, shape), range(shape.together)))
            took = time.monotonic() - began
            beside.append(neighbour.longest_wait())
            neighbour.begin()
            time.sleep(min(max(took, 0.3), 2.0))
            without.append(neighbour.longest_wait())
    return statistics.median(beside), statistics.median(without), statuses


def _answer(server: Server, shape: Shape) -> int:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    try:
        connection.request("POST", shape.path, shape.body, _HEADERS)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class _Neighbour:
    """A client that reads one stream after another, in a thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ends = threading.Event()
        self._since = 0.0
        self._last = 0.0
        self._longest = 0.0
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "_Neighbour":
        self._thread.start()
        while not self._last:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def begin(self) -> None:
        """Start to measure."""
        time.sleep(0.1)
        self._since, self._longest = time.perf_counter(), 0.0

    def longest_wait(self) -> float:
        """Return the longest time since `begin` between two pieces of a stream, in seconds."""
        time.sleep(0.1)
        return self._longest

    def _read(self) -> None:
        while not self._ends.is_set():
            connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=60)
            connection.request("POST", "/v1/completions", _STREAM, _HEADERS)
            answer = connection.getresponse()
            last = None
            while not self._ends.is_set() and (line := answer.readline()):
                if line.startswith(b"data"):
                    self._last = time.perf_counter()
                    if last is not None and last >= self._since:
                        self._longest = max(self._longest, self._last - last)
                    last = self._last
            connection.close()
