"""POST /v1/messages and POST /v1/messages/count_tokens, as Anthropic's API has them: the assistant's next message, and
how many tokens a conversation has.
"""

from collections.abc import AsyncIterator, Iterable

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.anthropic.blocks import ContentWriter, Event
from lightwell.server.dialects.anthropic.translation import chat_request
from lightwell.server.dialects.responses import json_response, large_response, model_name, new_answer_id
from lightwell.server.generation.acceptance import accept, current_request
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.conversation import ChatPiece, Conversation, begin_conversation, read_conversation
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_route
from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.sse import EventStream, TokenEvent, event, unless_disconnected
from lightwell.server.schemas.anthropic.messages import (
    CountTokensAnswer,
    CountTokensRequest,
    MessagesAnswer,
    MessagesRequest,
)

PATH = "/v1/messages"

_NOT_OVER = {"stop_reason": None, "stop_sequence": None}
_END_OF_TURN = {"stop_reason": "end_turn", "stop_sequence": None}


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route that runs the model to the router."""

    @router.post(
        PATH,
        tags=["generation"],
        summary="Answer a conversation, as Anthropic's API does",
        response_model=MessagesAnswer,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def messages(request: Request, body: MessagesRequest) -> Response:
        """Return the assistant's next message. With `stream`, it is sent as server-sent events, from `message_start` to
        `message_stop`.
        """
        model = await accept(context, body, PATH)
        beginning = begin_conversation(model, chat_request(body))
        answer = _Answer(model, body, await unless_disconnected(request, beginning))
        return answer.stream() if body.stream else await unless_disconnected(request, answer.whole())


def add_counting(router: APIRouter, context: AppContext) -> None:
    """Add the route that only counts tokens to the router. It needs no engine: it answers while the model loads."""

    @router.post(
        f"{PATH}/count_tokens",
        tags=["tokens"],
        summary="Count the tokens of a conversation, as Anthropic's API does",
        response_model=CountTokensAnswer,
    )
    async def count_tokens(body: CountTokensRequest) -> Response:
        """Return how many tokens the model would read of a conversation, its system text and its tools included."""
        model, _ = await context.models.find(body.model)  # adapters have the tokens of the model
        check_route(model, PATH)
        prompt = await read_conversation(model, chat_request(body))
        return json_response({"input_tokens": prompt.num_tokens})


class _Answer:
    """One answer to a conversation that has begun."""

    def __init__(self, model: ServedModel, body: MessagesRequest, conversation: Conversation) -> None:
        self._body = body
        self._conversation = conversation
        self._content = ContentWriter(
            conversation.started.rows,
            len(conversation.job.prompt.ids),
            streams=bool(body.stream),
            shows_thinking=body.thinking is None or body.thinking.is_shown,
        )
        self._head = {
            "id": new_answer_id("msg", "_"),
            "type": "message",
            "role": "assistant",
            "model": model_name(model),
        }

    async def whole(self) -> Response:
        end: Event = _NOT_OVER
        try:
            self._begin_content()
            async for piece in self._conversation.pieces():
                self._content.take(piece)
                end = self._end(piece)
        finally:
            self._conversation.close()
        return await large_response({**self._head, "content": self._content.whole(), **end, "usage": self._usage()})

    def stream(self) -> Response:
        """Return the message as a stream of events."""
        begun = self._begin_content()
        delta = TokenEvent(self._content.delta("text", TokenEvent.TEXT), "content_block_delta")
        direct = self._conversation.token_writer(delta)
        record = current_request().record
        request_id = None if record is None else record.request_id
        return EventStream(
            self._events(begun),
            self._conversation.close,
            direct,
            write_error=lambda error: event(error_json(error, PATH, request_id), "error"),
        )

    def _begin_content(self) -> list[Event]:
        """Begin the text of an answer that is nothing else, so that each of its tokens is one event."""
        return self._content.begin("text") if self._conversation.is_plain else []

    async def _events(self, begun: list[Event]) -> AsyncIterator[bytes]:
        message: Event = {**self._head, "content": [], **_NOT_OVER, "usage": {**self._usage(), "output_tokens": 0}}
        yield _written([{"type": "message_start", "message": message}, *begun])
        end: Event = _NOT_OVER
        async for piece in self._conversation.pieces():
            end = self._end(piece)
            if events := self._content.take(piece):
                yield _written(events)
        over = {"type": "message_delta", "delta": end, "usage": self._usage()}
        yield _written([*self._content.end(), over, {"type": "message_stop"}])

    def _end(self, piece: ChatPiece) -> Event:
        stop = piece.piece.stop_reason
        if piece.finish_reason == "stop":
            return {"stop_reason": "stop_sequence", "stop_sequence": stop} if isinstance(stop, str) else _END_OF_TURN
        if piece.finish_reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        is_cut = self._conversation.job.sampling.max_tokens < self._body.max_tokens
        return {"stop_reason": "model_context_window_exceeded" if is_cut else "max_tokens", "stop_sequence": None}

    def _usage(self) -> dict[str, int]:
        conversation = self._conversation
        return {
            "input_tokens": conversation.num_prompt_tokens - conversation.num_cached_tokens,
            "cache_read_input_tokens": conversation.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": conversation.num_generated,
        }


def _written(events: Iterable[Event]) -> bytes:
    return b"".join([event(orjson.dumps(each), each["type"]) for each in events])
