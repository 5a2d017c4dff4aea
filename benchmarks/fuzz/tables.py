"""Tables of malformed parts of requests: request lines, headers, bodies, lengths, chunks and paths.

Also the function that makes a plain request. `benchmarks.fuzz.attacks` combines the parts.
"""

import json


def request(
    path: str, content: bytes | None = None, *headers: str, method: str = "", version: str = "HTTP/1.1"
) -> bytes:
    """Return a plain request; with content it is a POST of JSON, its length announced unless the headers give one."""
    lines = ["Host: lightwell", *headers]
    if content is not None:
        named = {header.partition(":")[0].strip().lower() for header in headers}
        lines += ["Content-Type: application/json"] if "content-type" not in named else []
        if not named & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(content)}")
    method = method or ("GET" if content is None else "POST")
    head = "".join(f"{line}\r\n" for line in lines)
    return f"{method} {path} {version}\r\n{head}\r\n".encode("utf-8", "surrogateescape") + (content or b"")


VERSION = request("/version")

DEEP = 100_000
"""Levels of nesting."""

TLS_HELLO = bytes.fromhex(
    "16030100c8010000c40303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
) + bytes(160)


HEADER_LINES = (
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
)
"""Header lines between a good first line and the end of the head."""

ODD_HEADS = (
    b"GET /version HTTP/1.1\r\n\r\n",
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
    b"GET /version HTTP/1.1\r\nHost: x\r\n\n\r\n",
)
"""Whole requests without a body, with invalid lines, blanks and ends."""

BODIES = (
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
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"[" * DEEP + b"]" * DEEP,
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
"""Payloads that are sent as a body of JSON."""

CONTENT_HEADERS = (
    "Content-Type: application/json; charset=utf-16",
    "Content-Type: application/xml",
    "Content-Type: ",
    "Content-Encoding: gzip",
    "Content-Type: multipart/form-data; boundary=x",
    "Content-Encoding: br, gzip, gzip",
    "Content-Type: " + "a" * 9_000,
    "Content-Type: application/json, application/json",
    "Content-Type: application/json;" + ";" * 9_000,
)
"""Types and encodings that announce a body of another kind."""

LENGTHS = (
    ("Content-Length: 15", "Content-Length: 5"),
    ("Content-Length: 5", "Content-Length: 15"),
    ("Content-Length: 15, 5",),
    ("Content-Length: +15",),
    ("Content-Length: -15",),
    ("Content-Length: 0x10",),
    ("Content-Length: 1e2",),
    ("Content-Length: 15abc",),
    ("Content-Length: ",),
    ("Content-Length: 99999999999999999999999999",),
    ("Content-Length: 18446744073709551616",),
    ("Content-Length: 1 5",),
    ("Content-Length : 15",),
    ("Content-Length:\x0b15",),
)
"""Headers that give the length of the body of 15 bytes twice, or not in digits."""

ENCODINGS = (
    ("Transfer-Encoding: chunked", "Content-Length: 25"),
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
)
"""Headers that announce, or do not quite announce, that the body of 25 bytes is in chunks."""

CHUNKED_BODIES = (
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
)
"""Invalid bodies in chunks."""

GREETINGS = (
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
)
"""How clients of other protocols, and of other versions of this one, begin."""

METHODS = (
    "TRACE", "PROPFIND", "OPTIONS", "DELETE", "PATCH", "PUT", "get", "G", "M" * 10_000, "PO ST", "PURGE", "\xff",
)  # fmt: skip

PATHS = (
    "http://other/version", "https://user:key@other:99999/version", "//version", "///", "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd", "/web/../../app.py", "/web/x/..%2f..%2f..%2fapp.py", "/docs/..%2f..%2fcli.py",
    "/docs/%2e%2e/cli.py", "/docs/..\\cli.py", "/%00", "/version%00", "/version%0d%0aX: y", "/%ff%fe", "/%", "/%zz",
    "/v1/models/%2f%2e%2e", "/v1/models/" + "a/" * 5_000, "/v1/models/%F0%9F%92%A9/parameters",
    "/v1/models/x/geometry?tensor=../../x", "/?" + "a=b&" * 15_000, "/" + "a" * 60_000, "/" + "%41" * 20_000,
    "/version?" + "%00" * 100, "/version#fragment", "/version;param", "\\version", "version", "?", "*", "/ version",
    "/\x7f", "/\udcff", "/\u4e2d", "/v1/completions/", "/V1/COMPLETIONS", "/v1//completions",
    "/metrics?x=" + "y" * 10_000, "/health/../metrics", "/admin/state", "/openapi.json?x", "/.env", "/cgi-bin/x",
)  # fmt: skip
"""Targets of a request."""
