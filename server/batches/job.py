"""One run over the lines of a batch file.

Answers are written in the order of the input. So a job that ended at any moment continues after the complete lines, and
each request has exactly one answer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from lightwell.server.batches.lines import MAX_LINE, answer_line, checked, parse
from lightwell.server.http.exchange import Exchange, RequestHead

_CONTENT_TYPE = (b"content-type", b"application/json")
_GROUP_BYTES = 1 << 18
_GROUP_LINES = 64


class Reply(NamedTuple):
    """The answer of a route."""

    status: int
    headers: dict[bytes, bytes]
    content: bytes


Send = Callable[[str, bytes], Awaitable[Reply]]
"""Sends a body to a route. It may raise BatchError: the job cannot continue."""
Write = Callable[[bytes], Awaitable[None]]
"""Writes complete lines to the output."""


@dataclass(slots=True)
class Progress:
    """The state of a job."""

    num_lines: int
    """Requests of the input."""
    num_done: int = 0
    """Requests with an answer in the output, also from earlier runs."""
    num_errors: int = 0
    """Answers that are errors: of this run, or of all runs."""
    num_tokens: int = 0
    """Tokens of the answers of this run: generated ones, or the prompt's if nothing is generated."""


async def exchange_with(begin: Callable[[Exchange], Awaitable[None]], path: str, body: bytes, **marks: Any) -> Reply:
    """Return a route's answer. begin: gives an application the request; marks: entries of its ASGI scope."""
    exchange = Exchange(RequestHead("POST", path, path.encode(), b"", [_CONTENT_TYPE]), body, marks)
    await begin(exchange)
    content = b"".join([piece async for piece in exchange])
    return Reply(exchange.status, dict(exchange.headers), content)


class _Answer(NamedTuple):
    line: bytes
    is_error: bool
    num_tokens: int = 0


class Job:
    """One run over a file. All methods run in the event loop of the routes."""

    def __init__(self, send: Send, write: Write, progress: Progress, report: Callable[[Progress], None]) -> None:
        """report: called with `progress` after each write."""
        self._send = send
        self._write = write
        self._progress = progress
        self._report = report
        self._waiting: deque[tuple[int, asyncio.Task[_Answer]]] = deque()
        self._num_bytes = 0
        """Bytes of the lines that run, and of the answers that are not written yet."""

    async def run(self, lines: Iterator[bytes], together: Callable[[], int]) -> None:
        """Answer the lines; `together` returns how many may run at a time. Threads read the lines."""
        groups = _groups(lines)
        try:
            while group := await asyncio.to_thread(next, groups, ()):
                for line in group:
                    while self._waiting and (len(self._waiting) >= together() or self._num_bytes > MAX_LINE):
                        await self._write_next()
                    self._num_bytes += len(line)
                    self._waiting.append((len(line), asyncio.create_task(self._answer(line))))
                    await asyncio.sleep(0)  # other requests run between two lines
            while self._waiting:
                await self._write_next()
        finally:
            tasks = [task for _, task in self._waiting]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_next(self) -> None:
        """Write the first answer, and those after it that are there."""
        answers = [await self._waiting[0][1]]
        for _, task in list(self._waiting)[1:]:
            if not task.done() or task.exception() is not None:
                break
            answers.append(task.result())
        await self._write(b"".join([answer.line for answer in answers]))
        for answer in answers:
            self._num_bytes -= self._waiting.popleft()[0] + len(answer.line)
            self._progress.num_done += 1
            self._progress.num_errors += answer.is_error
            self._progress.num_tokens += answer.num_tokens
        self._report(self._progress)

    async def _answer(self, line: bytes) -> _Answer:
        answer = await self._answer_to(line)
        self._num_bytes += len(answer.line)
        return answer

    async def _answer_to(self, line: bytes) -> _Answer:
        """Return the answer of a line. Raises what `send` raises."""
        custom_id = None
        try:
            request = parse(line)
            custom_id = request.get("custom_id")
            path, body = checked(request)
            content = orjson.dumps(body)
        except (ValueError, TypeError) as error:  # orjson's errors are of both kinds
            return _Answer(answer_line(custom_id, None, "invalid_request", str(error)), is_error=True)
        status, headers, content = await self._send(path, content)
        written = orjson.loads(content)
        request_id = headers.get(b"x-request-id", b"").decode()
        response = {"status_code": status, "request_id": request_id, "body": written}
        return _Answer(answer_line(custom_id, response), status >= HTTPStatus.BAD_REQUEST, _num_tokens(written))


def _groups(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    num_bytes = 0
    for line in lines:
        group.append(line)
        num_bytes += len(line)
        if num_bytes >= _GROUP_BYTES or len(group) >= _GROUP_LINES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _num_tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0
    found = usage.get("completion_tokens") or usage.get("output_tokens") or usage.get("total_tokens") or 0
    return int(found)
