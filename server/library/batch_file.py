"""Batch files in OpenAI's format: a request on each line of the input, and its answer on the same line of the output.

Answers are written in the order of the input. So a job that ended at any moment continues after the complete lines, and
each request has exactly one answer.
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from lightwell.server.config.settings import Settings
from lightwell.server.http.exchange import Exchange, RequestHead
from lightwell.server.lifecycle.in_process import Application

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score",
    "/v1/classify",
)  # fmt: skip
"""Routes that a line may name."""
MAX_LINE = 32 << 20
"""Most bytes of a line of the input, as of a request's body."""
_ID = "batch_req_"
_ID_TYPES = (str, int, float)
_CONTENT_TYPE = (b"content-type", b"application/json")
_PAUSE = 0.05
"""Seconds until a request is sent again that found no room."""


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
    """Tokens of the answers of this run: generated ones, or the prompt's if nothing is generated."""


def run_file(settings: Settings, source: Path, target: Path, report: Callable[[Progress], None]) -> Progress:
    """Load the model, and answer the requests that have no answer yet. `report` is called after each.

    Raises BatchError for files that cannot be used, and for an output of another input, and ValueErrors of one line
    for a model that cannot be served.
    """
    with contextlib.ExitStack() as until_end:
        with _named_errors(source):
            if not source.is_file():
                raise BatchError(f"{source}: a file is accepted; it is read twice")
            progress = Progress(sum(1 for _ in _lines(source)))
        with _named_errors(target):
            output = until_end.enter_context(target.open("ab+"))
            if source.samefile(target):
                raise BatchError(f"{target} is the input; another file is accepted as the output")
            try:
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BatchError(f"{target}: another job writes to it") from None
            progress.num_done = _continue(output, source)
        application = until_end.enter_context(contextlib.closing(Application(settings)))
        report(progress)
        with _named_errors(target):
            application.result(_Job(application, output, progress, report).run(source, 4 * settings.max_num_seqs))
    return progress


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BatchError(f"{error.filename or path}: {error.strerror or error}") from error


class _Job:
    """One run over a file. All methods run in the thread of the routes."""

    def __init__(
        self, application: Application, output: BinaryIO, progress: Progress, report: Callable[[Progress], None]
    ) -> None:
        self._application = application
        self._output = output
        self._progress = progress
        self._report = report
        self._waiting: deque[tuple[int, asyncio.Task[bytes]]] = deque()
        self._num_bytes = 0
        """Bytes of the lines that are not answered yet."""

    async def run(self, source: Path, together: int) -> None:
        """Answer the lines that have no answer; at most `together` of them run at a time."""
        begin = self._progress.num_done
        try:
            for line in itertools.islice(_lines(source), begin, None):
                while self._waiting and (len(self._waiting) >= together or self._num_bytes > MAX_LINE):
                    await self._write_next()
                self._num_bytes += len(line)
                self._waiting.append((len(line), asyncio.create_task(self._answer(line))))
            while self._waiting:
                await self._write_next()
        finally:
            for _, task in self._waiting:
                task.cancel()

    async def _write_next(self) -> None:
        size, task = self._waiting[0]
        self._output.write(await task)
        self._output.flush()
        self._waiting.popleft()
        self._num_bytes -= size
        self._progress.num_done += 1
        self._report(self._progress)

    async def _answer(self, line: bytes) -> bytes:
        """Return the line of the output. Raises BatchError if the engine has ended."""
        answer: dict[str, Any] = {
            "id": f"{_ID}{uuid.uuid4().hex}", "custom_id": None, "response": None, "error": None
        }  # fmt: skip
        try:
            request = _read(line)
            answer["custom_id"] = request.get("custom_id")
            path, body = _checked(request)
            answer["response"] = await self._response(path, orjson.dumps(body))
            return orjson.dumps(answer) + b"\n"
        except (ValueError, TypeError) as error:  # orjson's errors are of both kinds
            self._progress.num_errors += 1
            answer |= {"response": None, "error": {"code": "invalid_request", "message": str(error)}}
            return orjson.dumps(answer) + b"\n"

    async def _response(self, path: str, body: bytes) -> dict[str, Any]:
        while True:
            exchange = Exchange(RequestHead("POST", path, path.encode(), b"", [_CONTENT_TYPE]), body)
            await self._application.begin(exchange)
            content = b"".join([piece async for piece in exchange])
            if exchange.status != HTTPStatus.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(_PAUSE)  # other lines of this job are in its way
        if exchange.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise BatchError(f"the engine cannot answer any more: {content[:200].decode(errors='replace')}")
        written = orjson.loads(content)
        self._progress.num_errors += exchange.status >= HTTPStatus.BAD_REQUEST
        self._progress.num_tokens += _num_tokens(written)
        request_id = dict(exchange.headers).get(b"x-request-id", b"").decode()
        return {"status_code": exchange.status, "request_id": request_id, "body": written}


def _read(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise ValueError(f"the line has more than {MAX_LINE} bytes")
    request = orjson.loads(line)
    if not isinstance(request, dict):
        raise ValueError("the line is no JSON object")
    custom_id = request.get("custom_id")
    if custom_id is not None and not isinstance(custom_id, _ID_TYPES):
        raise ValueError("custom_id: a string or a number is accepted")
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
    """Return the number of answers in the output, after removing one that an interrupted write left incomplete. Raises
    BatchError for an output that holds anything but the answers of this input.
    """
    output.seek(0)
    num_lines, end, begin = 0, 0, f'{{"id":"{_ID}'.encode()
    asked = _lines(source)
    while line := output.readline():
        request = next(asked, None)
        is_answer = line.startswith(begin[: len(line)]) and request is not None
        if not is_answer or (line.endswith(b"\n") and _custom_id(request or b"") != _custom_id(line)):
            raise BatchError(
                f"{output.name}: line {num_lines + 1} does not answer that line of {source}; an output of the same "
                "input, or a new file, is accepted"
            )
        if not line.endswith(b"\n"):
            break
        num_lines, end = num_lines + 1, end + len(line)
    output.truncate(end)
    output.seek(0, os.SEEK_END)
    return num_lines


def _custom_id(line: bytes) -> Any:
    try:
        found = orjson.loads(line).get("custom_id")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, _ID_TYPES) else None
