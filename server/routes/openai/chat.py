"""POST /v1/chat/completions: the assistant's next message, whole or as a stream."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.engine.outputs import TokenLogprobs
from server.http.sse import EventStream, event, unless_disconnected
from server.routes.context import AppContext
from server.routes.openai.choices import Piece
from server.routes.openai.conversation import chat_job
from server.routes.openai.generation import (
    AnswerWriter,
    Arrived,
    Collected,
    Job,
    Started,
    begin,
    collect,
    start,
    token_writer,
)
from server.routes.openai.logprobs import chat_entries, prompt_entries
from server.routes.request_context import accept
from server.routes.supported_routes import check_route
from server.schemas.generation import ChatCompletionAnswer, ChatCompletionRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route to the router."""

    @router.post(
        "/v1/chat/completions",
        tags=["generation"],
        summary="Answer a conversation",
        response_model=ChatCompletionAnswer,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def chat_completions(request: Request, body: ChatCompletionRequest) -> Response:
        """Return the assistant's next message. With `stream`, it is sent as server-sent events, one per token,
        ending in `[DONE]`.
        """
        arrival = time.monotonic()
        accept(context, body)
        check_route(context, "/v1/chat/completions")
        job = await chat_job(context, body)
        if not body.stream:
            return await unless_disconnected(request, _whole(context, body, job, arrival))
        started, arrivals = await unless_disconnected(request, begin(context, body, [job], arrival))
        writer = _ChatWriter(context, body, job, started)
        direct = token_writer(started, body, lambda text: writer.stream_chunk([writer.choice(0, Piece(text=text))]))
        return EventStream(_events(writer, arrivals), started.close, direct)


async def _whole(context: AppContext, body: ChatCompletionRequest, job: Job, arrival: float) -> Response:
    started = await start(context, body, [job], arrival)
    choices = await collect(started)
    writer = _ChatWriter(context, body, job, started)
    answer = writer.head("chat.completion")
    answer["choices"] = [await writer.whole_choice(run.index, c) for run, c in zip(started.runs, choices, strict=True)]
    answer["usage"] = writer.usage()
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = await writer.prompt_logprobs(choices[0].prompt_logprobs)
    return Response(orjson.dumps(answer), media_type="application/json")


async def _events(writer: "_ChatWriter", arrivals: AsyncIterator[Arrived]) -> AsyncIterator[bytes]:
    for run in writer.started.runs:
        yield event(orjson.dumps(writer.stream_chunk([writer.opening(run.index)])))
    async for arrived in arrivals:
        chunk = writer.stream_chunk([await writer.chunk(arrived.run.index, arrived.piece)])
        if writer.body.prompt_logprobs is not None and arrived.piece.prompt_logprobs is not None:
            chunk["prompt_logprobs"] = await writer.prompt_logprobs(arrived.piece.prompt_logprobs)
        yield event(orjson.dumps(chunk))
    yield writer.end_of_stream()


class _ChatWriter(AnswerWriter):
    """Writes the choices of a chat."""

    CHUNK = "chat.completion.chunk"
    body: ChatCompletionRequest

    def __init__(self, context: AppContext, body: ChatCompletionRequest, job: Job, started: Started) -> None:
        super().__init__(context, body, [job], started, "chatcmpl")
        self.job = job

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return the fields that every chunk of a choice has."""
        return {
            "index": index,
            "delta": {"content": piece.text},
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }

    def opening(self, index: int) -> dict[str, Any]:
        """Return the first chunk of a choice, which names the role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    async def whole_choice(self, index: int, choice: Collected) -> dict[str, Any]:
        """Return a choice in one piece."""
        self.num_tokens[index] += len(choice.token_ids)
        written: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text},
            "logprobs": await self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            written["token_ids"] = choice.token_ids
        if self.started.rows is not None and choice.tensors:
            written["attention"] = self.started.rows.whole(choice.tensors, len(self.job.prompt.ids) - 1)
        return written

    async def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return what a piece adds to a choice."""
        query = len(self.job.prompt.ids) - 1 + self.num_tokens[index]
        self.num_tokens[index] += len(piece.token_ids)
        choice = self.choice(index, piece)
        choice["logprobs"] = await self._logprobs(piece.logprobs)
        if self.body.return_token_ids:
            choice["token_ids"] = piece.token_ids
        if self.started.rows is not None and piece.tensors:
            choice["attention"] = self.started.rows.piece(piece.tensors, query)
        return choice

    async def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.body.num_logprobs is None:
            return None
        return {"content": await chat_entries(self.context.tokenizer, logprobs, self.body.num_logprobs)}

    async def prompt_logprobs(self, logprobs: Sequence[TokenLogprobs | None] | None) -> list[Any] | None:
        """Return vLLM's `prompt_logprobs`, which chats have next to the choices."""
        if logprobs is None:
            return None
        return await prompt_entries(self.context.tokenizer, logprobs, self.body.prompt_logprobs or 0)
