"""One client of the soak: performs actions one after another and records the outcome of each request.

It only checks that a complete answer is the right one; other modules compare the outcomes.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.questions import Question, first_difference, meaning
from benchmarks.soak.acts import Act, Behaviour, Wrong, acts, content_of, headers_of, wrong_requests
from tests.support.processes import Server
from tests.support.wire import Head, Wire, WireError

PATIENCE = 120.0
"""Seconds after which a request counts as hung."""
_SLOW_SECONDS = 4.0
"""Seconds that a slow reader takes, about; at most PATIENCE."""
_LATEST_LEAVE = 0.6
_LONGEST_REST = 2.0
"""Maximum pause in seconds after a rejection with Retry-After."""
_LONGEST_IDLE = 1.0
"""Seconds after which an idle connection is not reused: the server closes idle ones, perhaps just as a request is
sent.
"""


@dataclass
class Outcome:
    """The outcome of one request, as its client got it. Times are on CLOCK_MONOTONIC."""

    request_id: str
    behaviour: Behaviour
    kind: str
    began: float
    path: str = ""
    ended: float = 0.0
    is_sent: bool = True
    """False if the client left before all of it was sent."""
    is_rude: bool = False
    status: int | None = None
    """The status, or None if no head came."""
    end: Literal["whole", "left", "broken"] = "broken"
    """`whole`: complete answer; `left`: the client disconnected; `broken`: the answer was cut off or hung."""
    error_code: str | None = None
    """The code of an error body, or of the error event that ended a stream; its type where it has no code."""
    finish: tuple[str, ...] = ()
    """The finish reasons of a complete answer's choices; empty for an answer without choices."""
    retry_after: float | None = None
    """Seconds of the Retry-After header."""
    expected_status: int = 200
    difference: str = ""
    """The difference between a complete answer and the idle server's."""
    note: str = ""


