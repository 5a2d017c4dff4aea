"""POST /v1/responses: the assistant's next turn, whole or as a stream of OpenAI's typed events."""

from collections.abc import AsyncIterator, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.openai_responses.request import chat_request
from lightwell.server.dialects.openai_responses.writer import ResponseWriter
from lightwell.server.dialects.responses import large_response
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.conversation import Conversation, begin_conversation
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.sse import EventStream, unless_disconnected
from lightwell.server.schemas.openai_responses.responses import ResponsesAnswer, ResponsesRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/v1/responses",
        tags=["generation"],
        summary="Answer a conversation, as OpenAI's newer clients ask",
        response_model=ResponsesAnswer,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def responses(request: Request, body: ResponsesRequest) -> Response:
        """Return the assistant's next turn as items: reasoning, messages and calls. With `stream`, it is sent as
        server-sent events, one per token; the last one holds the whole response. Nothing is stored.
        """
        model = await accept(context, body, "/v1/responses")
        beginning = begin_conversation(model, chat_request(body))
        if not body.stream:
            return await unless_disconnected(request, _whole(model, body, beginning))
        conversation = await unless_disconnected(request, beginning)
        writer = ResponseWriter(model, body, conversation)
        events = _events(writer, conversation)
        return EventStream(events, conversation.close, writer.token_writer(), write_error=writer.failed)


async def _whole(model: ServedModel, body: ResponsesRequest, beginning: Coroutine[Any, Any, Conversation]) -> Response:
    conversation = await beginning
    writer = ResponseWriter(model, body, conversation)
    async for piece in conversation.pieces():
        await writer.push(piece)
    return await large_response(writer.response())


async def _events(writer: ResponseWriter, conversation: Conversation) -> AsyncIterator[bytes]:
    yield writer.begin()
    async for piece in conversation.pieces():
        if events := await writer.push(piece):
            yield events
