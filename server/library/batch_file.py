"""Batch files in OpenAI's format: a request on each line of the input, and its answer on the same line of the output.

Answers are written in the order of the input. So the number of complete lines says where a job continues that ended at
any moment, and each request has exactly one answer.
"""

import asyncio
import contextlib
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from lightwell.server.config.settings import Settings
from lightwell.server.lifecycle.in_process import Application, RequestHead

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score",
    "/v1/classify",
)  # fmt: skip
"""Routes that a line may name."""
MAX_LINE = 32 << 20
"""Most bytes of a line of the input, as of a request's body."""
_UNAVAILABLE = 503


class BatchError(RuntimeError):
    """The job cannot begin or continue; the message is one line for the user."""


@dataclass(slots=True)
class Progress:
    """The state of a job."""

    num_lines: int
    """Requests of the input."""
    num_done: int = 0
    """Requests with an answer in the output, also from earlier runs."""
    num_errors: int = 0
    """Answers of this run that are errors."""
    num_tokens: int = 0
    """Tokens of the answers of this run: generated ones, or those of the prompt if nothing is generated."""


def run_file(settings: Settings, source: Path, target: Path, report: Callable[[Progress], None]) -> Progress:
    """Load the model, and answer the requests that have no answer yet. `report` is called after each.

    Raises BatchError for files that cannot be read or written, and for an output of another input, and ValueErrors of
    one line for a model that cannot be served.
    """
    together = 4 * settings.max_num_seqs
    try:
        progress = Progress(sum(1 for _ in _lines(source)))
        with target.open("ab+") as output:
            progress.num_done = _continue(output, source)
            with contextlib.closing(Application(settings)) as application:
                report(progress)
                running = application.call(_run(application, source, output, progress, together, report))
                try:
                    running.result()
                except BaseException:
                    running.cancel()
                    raise
    except OSError as error:
        raise BatchError(f"{error.filename or target}: {error.strerror}") from error
    return progress


async def _run(
    application: Application,
    source: Path,
    output: BinaryIO,
    progress: Progress,
    together: int,
    report: Callable[[Progress], None],
) -> None:
    waiting: deque[asyncio.Task[bytes]] = deque()
    try:
        for number, line in enumerate(_lines(source)):
            if number < progress.num_done:
                continue
            if len(waiting) == together:
                await _write(waiting.popleft(), output, progress, report)
            waiting.append(asyncio.create_task(_answer(application, line, progress)))
        while waiting:
            await _write(waiting.popleft(), output, progress, report)
    finally:
        for task in waiting:
            task.cancel()


async def _write(
    task: "asyncio.Task[bytes]", output: BinaryIO, progress: Progress, report: Callable[[Progress], None]
) -> None:
    output.write(await task)
    output.flush()
    progress.num_done += 1
    report(progress)


async def _answer(application: Application, line: bytes, progress: Progress) -> bytes:
    """Return the line of the output. Raises BatchError if the engine has ended."""
    answer: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": None, "response": None, "error": None}
    try:
        request = _read(line)
        answer["custom_id"] = request.get("custom_id")
        path, body = _checked(request)
    except ValueError as error:
        progress.num_errors += 1
        answer["error"] = {"code": "invalid_request", "message": str(error)}
        return orjson.dumps(answer) + b"\n"
    head = RequestHead("POST", path, path.encode(), b"", [(b"content-type", b"application/json")])
    exchange = await application.open(head, orjson.dumps(body))
    content = b"".join([piece async for piece in exchange])
    headers = dict(exchange.headers)
    if exchange.status == _UNAVAILABLE:
        raise BatchError(f"the engine cannot answer any more: {content[:200].decode(errors='replace')}")
    progress.num_errors += exchange.status >= 400
    written = orjson.loads(content)
    progress.num_tokens += _num_tokens(written)
    request_id = headers.get(b"x-request-id", b"").decode()
    answer["response"] = {"status_code": exchange.status, "request_id": request_id, "body": written}
    return orjson.dumps(answer) + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise ValueError(f"the line has more than {MAX_LINE} bytes")
    request = orjson.loads(line)
    if not isinstance(request, dict):
        raise ValueError("the line is no JSON object")
    return request


def _checked(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the route and the body of a request. Raises ValueError."""
    path, body = request.get("url"), request.get("body")
    if request.get("method", "POST") != "POST":
        raise ValueError(f"method: {request['method']!r:.100}; 'POST' is accepted")
    if path not in PATHS:
        raise ValueError(f"url: {path!r:.100}; accepted: {', '.join(PATHS)}")
    if not isinstance(body, dict):
        raise ValueError(f"body: {body!r:.100}; an object is accepted")
    if body.get("stream"):
        raise ValueError("body.stream: a batch writes whole answers; false is accepted")
    return path, body


def _num_tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0
    found = usage.get("completion_tokens") or usage.get("output_tokens") or usage.get("total_tokens") or 0
    return int(found)


def _lines(source: Path) -> Iterator[bytes]:
    """Yield the lines that are not blank; of a longer one than MAX_LINE, its beginning."""
    with source.open("rb") as file:
        while line := file.readline(MAX_LINE + 1):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE)
            if line.strip():
                yield line


def _continue(output: BinaryIO, source: Path) -> int:
    """Return the number of answers in the output, after removing one that an interrupted write left incomplete."""
    output.seek(0)
    num_lines, end, last = 0, 0, b""
    for line in output:
        if not line.endswith(b"\n"):
            break
        num_lines, end, last = num_lines + 1, end + len(line), line
    output.truncate(end)
    output.seek(0, os.SEEK_END)
    if num_lines:
        asked = next((line for number, line in enumerate(_lines(source), 1) if number == num_lines), b"")
        if _custom_id(asked) != _custom_id(last):
            raise BatchError(
                f"{output.name}: line {num_lines} has the custom_id {_custom_id(last)!r:.100}, and that line of "
                f"{source} has {_custom_id(asked)!r:.100}; an output of the same input, or a new file, is accepted"
            )
    return num_lines


def _custom_id(line: bytes) -> Any:
    try:
        return orjson.loads(line).get("custom_id")
    except (ValueError, AttributeError):
        return None
