"""The common parts of answers: formats, tokens, usage, the limit of their size."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import orjson
from fastapi.types import DecoratedCallable
from starlette.responses import Response, StreamingResponse

from lightwell.model.hooks.point_names import stack_config, stacks
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, counted_refusals
from lightwell.server.http.errors import answer_too_large
from lightwell.server.http.tensor_formats import (
    VALUE_BYTES,
    WRITE_BYTES,
    Format,
    NumpyArray,
    Piece,
    Wire,
    json_parts,
    paced,
)
from lightwell.server.observability.access_log import current_record
from lightwell.server.schemas.base import AnswerModel

_TENSOR_CONTENT: dict[str, Any] = {kind.value: {} for kind in Format if kind is not Format.JSON}
"""The other media types of an answer, for the OpenAPI page."""


def tensor_route(
    register: Callable[..., Any], path: str, summary: str, answer: type[AnswerModel]
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """Decorate a route that answers with arrays in any format; `register` is `router.get` or `router.post`, `answer`
    the schema of its JSON.
    """
    content = {200: {"content": _TENSOR_CONTENT}}
    decorator: Callable[[DecoratedCallable], DecoratedCallable] = register(
        path, tags=["inside"], summary=summary, response_model=answer, responses=content
    )
    return decorator


def wire_of(wanted: Format, encoding_format: str) -> Wire:
    """Return how numbers are written in an answer of this format."""
    if wanted in (Format.SAFETENSORS, Format.NPY):
        return "binary"
    return "base64" if encoding_format == "base64" else "json"


async def tensor_response(wanted: Format, pieces: Iterator[Piece], arrays: Iterable[NumpyArray]) -> Response:
    """Return the response with the pieces of a body that holds these arrays: at once if they are worth one write, else
    as a stream. Other requests run at each empty piece.

    A binary stream also reports its length: then nothing is put between its pieces, which need not be copied.
    """
    begin: list[Piece] = []
    num_bytes = 0
    for piece in pieces:
        if not piece:
            await asyncio.sleep(0)
            continue
        begin.append(piece)
        num_bytes += len(piece)
        if num_bytes >= WRITE_BYTES:
            break
    else:  # the task that watches a stream's client costs more than writing so little
        return Response(b"".join(begin), media_type=wanted.value)
    headers = {}
    if wire_of(wanted, "") == "binary":
        headers["content-length"] = str(len(begin[0]) + sum(array.nbytes for array in arrays))
    return StreamingResponse(paced(chain(begin, pieces)), media_type=wanted.value, headers=headers)


def json_response(answer: Any, status: int = 200) -> Response:
    """Return a response with `answer` as JSON."""
    return Response(orjson.dumps(answer), status, media_type="application/json")


async def large_response(answer: Any) -> Response:
    """Return the same for an answer that may be large: it is written in pieces. A list in it may be an iterator: its
    entries are made when they are written.
    """
    return await tensor_response(Format.JSON, json_parts(answer), ())


def new_answer_id(kind: str, mark: str = "-") -> str:
    """Return an id for the body of a completion, `mark` after its kind; the request's log line names it too."""
    answer_id = f"{kind}{mark}{uuid.uuid4().hex}"
    record = current_record.get()
    if record is not None:
        record.answer_id = answer_id
    return answer_id


def check_num_values(
    model: ServedModel, num_values: int, wanted: Format, encoding_format: str, advice: str, num_bytes: int = 0
) -> None:
    """Raise PayloadTooLarge when an answer of `num_values` numbers and `num_bytes` other bytes is over the limit;
    `advice` completes the sentence "Request ...".
    """
    size = round(num_values * VALUE_BYTES[wire_of(wanted, encoding_format)]) + num_bytes
    limit = model.settings.max_response_bytes
    with counted_refusals(model):
        if size > limit:
            raise answer_too_large(size, limit, f"Request {advice}, or Accept: application/vnd.safetensors.")


def model_name(model: ServedModel) -> str:
    """Return the name of the model that answers the current request: its adapter's, if it has one."""
    adapter = current_request().adapter
    return model.id if adapter is None else adapter.name


def head_of(model: ServedModel, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make the fields before the entries of an answer; `usage` is None for questions about the weights."""
    head = {"object": "list", "model": model_name(model), "compute_dtype": model.compute_dtype}
    return head if usage is None else {**head, "usage": usage}


def inspection_head(model: ServedModel, usage: dict[str, Any]) -> dict[str, Any]:
    """Make the same for an answer about chosen layers and heads: it reports how many there are, so that a reader
    can count from the end too.
    """
    sizes = {
        stack: {"num_layers": own.num_layers, "num_heads": own.num_heads, "num_kv_heads": own.num_kv_heads}
        for stack in stacks(model.config)
        for own in [stack_config(model.config, stack)]
    }
    return {**head_of(model), "stacks": sizes, "usage": usage}


def input_usage(inputs: Sequence[Prompt], results: Sequence[TaskResult]) -> dict[str, Any]:
    """Return the usage of requests that generate no tokens."""
    num_tokens = sum(prompt.num_tokens for prompt in inputs)
    return {
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(result.num_cached_tokens for result in results)},
    }


def token_fields(model: ServedModel, prompt: Prompt, prefix: str = "") -> dict[str, Any]:
    """Return the tokens that one stack read, as every answer names them."""
    return {
        f"{prefix}tokens": model.tokenizer.token_strings(prompt.ids),
        f"{prefix}token_ids": list(prompt.ids),
        f"{prefix}offsets": prompt.spans,
    }


def both_stacks_fields(model: ServedModel, prompt: Prompt) -> dict[str, Any]:
    """Return the tokens of an input: of an encoder-decoder the decoder's, and the encoder's with a prefix."""
    encoder = {} if prompt.encoder is None else token_fields(model, prompt.encoder, "encoder_")
    return {**token_fields(model, prompt), **encoder}