class Client:
    """Sends requests one after another; keeps its connection while both sides behave."""

    def __init__(
        self, server: Server, pool: Sequence[Question], expected: Sequence[object], note: Callable[[Outcome], None]
    ) -> None:
        self._server = server
        self._pool = pool
        self._contents = [content_of(question) for question in pool]
        self._expected = expected
        self._wrong = wrong_requests()
        self._note = note
        self._kept: Wire | None = None
        self._kept_at = 0.0

    async def run(self, seed: int, number: int, until: float) -> None:
        """Act until this moment (CLOCK_MONOTONIC)."""
        for count, act in enumerate(acts(seed, number, len(self._pool))):
            if time.monotonic() >= until:
                break
            outcome = await self.perform(act, f"soak-{number}-{count}")
            self._note(outcome)
            if outcome.retry_after is not None:
                await asyncio.sleep(min(outcome.retry_after, _LONGEST_REST))
        self._drop()

    async def perform(self, act: Act, request_id: str) -> Outcome:
        target: Question | Wrong = self._wrong[act.index] if act.behaviour == "wrong" else self._pool[act.index]
        kind = target.name if isinstance(target, Wrong) else target.kind
        outcome = Outcome(request_id, act.behaviour, kind, time.monotonic(), target.path, is_rude=act.is_rude)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._act(act, target, outcome)
        except TimeoutError:
            outcome.note = f"no end within {PATIENCE:.0f} s"
        except (WireError, OSError) as error:
            outcome.note = f"{type(error).__name__}: {error}"
        outcome.ended = time.monotonic()
        if act.behaviour in ("patient", "wrong"):
            self._kept_at = outcome.ended
        if outcome.end == "broken":
            self._drop()
        return outcome

    async def _act(self, act: Act, target: Question | Wrong, outcome: Outcome) -> None:
        if isinstance(target, Wrong):
            outcome.expected_status = target.status
            wire = await self._connection()
            await wire.send(target.method, target.path, target.content, _named(target.headers, outcome))
            await self._read(wire, None, outcome)
            return
        content, headers = self._contents[act.index], _named(headers_of(target), outcome)
        if act.behaviour == "patient":
            wire = await self._connection()
            await wire.send(target.method, target.path, content, headers)
            await self._read(wire, act.index, outcome)
            return
        async with self._own_connection(act) as wire:
            if act.behaviour == "leaves unsent":
                outcome.is_sent, outcome.end = False, "left"
                await wire.send_part(target.method, target.path, content, headers, act.patience)
                await asyncio.sleep(_LATEST_LEAVE * act.patience)
                return
            await wire.send(target.method, target.path, content, headers)
            if act.behaviour == "slow":
                await self._read(wire, act.index, outcome, slowness=act.patience)
            elif act.behaviour == "leaves early":
                outcome.end = "left"
                await asyncio.sleep(_LATEST_LEAVE * act.patience)
            else:
                head = await self._head(wire, outcome)
                await _read_some(wire, head, act)
                outcome.end = "left"

    async def _head(self, wire: Wire, outcome: Outcome) -> Head:
        head = await wire.read_head()
        outcome.status = head.status
        if "retry-after" in head.headers:
            outcome.retry_after = float(head.headers["retry-after"])
        answered = head.headers.get("x-request-id")
        if answered != outcome.request_id:
            outcome.note = f"the answer bears the id {answered}"
        return head

    async def _read(self, wire: Wire, index: int | None, outcome: Outcome, slowness: float | None = None) -> None:
        """Read the whole answer and compare it with the right one."""
        head = await self._head(wire, outcome)
        body = await (wire.read_body(head) if slowness is None else _read_slowly(wire, head, slowness))
        outcome.end = "whole"
        outcome.error_code = _error_code(head, body)
        if index is not None and outcome.status == 200 and outcome.error_code is None:
            try:
                answer = meaning(self._pool[index], body)
                outcome.finish = _finish_reasons(self._pool[index], answer)
            except (RuntimeError, ValueError, KeyError) as error:
                outcome.difference = f"unreadable: {error!r:.300}"
                return
            if answer != self._expected[index]:
                outcome.difference = first_difference(self._expected[index], answer)
        if head.headers.get("connection") == "close":
            self._drop()

    async def _connection(self) -> Wire:
        if time.monotonic() - self._kept_at > _LONGEST_IDLE:
            self._drop()
        if self._kept is None:
            self._kept = await Wire.open(self._server.host, self._server.port)
        return self._kept

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @contextlib.asynccontextmanager
    async def _own_connection(self, act: Act) -> AsyncIterator[Wire]:
        buffer = 1 << 12 if act.behaviour == "slow" else 1 << 16
        wire = await Wire.open(self._server.host, self._server.port, receive_buffer=buffer)
        try:
            yield wire
        finally:
            if act.is_rude and act.behaviour != "slow":
                wire.reset()
            else:
                wire.close()


def _named(headers: Mapping[str, str], outcome: Outcome) -> dict[str, str]:
    return {**headers, "X-Request-Id": outcome.request_id}


async def _read_slowly(wire: Wire, head: Head, slowness: float) -> bytes:
    """Read with pauses between the first pieces, so that the server has to wait for its reader."""
    pieces, rested, longest = [], 0.0, _SLOW_SECONDS * slowness
    async for piece in wire.pieces(head):
        pieces.append(piece)
        if rested < longest:
            rested += longest / 20
            await asyncio.sleep(longest / 20)
    return b"".join(pieces)


async def _read_some(wire: Wire, head: Head, act: Act) -> None:
    """Read the first pieces of the answer; all of it where there are no more."""
    count = 0
    async for _ in wire.pieces(head):
        count += 1
        if count > 12 * act.patience:
            break


def _error_code(head: Head, body: bytes) -> str | None:
    if head.status != 200:
        try:
            return _code(body)
        except (ValueError, KeyError, TypeError):
            return f"not the one shape: {body!r:.80}"
    before, marker, event = body.partition(b"event: error\ndata: ")
    if not marker or not (before.endswith(b"\n") or not before):
        return None
    return _code(event.partition(b"\n")[0])


def _code(content: bytes) -> str:
    error = json.loads(content)["error"]
    return str(error["code"] or error["type"])


def _finish_reasons(question: Question, answer: Any) -> tuple[str, ...]:
    """Return the finish reason of each choice, in an answer as `meaning` gives it."""
    if question.body.get("stream"):
        return tuple(str(reason) for _, reason in answer.values())
    choices = answer.get("choices", ()) if isinstance(answer, dict) else ()
    return tuple(str(choice["finish_reason"]) for choice in choices)
