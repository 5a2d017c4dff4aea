"""Lines of batch files in OpenAI's format: a request on each line of the input, its answer in the output."""

import uuid
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, BinaryIO, NamedTuple

import orjson

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank", "/v1/score",
    "/v1/classify",
)  # fmt: skip
"""Routes that a line may name."""
MAX_LINE = 32 << 20
"""Most bytes of a line of the input, as of a request's body."""
_ID = "batch_req_"
_ID_TYPES = (str, int, float)


class BatchError(RuntimeError):
    """The job cannot begin or continue; the message is one line for the user."""


class BatchRequest(NamedTuple):
    """The request of one line."""

    path: str
    body: dict[str, Any]


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines that are not blank; of a longer one than MAX_LINE, its beginning."""
    while line := file.readline(MAX_LINE + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE)
        if line.strip():
            yield line


def parse(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises ValueError or TypeError."""
    if len(line) > MAX_LINE:
        raise ValueError(f"the line has more than {MAX_LINE} bytes")
    request = orjson.loads(line)
    if not isinstance(request, dict):
        raise ValueError("the line is not a JSON object")
    custom_id = request.get("custom_id")
    if custom_id is not None and not isinstance(custom_id, _ID_TYPES):
        raise ValueError("custom_id: a string or a number is accepted")
    return request


def checked(request: dict[str, Any]) -> BatchRequest:
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
    return BatchRequest(path, body)


def answer_line(
    custom_id: object, response: dict[str, Any] | None, code: str | None = None, message: str = ""
) -> bytes:
    """Return a line of the output: a response, or the error that took its place."""
    error = None if code is None else {"code": code, "message": message}
    answer = {"id": f"{_ID}{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(answer) + b"\n"


def is_failure(line: bytes) -> bool:
    """Return whether a line of the output holds an error."""
    answer = orjson.loads(line)
    return answer["error"] is not None or answer["response"]["status_code"] >= HTTPStatus.BAD_REQUEST


def custom_id_of(line: bytes) -> Any:
    """Return the custom id of a line, or None if it has none that can be read."""
    try:
        found = orjson.loads(line).get("custom_id")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, _ID_TYPES) else None


class Answered(NamedTuple):
    """The answers at the beginning of an output, which has one for each line of its input, in the same order."""

    num_lines: int
    num_failures: int
    size: int
    """Bytes of these answers. An interrupted write may have left a part of one more."""
    is_foreign: bool
    """True if other content follows: the output does not belong to the input."""


def find_answers(output: BinaryIO, asked: Iterator[bytes]) -> Answered:
    """Return the answers that an output holds, from its beginning. asked: the lines of the input."""
    num_lines = num_failures = size = 0
    begin = f'{{"id":"{_ID}'.encode()
    while line := output.readline():
        request, is_whole = next(asked, None), line.endswith(b"\n")
        is_answer = request is not None and line.startswith(begin[: len(line)])
        if not is_answer or (is_whole and custom_id_of(request or b"") != custom_id_of(line)):
            return Answered(num_lines, num_failures, size, is_foreign=True)
        if not is_whole:
            break
        num_lines, num_failures, size = num_lines + 1, num_failures + is_failure(line), size + len(line)
    return Answered(num_lines, num_failures, size, is_foreign=False)
