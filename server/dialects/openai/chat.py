"""POST /v1/chat/completions: the assistant's next message, whole or as a stream."""

from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.model.tokenization.chat_formats.message import Message, MessageDelta, ToolCallDelta
from lightwell.server.dialects.openai.answer_writer import AnswerWriter, prompt_ids, text_fields
from lightwell.server.dialects.openai.chat_reasons import ChatReasons
from lightwell.server.dialects.responses import large_response
from lightwell.server.engine.messages.outputs import TokenLogprobs
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.conversation import Answered, ChatPiece, Conversation, begin_conversation
from lightwell.server.generation.logprobs import chat_entries, chat_entry, ranked_entries
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.request import ChatRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.sse import EventStream, TokenEvent, event, unless_disconnected
from lightwell.server.http.tensor_formats import JsonArray
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.generation import ChatCompletionAnswer, ChatCompletionRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
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
        model = await accept(context, body, "/v1/chat/completions")
        asked = _asked(body)
        reasons = None if body.explain is None else ChatReasons(model, asked, body.explain)
        if not body.stream:
            return await unless_disconnected(request, _whole(model, body, asked, reasons))
        conversation = await unless_disconnected(request, _begin(model, asked, reasons))
        writer = _ChatWriter(conversation, body)
        direct = None
        if writer.may_write_tokens:
            direct = conversation.token_writer(writer.event_of_tokens())
        return EventStream(_events(writer, reasons), conversation.close, direct)


def _asked(body: ChatCompletionRequest) -> ChatRequest:
    return ChatRequest(
        **text_fields(body),
        num_logprobs=body.num_logprobs,
        names=FieldNames({"thinking_budget": body.budget_field, "max_tokens": body.limit_field}),
        chat=body,
        max_tokens=getattr(body, body.limit_field),
        prediction="" if body.prediction is None else body.prediction.text,
        reasoning_effort=body.reasoning_effort,
        thinking_budget=body.budget,
    )


def _begin(model: ServedModel, asked: ChatRequest, reasons: ChatReasons | None) -> Coroutine[Any, Any, Conversation]:
    return begin_conversation(model, asked, None if reasons is None else reasons.prepare)


async def _whole(
    model: ServedModel, body: ChatCompletionRequest, asked: ChatRequest, reasons: ChatReasons | None
) -> Response:
    conversation = await _begin(model, asked, reasons)
    choices = await conversation.answers()
    writer = _ChatWriter(conversation, body)
    answer = writer.head("chat.completion")
    answer["choices"] = [
        await writer.whole_choice(index, choice) async for index, choice in in_turns(enumerate(choices), 1)
    ]
    if reasons is not None:
        for written, choice in zip(answer["choices"], choices, strict=True):
            written["reasons"] = await reasons.of(choice)
    answer["usage"] = writer.usage()
    if body.return_token_ids:
        answer["prompt_token_ids"] = prompt_ids(conversation.job.prompt)
    if body.prompt_logprobs is not None:
        logprobs = next((each.prompt_logprobs for each in choices[0].pieces if each.prompt_logprobs is not None), None)
        answer["prompt_logprobs"] = await writer.prompt_logprobs(logprobs)
    return await large_response(answer)


async def _events(writer: "_ChatWriter", reasons: ChatReasons | None) -> AsyncIterator[bytes]:
    arrived: dict[int, list[ChatPiece]] = {run.index: [] for run in writer.started.runs}
    for run in writer.started.runs:
        yield event(orjson.dumps(writer.stream_chunk([writer.opening(run.index)])))
    async for piece in writer.conversation.pieces():
        if reasons is not None:
            arrived[piece.index].append(piece)
        choice = await writer.chunk(piece)
        if choice is None:
            continue
        chunk = writer.stream_chunk([choice])
        if writer.body.prompt_logprobs is not None and piece.piece.prompt_logprobs is not None:
            chunk["prompt_logprobs"] = await writer.prompt_logprobs(piece.piece.prompt_logprobs)
        yield event(orjson.dumps(chunk))
    if reasons is not None:
        for index, pieces in arrived.items():
            async for each in reasons.sentences(Answered.of(pieces)):
                choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None, "reasons": [each]}
                yield event(orjson.dumps(writer.stream_chunk([choice])))
    yield writer.end_of_stream()


