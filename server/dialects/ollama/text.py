"""POST /api/chat and POST /api/generate: the assistant's next message, or a text that continues a prompt."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.model.tokenization.chat_formats.message import Message, MessageDelta
from lightwell.server.dialects.ollama.lines import (
    NDJSON,
    Begun,
    Fields,
    LineWriter,
    chat_fields,
    error_line,
    generate_fields,
    now,
)
from lightwell.server.dialects.ollama.translation import (
    accept_named,
    chat_request,
    chat_request_of_prompt,
    only_unloads,
    prompt_request,
)
from lightwell.server.dialects.responses import json_response, large_response
from lightwell.server.generation.completion import completion_jobs
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.conversation import ChatPiece, begin_conversation
from lightwell.server.generation.request import ChatRequest, PromptRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Arrived, Started, begin
from lightwell.server.http.sse import EventStream, unless_disconnected
from lightwell.server.schemas.ollama import (
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
    OllamaTextFields,
)

_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {NDJSON: {}}}}


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/api/chat",
        tags=["Ollama"],
        summary="Answer a conversation, as Ollama does",
        response_model=OllamaChatAnswer,
        responses=_STREAM,
    )
    async def chat(request: Request, body: OllamaChatRequest) -> Response:
        """Return the assistant's next message, one line of JSON a token, or as one object without `stream`."""
        if not body.messages and only_unloads(context, body):
            return _loaded(body.model, body, chat_fields)
        model = await accept_named(context, body, "/api/chat")
        if not body.messages:
            return _loaded(_name(model, body), body, chat_fields)
        beginning = _begin_chat(model, chat_request(model, body))
        return await _answer(model, request, body, beginning, chat_fields)

    @router.post(
        "/api/generate",
        tags=["Ollama"],
        summary="Answer or continue a prompt, as Ollama does",
        response_model=OllamaGenerateAnswer,
        responses=_STREAM,
    )
    async def generate(request: Request, body: OllamaGenerateRequest) -> Response:
        """Return the model's answer to the prompt, or with `raw`, and of a model without a chat template, the text
        that continues it: one line of JSON a token, or one object without `stream`.
        """
        if not body.prompt and only_unloads(context, body):
            return _loaded(body.model, body, generate_fields)
        model = await accept_named(context, body, "/api/generate")
        if not body.prompt:
            return _loaded(_name(model, body), body, generate_fields)
        beginning: Awaitable[Begun]
        if body.raw or model.chat_template is None:
            beginning = _begin_text(model, prompt_request(model, body))
        else:
            beginning = _begin_chat(model, chat_request_of_prompt(model, body))
        return await _answer(model, request, body, beginning, generate_fields)


def _name(model: ServedModel, body: OllamaTextFields) -> str:
    return model.id if body.model is None else body.model


def _loaded(name: str | None, body: OllamaTextFields, fields: Fields) -> Response:
    """Answer a request that only loads the model, or unloads it."""
    told = {"model": name, "created_at": now(), **fields(Message())}
    return json_response({**told, "done": True, "done_reason": "unload" if body.keep_alive == 0 else "load"})


async def _answer(
    model: ServedModel,
    request: Request,
    body: OllamaTextFields,
    beginning: Awaitable[Begun],
    fields: Fields,
) -> Response:
    """Return the answer: until the first token has come, an error still has its own HTTP status."""

    async def begun_writer() -> tuple[Begun, LineWriter]:
        begun = await beginning
        return begun, LineWriter(model, _name(model, body), fields, begun)

    async def whole() -> Response:
        begun, writer = await begun_writer()
        try:
            return await large_response(await writer.whole())
        finally:
            begun.started.close()

    if not body.stream:
        return await unless_disconnected(request, whole())
    begun, writer = await unless_disconnected(request, begun_writer())
    lines, close = writer.lines(), begun.started.close
    return EventStream(lines, close, media_type=NDJSON, write_error=error_line)


async def _begin_chat(model: ServedModel, asked: ChatRequest) -> Begun:
    found = await begin_conversation(model, asked)
    return Begun(found.job.prompt, found.started, found.pieces(), asked.num_logprobs)


async def _begin_text(model: ServedModel, asked: PromptRequest) -> Begun:
    (job,) = await completion_jobs(model, asked)
    started, arrivals = await begin(model, asked, [job])
    return Begun(job.prompt, started, _pieces(started, arrivals), asked.num_logprobs)


async def _pieces(started: Started, arrivals: AsyncIterator[Arrived]) -> AsyncIterator[ChatPiece]:
    """Yield the pieces of a text as pieces of a message with content only."""
    try:
        async for arrived in arrivals:
            piece = arrived.piece
            yield ChatPiece(arrived.run.index, MessageDelta(content=piece.text), piece.finish_reason, piece)
    finally:
        started.close()
