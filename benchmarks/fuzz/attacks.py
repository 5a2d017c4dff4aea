"""What is thrown at the server: requests as bytes, whole and broken in every way that parsers were ever broken with.

Knows the wire and a few of the server's routes; neither sends nor judges.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Attack:
    """Bytes for one connection."""

    group: str
    pieces: tuple[bytes, ...]
    """Sent one after the other, a moment apart."""
    ending: Literal["wait", "half-close", "reset"] = "wait"
    most_answers: int = 1
    """More would be answers to what was smuggled in."""
    pause: float = 0.0
    """Seconds between two pieces."""

    @property
    def shown(self) -> str:
        content = b"".join(self.pieces)
        return (
            f"{self.group} ({self.ending}): {content[:160]!r}{'...' if len(content) > 160 else ''} {len(content)} bytes"
        )


def request(
    path: str, content: bytes | None = None, *headers: str, method: str = "", version: str = "HTTP/1.1"
) -> bytes:
    """A plain request; with content a POST of JSON, its length announced unless the headers speak of it."""
    lines = ["Host: lightwell", *headers]
    if content is not None:
        named = {header.partition(":")[0].strip().lower() for header in headers}
        lines += ["Content-Type: application/json"] if "content-type" not in named else []
        if not named & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(content)}")
    method = method or ("GET" if content is None else "POST")
    head = "".join(f"{line}\r\n" for line in lines)
    return f"{method} {path} {version}\r\n{head}\r\n".encode("utf-8", "surrogateescape") + (content or b"")


TOKENIZE = request("/tokenize", b'{"prompt": "Once upon a time"}')
COMPLETION = request("/v1/completions", b'{"prompt": "Once", "max_tokens": 2}')
STREAM = request("/v1/completions", b'{"prompt": "Once", "max_tokens": 2, "stream": true}')
ATTENTION = request("/v1/attention", b'{"input": "Once upon", "layers": 0, "heads": 0}')
VERSION = request("/version")
VALID = (TOKENIZE, COMPLETION, STREAM, ATTENTION, VERSION)
JSON_ROUTES = ("/tokenize", "/v1/completions", "/v1/chat/completions", "/v1/attention", "/v1/embeddings", "/v1/trace")


def catalogue() -> Iterator[Attack]:
    """Every attack that needs no dice."""
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
    """Cut at every byte, by a client that ends its side there, or its whole connection."""
    for whole in (TOKENIZE, STREAM, VERSION):
        for end in range(len(whole)):
            yield Attack("truncated", (whole[:end],), "half-close")
            if end % 3 == 0:
                yield Attack("truncated", (whole[:end],), "reset")


def trickling() -> Iterator[Attack]:
    """Slowloris: a head, a body or a chunk that never ends; and a client that says nothing, or stops."""
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
    """Giant, many, empty, misspelt and folded headers; line ends and hosts of every kind."""
    line = b"GET /version HTTP/1.1\r\n"
    host = b"Host: x\r\n"
    for lines in (
        b"X: " + b"a" * (1 << 20) + b"\r\n",
        b"a" * (1 << 20) + b": 1\r\n",
        b"".join(b"x-%d: 1\r\n" % i for i in range(20_000)),
        b"X: " + b"a" * 60_000 + b"\r\n",
        b"x: 1\r\n" * 9_000,
        b"Cookie: " + b"a=b; " * 10_000 + b"\r\n",
        b"no colon\r\n",
        b": no name\r\n",
        b"space : 1\r\n",
        b" folded: 1\r\n",
        b"x: 1\r\n  2\r\n\t3\r\n",
        b"x: \x00\r\n",
        b"x: \x01\x7f\x80\xff\r\n",
        b"\xff\xfe: 1\r\n",
        b"x\x00y: 1\r\n",
        b"x: a\rb\r\n",
        b"x: a\nb\r\n",
        b"Host: y\r\n",
        b"Host:\r\n",
        b"Host: a b\r\n",
        b"Host: " + b"h" * 10_000 + b"\r\n",
        b"Authorization: Bearer " + b"k" * 50_000 + b"\r\n",
        b"Authorization: \xff\xff\r\n",
        b"Accept: " + b"*/*," * 10_000 + b"\r\n",
        b"Accept: ;;;q=\r\n",
        b"Accept-Encoding: gzip;q=nan\r\n",
        b"X-Request-Id: " + b"i" * 5_000 + b"\r\n",
        b"X-Request-Id: \xf0\x9f\r\n",
        b"traceparent: 00-zz-zz-zz\r\n",
        b"Connection: close, keep-alive, upgrade\r\n",
        b"Range: bytes=0-1,5-\r\n",
        b"If-None-Match: \xff\r\n",
        b"X-Request-Timeout: nan\r\n",
        b"X-Request-Timeout: -1\r\n",
        b"X-Forwarded-For: " + b"1," * 9_000 + b"\r\n",
    ):
        yield Attack("heads", (line + host + lines + b"\r\n",))
    for whole in (
        line + b"\r\n",
        b"GET /version HTTP/1.1\nHost: x\n\n",
        b"GET /version HTTP/1.1\rHost: x\r\r",
        b"\r\n\r\n\r\n" + VERSION,
        b"  " + VERSION,
        b"GET\t/version\tHTTP/1.1\r\n\r\n",
        b"GET  /version  HTTP/1.1\r\n\r\n",
        b"GET /version\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00" * 1000,
        b"\r\n" * 1000,
        b"GET /version HTTP/1.1\r\n" + host + b"\n\r\n",
    ):
        yield Attack("heads", (whole,))


def bodies() -> Iterator[Attack]:
    """JSON that is none, too deep, too large, not finite, said twice, not UTF-8."""
    deep = 100_000
    values = (
        b"",
        b" ",
        b"null",
        b"true",
        b"0",
        b'"text"',
        b"[]",
        b"{}",
        b"{",
        b"}",
        b'{"',
        b"{]",
        b"[" * deep,
        b'{"a":' * deep,
        b"[" * deep + b"]" * deep,
        b'{"prompt": NaN}',
        b'{"prompt": [NaN]}',
        b'{"prompt": "x", "input": "x", "top_p": Infinity}',
        b'{"prompt": "x", "temperature": -Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": [1e999]}',
        b'{"prompt": "x", "max_tokens": 1' + b"0" * 6_000 + b"}",
        b'{"prompt": "x", "seed": -1' + b"0" * 4_000 + b"}",
        b'{"prompt": [9223372036854775808]}',
        b'{"prompt": [-1]}',
        b'{"prompt": [1.5]}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"input": "a", "input": ["b"], "input": null}',
        b'\xef\xbb\xbf{"prompt": "bom"}',
        b'{"prompt": "\\ud800"}',
        b'{"input": "\\ud800\\ud800", "text": "\\udfff"}',
        b'{"prompt": "\\u0000"}',
        b'{"prompt": "\x00"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xc0\xaf"}',
        '{"prompt": "x"}'.encode("utf-16"),
        '{"prompt": "x"}'.encode("utf-32"),
        b'{"prompt": "x"} trailing',
        b'{"prompt": "x"}{"prompt": "y"}',
        b"// no\n{}",
        b"{'prompt': 'x'}",
        b'{"prompt": "\\x41"}',
        b'{"prompt": "line\nbreak"}',
        json.dumps({f"k{i}": i for i in range(50_000)}).encode(),
        json.dumps({"k" * (1 << 20): 1}).encode(),
        json.dumps({"prompt": "a" * (3 << 20), "input": "a" * (3 << 20)}).encode(),
        json.dumps({"prompt": [1] * 300_000, "input": [1] * 300_000}).encode(),
        b'{"prompt": "' + b"\\u00e9" * 100_000 + b'"}',
        json.dumps({"prompt": ["x"] * 5_000, "input": ["x"] * 5_000}).encode(),
        b'{"prompt": "x", "stop": [' + b'"a",' * 9_999 + b'"b"]}',
        b'{"__proto__": {"a": 1}, "prompt": {}}',
        b'{"prompt": {"$ref": "#"}}',
        b'{"prompt": [[[[1]]]]}',
        b"\x00" * 4096,
        json.dumps({"messages": [{"role": "user", "content": "{{ 9 ** 9 ** 9 }}"}] * 3, "max_tokens": 1}).encode(),
        json.dumps(
            {"messages": [{"role": "user", "content": "{% for i in range(10**9) %}x{% endfor %}"}], "max_tokens": 1}
        ).encode(),
    )
    for value in values:
        for path in JSON_ROUTES if len(value) < 1 << 16 else JSON_ROUTES[:2]:
            yield Attack("bodies", (request(path, value),))
    text = b'{"prompt": "x"}'
    for header in (
        "Content-Type: application/json; charset=utf-16",
        "Content-Type: application/xml",
        "Content-Type: ",
        "Content-Encoding: gzip",
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Encoding: br, gzip, gzip",
        "Content-Type: " + "a" * 9_000,
        "Content-Type: application/json, application/json",
        "Content-Type: application/json;" + ";" * 9_000,
    ):
        yield Attack("bodies", (request("/tokenize", text, header),))


SMUGGLED = b"GET /version HTTP/1.1\r\nHost: smuggled\r\n\r\n"


def lengths() -> Iterator[Attack]:
    """Two opinions of where a request ends, with another request behind: at most one answer may come."""
    text = b'{"prompt": "x"}'
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    for headers in (
        (f"Content-Length: {len(text)}", "Content-Length: 5"),
        ("Content-Length: 5", f"Content-Length: {len(text)}"),
        (f"Content-Length: {len(text)}, 5",),
        (f"Content-Length: +{len(text)}",),
        (f"Content-Length: -{len(text)}",),
        ("Content-Length: 0x10",),
        ("Content-Length: 1e2",),
        ("Content-Length: 15abc",),
        ("Content-Length: ",),
        ("Content-Length: 99999999999999999999999999",),
        ("Content-Length: 18446744073709551616",),
        ("Content-Length: 1 5",),
        (f"Content-Length : {len(text)}",),
        (f"Content-Length:\x0b{len(text)}",),
    ):
        yield Attack("lengths", (request("/tokenize", text, *headers) + SMUGGLED,))
    for headers in (
        ("Transfer-Encoding: chunked", f"Content-Length: {len(whole)}"),
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: identity",),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding:\x0bchunked",),
        ("Transfer-Encoding: chunked, chunked",),
        ("X: y\nTransfer-Encoding: chunked",),
        ('Transfer-Encoding: "chunked"',),
        ("Transfer-Encoding: chunked;q=1",),
    ):
        yield Attack("lengths", (request("/tokenize", whole, *headers) + SMUGGLED,), most_answers=2)
    yield Attack(
        "lengths", (request("/version", b"x" * 40, "Content-Length: 40", method="GET") + SMUGGLED,), most_answers=2
    )
    yield Attack("lengths", (request("/tokenize", text, "Transfer-Encoding: chunked", version="HTTP/1.0") + SMUGGLED,))


def chunks() -> Iterator[Attack]:
    """Chunked bodies with sizes, extensions and trailers as they must not be."""
    for body in (
        b"zz\r\nx\r\n0\r\n\r\n",
        b"-1\r\nx\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFF\r\nx\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nx\r\n",
        b"\r\n\r\n",
        b"5\r\nhelloworld\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5;" + b"e" * 100_000 + b"\r\nhello\r\n0\r\n\r\n",
        b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n',
        b"0\r\nTrailer: 1\r\n\r\n",
        b"0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\n\r\n0\r\n\r\n",
        b"5\r\nhel",
        b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n",
        b"00000000000000000000005\r\nhello\r\n0\r\n\r\n",
        b"7fffffff\r\n" + b"x" * 1000,
    ):
        yield Attack(
            "chunks", (request("/tokenize", body, "Transfer-Encoding: chunked"),), "half-close", most_answers=2
        )


TLS_HELLO = bytes.fromhex(
    "16030100c8010000c40303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
) + bytes(160)


def other_protocols() -> Iterator[Attack]:
    """Other versions of HTTP and other protocols altogether."""
    for whole in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        TLS_HELLO,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"EHLO example\r\n",
        b"\x05\x01\x00",
        b"*1\r\n$4\r\nPING\r\n",
        b"GET /\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
        b"GET /version HTTP/3.7\r\n\r\n",
        b"GET /version http/1.1\r\n\r\n",
        b"GET /version HTTP/1.10\r\n\r\n",
        b"GET /version HTTP/11\r\n\r\n",
        b"GET /version HTTP/1.\r\n\r\n",
        b"GET /version HTTP/-1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\x00\x00\x00\x10MQTT",
        request("/version", version="HTTP/1.0"),
        request("/version", None, "Connection: keep-alive", version="HTTP/1.0"),
        request("/tokenize", b'{"prompt": "x"}', version="HTTP/1.0"),
        request("/version", version="HTTP/2.0"),
        request(
            "/version", None, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"
        ),
        request(
            "/v1/completions",
            None,
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: eA==",
        ),
    ):
        yield Attack("other protocols", (whole,), "half-close")
    for method in (
        "TRACE",
        "PROPFIND",
        "OPTIONS",
        "DELETE",
        "PATCH",
        "PUT",
        "get",
        "G",
        "M" * 10_000,
        "PO ST",
        "PURGE",
        "\xff",
    ):
        yield Attack("methods", (request("/v1/completions", b'{"prompt": "x"}', method=method),))
    for target in ("CONNECT x:443", "OPTIONS *", "CONNECT /version"):
        method, _, path = target.partition(" ")
        yield Attack("methods", (request(path, method=method),), "half-close")


def paths() -> Iterator[Attack]:
    """Targets in other forms, and paths that mean to leave the server's folders."""
    for path in (
        "http://other/version",
        "https://user:key@other:99999/version",
        "//version",
        "///",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/web/../../app.py",
        "/web/x/..%2f..%2f..%2fapp.py",
        "/docs/..%2f..%2fcli.py",
        "/docs/%2e%2e/cli.py",
        "/docs/..\\cli.py",
        "/%00",
        "/version%00",
        "/version%0d%0aX: y",
        "/%ff%fe",
        "/%",
        "/%zz",
        "/v1/models/%2f%2e%2e",
        "/v1/models/" + "a/" * 5_000,
        "/v1/models/%F0%9F%92%A9/parameters",
        "/v1/models/x/geometry?tensor=../../x",
        "/?" + "a=b&" * 15_000,
        "/" + "a" * 60_000,
        "/" + "%41" * 20_000,
        "/version?" + "%00" * 100,
        "/version#fragment",
        "/version;param",
        "\\version",
        "version",
        "?",
        "*",
        "/ version",
        "/\x7f",
        "/\udcff",
        "/\u4e2d",
        "/v1/completions/",
        "/V1/COMPLETIONS",
        "/v1//completions",
        "/metrics?x=" + "y" * 10_000,
        "/health/../metrics",
        "/admin/state",
        "/openapi.json?x",
        "/.env",
        "/cgi-bin/x",
    ):
        yield Attack("paths", (request(path),))


def conversations() -> Iterator[Attack]:
    """Several requests on one connection, expectations, and ends in the middle."""
    yield Attack("pipelining", (VERSION * 50,), most_answers=50)
    yield Attack("pipelining", (COMPLETION + TOKENIZE + VERSION,), most_answers=3)
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
    """Valid requests with random bytes changed, cut, doubled, swapped or put in."""
    draw = random.Random(seed)
    spices = [
        b"\r\n",
        b"\n",
        b"\0",
        b"\xff",
        b"%00",
        b"\r\n\r\n",
        b":",
        b" ",
        b"chunked",
        b"-1",
        b"{",
        b'"',
        b"NaN",
        b"9" * 40,
    ]
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
        yield Attack("mutations", pieces, ending, most_answers=1_000)  # type: ignore[arg-type]  # one of the three