class _ChatWriter(AnswerWriter):
    """Writes the choices of a chat."""

    CHUNK = "chat.completion.chunk"
    body: ChatCompletionRequest

    def __init__(self, conversation: Conversation, body: ChatCompletionRequest) -> None:
        self.conversation = conversation
        self.job = conversation.job
        super().__init__(conversation.model, body, [self.job], conversation.started, "chatcmpl")

    @property
    def may_write_tokens(self) -> bool:
        return super().may_write_tokens and self.body.explain is None  # the reasons need every token

    def choice(self, piece: ChatPiece) -> dict[str, Any]:
        """Return the fields that every chunk of a choice has."""
        return {
            "index": piece.index,
            "delta": self._delta(piece.delta),
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.piece.stop_reason,
        }

    def event_of_tokens(self) -> TokenEvent:
        """Return the event of each token after the first, if all text is content."""
        choice = self.choice(ChatPiece(0, MessageDelta(content=TokenEvent.TEXT), None, Piece()))
        return self.token_event(choice, None if self.body.num_logprobs is None else self._entry)

    def _entry(self, _: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        return {"content": [chat_entry(self.model.tokenizer, logprobs, self.body.num_logprobs or 0)]}

    def _delta(self, delta: MessageDelta) -> dict[str, Any]:
        written: dict[str, Any] = {}
        if delta.content or self.conversation.is_plain:
            written["content"] = delta.content
        if delta.reasoning and self.body.include_reasoning:
            written |= _reasoning(delta.reasoning)
        if delta.tool_calls:
            written["tool_calls"] = [_call_delta(call) for call in delta.tool_calls]
        return written

    def opening(self, index: int) -> dict[str, Any]:
        """Return the first chunk of a choice, which names the role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    async def whole_choice(self, index: int, choice: Answered) -> dict[str, Any]:
        """Return a choice in one piece."""
        token_ids = choice.token_ids
        logprobs = [each for piece in choice.pieces for each in piece.logprobs]
        self.num_tokens[index] += len(token_ids)
        written: dict[str, Any] = {
            "index": index,
            "message": self._message(choice.message),
            "logprobs": await self._logprobs(logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            written |= await self._ids(token_ids, logprobs)
        tensors = [piece.tensors for piece in choice.pieces if piece.tensors]
        if self.started.rows is not None and tensors:
            written["attention"] = self.started.rows.whole(tensors, len(self.job.prompt.ids) - 1, JsonArray)
        return written

    def _message(self, message: Message) -> dict[str, Any]:
        content = None if message.tool_calls and not message.content else message.content
        written: dict[str, Any] = {"role": "assistant", "content": content}
        if message.reasoning and self.body.include_reasoning:
            written |= _reasoning(message.reasoning)
        if message.tool_calls:
            written["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        return written

    async def chunk(self, new: ChatPiece) -> dict[str, Any] | None:
        """Return the chunk of a piece, or None if it has nothing that a client sees."""
        index, piece = new.index, new.piece
        query = len(self.job.prompt.ids) - 1 + self.num_tokens[index]
        self.num_tokens[index] += len(piece.token_ids)
        choice = self.choice(new)
        choice["logprobs"] = await self._logprobs(piece.logprobs)
        if self.body.return_token_ids:
            choice |= await self._ids(piece.token_ids, piece.logprobs)
        if self.started.rows is not None and piece.tensors:
            choice["attention"] = self.started.rows.piece(piece.tensors, query)
        is_seen = choice["delta"] or new.finish_reason is not None or choice["logprobs"] is not None
        return choice if is_seen or self.body.return_token_ids or piece.tensors or piece.prompt_logprobs else None

    async def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if self.body.num_logprobs is None:
            return None
        return {"content": await chat_entries(self.model.tokenizer, logprobs, self.body.num_logprobs)}

    async def _ids(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        written: dict[str, Any] = {"token_ids": token_ids}
        if self.body.num_logprobs is not None:
            written["output_logprobs"] = await ranked_entries(self.model.tokenizer, logprobs, self.body.num_logprobs)
        return written

    async def prompt_logprobs(self, logprobs: Sequence[TokenLogprobs | None] | None) -> list[Any] | None:
        """Return vLLM's `prompt_logprobs`, which chats have next to the choices."""
        if logprobs is None:
            return None
        return await ranked_entries(self.model.tokenizer, logprobs, self.body.prompt_logprobs or 0)


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under the name that most clients read, and under vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    """Return the new part of a call; the first part has its name."""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
