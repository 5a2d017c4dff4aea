"""Generators of attacks: valid and malformed requests as bytes, with the known weaknesses of HTTP parsers.

They use the HTTP format and a few of the server's routes. Other modules send the attacks and judge the answers.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.fuzz.tables import (
    BODIES,
    CHUNKED_BODIES,
    CONTENT_HEADERS,
    ENCODINGS,
    GREETINGS,
    HEADER_LINES,
    LENGTHS,
    METHODS,
    ODD_HEADS,
    PATHS,
    VERSION,
    request,
)


@dataclass(frozen=True)
class Attack:
    """Bytes for one connection."""

    group: str
    pieces: tuple[bytes, ...]
    """Pieces that are sent one after the other, a moment apart."""
    ending: Literal["wait", "half-close", "reset"] = "wait"
    most_answers: int = 1
    """Maximum number of answers; more would be answers to a smuggled request."""
    least_answers: int = 0
    """Fewest answers that must come, for requests that are all in order."""
    pause: float = 0.0
    """Seconds between two pieces."""

    @property
    def shown(self) -> str:
        content = b"".join(self.pieces)
        return (
            f"{self.group} ({self.ending}): {content[:160]!r}{'...' if len(content) > 160 else ''} {len(content)} bytes"
        )


TOKENIZE = request("/tokenize", b'{"prompt": "Once upon a time"}')
COMPLETION = request("/v1/completions", b'{"prompt": "Once", "max_tokens": 2}')
STREAM = request("/v1/completions", b'{"prompt": "Once", "max_tokens": 2, "stream": true}')
ATTENTION = request("/v1/attention", b'{"input": "Once upon", "layers": 0, "heads": 0}')
VALID = (TOKENIZE, COMPLETION, STREAM, ATTENTION, VERSION)
JSON_ROUTES = ("/tokenize", "/v1/completions", "/v1/chat/completions", "/v1/attention", "/v1/embeddings", "/v1/trace")


def catalogue() -> Iterator[Attack]:
    """Return every attack that needs no randomness."""
    yield from truncated()
    yield from trickling()
    yield from heads()
    yield from bodies()
    yield from lengths()
    yield from chunks()
    yield from other_protocols()
    yield from paths()
    yield from conversations()


def truncated() -> Iterator[Attack]:
    """Cut a request at every byte: the client closes its side or the whole connection."""
    for whole in (TOKENIZE, STREAM, VERSION):
        for end in range(len(whole)):
            yield Attack("truncated", (whole[:end],), "half-close")
            if end % 3 == 0:
                yield Attack("truncated", (whole[:end],), "reset")


def trickling() -> Iterator[Attack]:
    """Return Slowloris attacks: a head, a body or a chunk that never ends; and a client that sends nothing, or
    stops.
    """
    endless = tuple(f"x-{i}: 1\r\n".encode() for i in range(400))
    yield Attack("slowloris", (b"GET /version HTTP/1.1\r\nHost: x\r\n", *endless), pause=0.1)
    head = request("/tokenize", b"", "Content-Length: 100000")
    yield Attack("slowloris", (head, *[b"a"] * 400), pause=0.1)
    chunked = request("/tokenize", b"", "Transfer-Encoding: chunked")
    yield Attack("slowloris", (chunked, *[b"1\r\na\r\n"] * 400), pause=0.1)
    yield Attack("slowloris", (b"\r\n",) * 400, pause=0.1)
    for whole in (TOKENIZE, COMPLETION, VERSION):
        for end in (0, 1, 10, len(whole) // 2, len(whole) - 1):
            yield Attack("stopped", (whole[:end],))


def heads() -> Iterator[Attack]:
    """Return giant, many, empty, misspelt and folded headers; line ends and hosts of every kind."""
    line = b"GET /version HTTP/1.1\r\n"
    host = b"Host: x\r\n"
    for lines in HEADER_LINES:
        yield Attack("heads", (line + host + lines + b"\r\n",))
    for whole in ODD_HEADS:
        yield Attack("heads", (whole,))


def bodies() -> Iterator[Attack]:
    """Return bodies that are not JSON, too deep, too large, not finite, given twice, not UTF-8."""
    for value in BODIES:
        for path in JSON_ROUTES if len(value) < 1 << 16 else JSON_ROUTES[:2]:
            yield Attack("bodies", (request(path, value),))
    text = b'{"prompt": "x"}'
    for header in CONTENT_HEADERS:
        yield Attack("bodies", (request("/tokenize", text, header),))


SMUGGLED = b"GET /version HTTP/1.1\r\nHost: smuggled\r\n\r\n"


def lengths() -> Iterator[Attack]:
    """Yield requests with an ambiguous length, followed by another request: at most one answer is allowed."""
    text = b'{"prompt": "x"}'
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    for headers in LENGTHS:
        yield Attack("lengths", (request("/tokenize", text, *headers) + SMUGGLED,))
    for headers in ENCODINGS:
        yield Attack("lengths", (request("/tokenize", whole, *headers) + SMUGGLED,), most_answers=2)
    yield Attack(
        "lengths", (request("/version", b"x" * 40, "Content-Length: 40", method="GET") + SMUGGLED,), most_answers=2
    )
    yield Attack("lengths", (request("/tokenize", text, "Transfer-Encoding: chunked", version="HTTP/1.0") + SMUGGLED,))


def chunks() -> Iterator[Attack]:
    """Return chunked bodies with invalid sizes, extensions and trailers."""
    for body in CHUNKED_BODIES:
        yield Attack(
            "chunks", (request("/tokenize", body, "Transfer-Encoding: chunked"),), "half-close", most_answers=2
        )


def other_protocols() -> Iterator[Attack]:
    for whole in GREETINGS:
        yield Attack("other protocols", (whole,), "half-close")
    for method in METHODS:
        yield Attack("methods", (request("/v1/completions", b'{"prompt": "x"}', method=method),))
    for target in ("CONNECT x:443", "OPTIONS *", "CONNECT /version"):
        method, _, path = target.partition(" ")
        yield Attack("methods", (request(path, method=method),), "half-close")


def paths() -> Iterator[Attack]:
    for path in PATHS:
        yield Attack("paths", (request(path),))


def conversations() -> Iterator[Attack]:
    """Return several requests on one connection, expectations, and ends in the middle."""
    yield Attack("pipelining", (VERSION * 50,), most_answers=50, least_answers=50)
    yield Attack("pipelining", (COMPLETION + TOKENIZE + VERSION,), most_answers=3, least_answers=3)
    yield Attack("pipelining", (STREAM * 5,), "half-close", most_answers=5)
    yield Attack("pipelining", (VERSION * 2_000,), "reset", most_answers=2_000)
    yield Attack("pipelining", (request("/version", None, "Connection: close") + VERSION,))
    expecting = request("/tokenize", b'{"prompt": "x"}', "Expect: 100-continue")
    split = expecting.index(b"\r\n\r\n") + 4
    yield Attack("expectations", (expecting[:split], expecting[split:]), pause=0.2)
    yield Attack("expectations", (expecting,))
    yield Attack("expectations", (expecting[:split],))
    yield Attack("expectations", (request("/tokenize", b'{"prompt": "x"}', "Expect: a miracle"),))
    for whole in VALID:
        yield Attack("half-closed", (whole,), "half-close")
        yield Attack("reset", (whole,), "reset")
        yield Attack("byte by byte", tuple(bytes([byte]) for byte in whole), pause=0.001)


def mutations(seed: int, count: int) -> Iterator[Attack]:
    """Return valid requests with random bytes changed, cut, doubled, swapped or inserted."""
    draw = random.Random(seed)
    spices = [
        b"\r\n", b"\n", b"\0", b"\xff", b"%00", b"\r\n\r\n", b":", b" ", b"chunked", b"-1", b"{", b'"', b"NaN",
        b"9" * 40,
    ]  # fmt: skip
    for _ in range(count):
        content = bytearray(draw.choice(VALID))
        for _ in range(draw.choice((1, 1, 2, 3, 8, 30))):
            at = draw.randrange(len(content)) if content else 0
            end = min(len(content), at + draw.randrange(1, 12))
            match draw.randrange(5):
                case 0:
                    content[at:end] = bytes(draw.randrange(256) for _ in range(end - at))
                case 1:
                    del content[at:end]
                case 2:
                    content[at:at] = content[at:end]
                case 3:
                    content[at:at] = draw.choice(spices)
                case _:
                    content[at:end] = content[at:end][::-1]
        cut = draw.randrange(len(content) + 1)
        pieces = (bytes(content),) if draw.random() < 0.6 else (bytes(content[:cut]), bytes(content[cut:]))
        ending = draw.choices(("wait", "half-close", "reset"), (1, 8, 2))[0]
        yield Attack("mutations", pieces, ending, most_answers=1_000)  # one of the three
