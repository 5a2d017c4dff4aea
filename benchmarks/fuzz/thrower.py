"""Sender of attacks over raw sockets, and the checks of the answers.

The server must answer every attack or close the connection in bounded time. It must not return a status of 500 or
more, or more answers than requests, and each rejection must be a JSON error in the server's format.
"""

import asyncio
import contextlib
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.fuzz.attacks import Attack
from tests.support.processes import Server
from tests.support.wire import Wire

QUIET = 0.15
"""Seconds of silence after an answer that make it the last."""
TOGETHER = 24
"""Connections open at once."""
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
_LENGTH = re.compile(rb"(?im)^content-length: *(\d+)\r?$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding: *chunked\r?$")


@dataclass(frozen=True)
class Parsed:
    """The answers received on one connection."""

    statuses: tuple[int, ...]
    bodies: tuple[bytes, ...]
    rest: bytes
    """Bytes of an incomplete answer."""


@dataclass
class Verdicts:
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: list[str] = field(default_factory=list)


async def throw_all(server: Server, attacks: Iterable[Attack], bound: float) -> Verdicts:
    """Send all attacks, several at once. Each must be answered within `bound` seconds after its last byte."""
    verdicts, source = Verdicts(), iter(attacks)

    async def thrower() -> None:
        for attack in source:
            await _throw(server, attack, bound, verdicts)

    await asyncio.gather(*(thrower() for _ in range(TOGETHER)))
    return verdicts


async def _throw(server: Server, attack: Attack, bound: float, verdicts: Verdicts) -> None:
    began = time.monotonic()
    received = bytearray()
    wire = await Wire.open(server.host, server.port)
    try:
        async with asyncio.timeout(bound + attack.pause * len(attack.pieces)):
            # Both at once: an answer may come, and the connection end, while there is more to be sent.
            await asyncio.gather(_send(wire, attack), _receive(wire, attack, received))
    except TimeoutError:
        verdicts.wrong.append(f"no end within {bound:.0f} s of {attack.shown}: {bytes(received[:200])!r}")
    finally:
        wire.reset()
    verdicts.seconds[attack.group].append(time.monotonic() - began)
    parsed = parse(bytes(received))
    names = Counter(str(status) for status in parsed.statuses) or Counter({"closed": 1})
    verdicts.statuses[attack.group] += names
    verdicts.wrong += [f"{problem} after {attack.shown}" for problem in problems(attack, parsed)]


async def _send(wire: Wire, attack: Attack) -> None:
    with contextlib.suppress(OSError):  # the server may close while we send
        for piece in attack.pieces:
            wire.writer.write(piece)
            await wire.writer.drain()
            if attack.pause:
                await asyncio.sleep(attack.pause)
        if attack.ending == "half-close":
            wire.writer.write_eof()
        elif attack.ending == "reset":
            wire.reset()


async def _receive(wire: Wire, attack: Attack, received: bytearray) -> None:
    """Receive until the connection ends. After an answer without further data, close it from the client's side."""
    has_ended = attack.ending != "wait"
    with contextlib.suppress(OSError):
        while True:
            quiet = None if has_ended or not received else QUIET
            try:
                piece = await asyncio.wait_for(wire.reader.read(1 << 16), quiet)
            except TimeoutError:
                has_ended = len(parse(bytes(received)).statuses) >= max(1, attack.least_answers)
                if has_ended:
                    wire.writer.write_eof()
                continue
            if not piece:
                return
            received += piece


def parse(content: bytes) -> Parsed:
    """Parse the complete answers at the start of `content`; interim ones (1xx) are skipped."""
    statuses, bodies = [], []
    while match := _HEAD.match(content):
        status, headers, rest = int(match[1]), match[2], content[match.end() :]
        length = _LENGTH.search(headers)
        if status < 200:
            content = rest
            continue
        if _CHUNKED.search(headers):
            body, end = _unchunked(rest)
            if end is None:
                break
        else:
            end = int(length[1]) if length else 0
            body = rest[:end]
            if len(body) < end:
                break
        statuses.append(status)
        bodies.append(body)
        content = rest[end:]
    return Parsed(tuple(statuses), tuple(bodies), content)


def _unchunked(content: bytes) -> tuple[bytes, int | None]:
    """Return a chunked body and where it ends, or None if it does not."""
    body, at = b"", 0
    while (line := content.find(b"\r\n", at)) >= 0:
        size = int(content[at:line].partition(b";")[0], 16)
        body += content[line + 2 : line + 2 + size]
        at = line + 2 + size + 2
        if at > len(content):
            return body, None
        if not size:
            return body, at
    return body, None


def problems(attack: Attack, parsed: Parsed) -> list[str]:
    found = [f"status {status}" for status in parsed.statuses if status >= 500]
    if len(parsed.statuses) > attack.most_answers:
        found.append(f"{len(parsed.statuses)} answers {parsed.statuses}, at most {attack.most_answers}")
    if len(parsed.statuses) < attack.least_answers:
        found.append(f"{len(parsed.statuses)} answers {parsed.statuses}, {attack.least_answers} requests")
    if parsed.rest and attack.ending == "wait":
        found.append(f"an answer that is none, {parsed.rest[:120]!r},")
    for status, body in zip(parsed.statuses, parsed.bodies, strict=True):
        if status >= 400 and body and not _has_error_shape(body):
            found.append(f"{status} in another shape, {body[:120]!r},")
    return found


def _has_error_shape(body: bytes) -> bool:
    try:
        answer = json.loads(body)
        is_of_hugging_face = set(answer) == {"error", "error_type"} and isinstance(answer["error"], str)
        return is_of_hugging_face or set(answer["error"]) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False
