"""Answers chats: a request in, the assistant's message out, in parts as the engine generates it. It writes no JSON."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Self

from lightwell.model.tokenization.chat_formats.message import Message, MessageDelta, joined
from lightwell.model.tokenization.chat_formats.parser import TaggedText
from lightwell.model.tokenization.chat_formats.prefill import shared_end
from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.generation.answer_form import answer_form
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.grammars import read_grammar
from lightwell.server.generation.prompts.chat_rows import render_chat
from lightwell.server.generation.prompts.inputs import between_stacks
from lightwell.server.generation.prompts.message_spans import Span, spans_of, with_marks
from lightwell.server.generation.prompts.prompt import Prompt, encode, fit_generation, keep_end, read_chat
from lightwell.server.generation.prompts.text_parts import Cut
from lightwell.server.generation.request import ChatRequest
from lightwell.server.generation.sampling import sampling_params
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Arrived, Job, Started, begin, token_writer
from lightwell.server.http.connection import BodyWriter
from lightwell.server.http.sse import TokenEvent
from lightwell.server.schemas.chat_templates import THINKING_SWITCHES
from lightwell.server.schemas.thinking import EFFORT_BUDGETS


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """The part that one output of the engine added to a choice."""

    index: int
    """Number of the choice."""
    delta: MessageDelta
    finish_reason: str | None
    """Reason of the choice's end: stop, length or tool_calls; None before it."""
    piece: Piece
    """The token ids, log-probabilities, captures, and the stop string or token."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole choice."""

    message: Message
    finish_reason: str
    stop_reason: str | int | None
    pieces: list[Piece]

    @classmethod
    def of(cls, pieces: Sequence[ChatPiece]) -> Self:
        """Return the choice that these pieces add up to."""
        last, own = pieces[-1], [each.piece for each in pieces]
        return cls(joined([each.delta for each in pieces]), last.finish_reason or "stop", last.piece.stop_reason, own)

    @property
    def token_ids(self) -> list[int]:
        """Return the generated tokens."""
        return [token_id for piece in self.pieces for token_id in piece.token_ids]


@dataclass
class Conversation:
    """The choices of a chat, in flight. Whatever happens, `close` must be called; it may be called again."""

    model: ServedModel
    request: ChatRequest
    job: Job
    started: Started
    arrivals: AsyncIterator[Arrived]
    _num_read: int = 0
    """Tokens of all choices that were in their pieces."""
    _calls: set[int] = field(default_factory=set)
    """Numbers of the choices that called a tool."""

    @property
    def num_prompt_tokens(self) -> int:
        """Return how many tokens the conversation has before the answer."""
        return self.job.prompt.num_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Return how many of them came from the prefix cache, as far as is known."""
        return max(run.num_cached_tokens for run in self.started.runs)

    @property
    def num_generated(self) -> int:
        """Return how many tokens all choices have so far."""
        return self._num_read + sum(run.num_written for run in self.started.runs)

    @property
    def is_plain(self) -> bool:
        """Return whether all text is content: nothing is read out of it."""
        return self.job.new_parser is TaggedText

    def token_writer(self, event: TokenEvent) -> Callable[[BodyWriter], None] | None:
        """Return `server.generation.submission.token_writer`'s way past the pieces, or None where there is none."""
        return token_writer(self.started, event) if self.is_plain else None

    async def pieces(self) -> AsyncIterator[ChatPiece]:
        """Yield the pieces of every choice until its end. Raises the engine's ApiError."""
        parsers = {run.index: self.job.new_parser() for run in self.started.runs}
        try:
            async for arrived in self.arrivals:
                index, piece = arrived.run.index, arrived.piece
                self._num_read += len(piece.token_ids)
                deltas = [parsers[index].push(piece.text)]
                if piece.finish_reason is not None:
                    deltas.append(parsers[index].flush())
                *first, last = [delta for delta in deltas if delta != MessageDelta()] or [MessageDelta()]
                for delta in first:
                    yield self._piece(index, delta, Piece())
                yield self._piece(index, last, piece)
        finally:
            self.close()

    def _piece(self, index: int, delta: MessageDelta, piece: Piece) -> ChatPiece:
        if delta.tool_calls:
            self._calls.add(index)
        reason = piece.finish_reason
        return ChatPiece(index, delta, "tool_calls" if reason == "stop" and index in self._calls else reason, piece)

    async def answers(self) -> list[Answered]:
        """Return all choices, whole, in their order. Raises the engine's ApiError."""
        found: dict[int, list[ChatPiece]] = {run.index: [] for run in self.started.runs}
        (first, *others) = self.started.runs
        if self.is_plain and not others:

            def add(piece: Piece) -> None:
                self._num_read += len(piece.token_ids)
                found[first.index].append(self._piece(first.index, MessageDelta(content=piece.text), piece))

            first.gather_tokens(add)
        async for piece in self.pieces():
            found[piece.index].append(piece)
        return [Answered.of(pieces) for pieces in found.values()]

    def close(self) -> None:
        """Abort the unfinished choices."""
        self.started.close()


async def read_conversation(model: ServedModel, request: ChatRequest) -> Prompt:
    """Return a chat as the model reads it. Raises BadRequest, with the client's names, if the template refuses it."""
    with request.names.in_errors():
        return await _read(model, request, "all")


async def _read(model: ServedModel, request: ChatRequest, keep: Cut) -> Prompt:
    arguments, _ = _thinking(model, request)
    chat = request.chat
    rest = (chat.opens_answer, arguments, chat.shown_tools)
    return await read_chat(model, chat.messages, *rest, is_continued=chat.continue_final_message, keep=keep)


def _thinking(model: ServedModel, request: ChatRequest) -> tuple[dict[str, Any], int | None]:
    """Return the arguments of the chat template, and the most tokens of a thought, or None for no limit."""
    arguments, budget = dict(request.chat.chat_template_kwargs or {}), request.thinking_budget
    if request.reasoning_effort is not None:
        if model.chat_template is not None and "reasoning_effort" in model.chat_template.source:
            arguments.setdefault("reasoning_effort", request.reasoning_effort)
        elif budget is None:
            budget = EFFORT_BUDGETS.get(request.reasoning_effort)
    if budget == 0:
        arguments = dict.fromkeys(THINKING_SWITCHES, False) | arguments
    return arguments, None if budget == -1 else budget


async def _job(model: ServedModel, request: ChatRequest) -> Job:
    """Return a chat as the engine gets it. Raises BadRequest if it does not fit."""
    chat = request.chat
    is_cut = request.truncate or request.truncate_prompt_tokens is not None
    end: Cut = "start" if model.config.kind == "encoder-decoder" else "end"
    conversation = await _read(model, request, end if is_cut else None)
    prompt_text, prefilled = conversation.text or "", ""
    if chat.continue_final_message:
        last = chat.messages[-1]
        prefilled = shared_end(prompt_text, last.text or last.thought or "")
        prompt_text = prompt_text[: len(prompt_text) - len(prefilled)]
    _, budget = _thinking(model, request)
    grammar = await read_grammar(model, request.constraint)
    form = await answer_form(model, request, prompt_text, grammar, prefilled=prefilled, thinking_budget=budget)
    conversation = keep_end(conversation, request.truncate_prompt_tokens, model.context_limit - 1)
    (prompt,) = await between_stacks(model, [conversation], None, request.truncate, "messages")
    limit = request.max_tokens
    is_exact = limit is not None and not request.cuts_max_tokens
    prompt, max_tokens = fit_generation(model, prompt, limit, is_exact, request.truncate, "messages")
    sampling = sampling_params(model, request, max_tokens=max_tokens)
    prediction: Iterable[int] = ()
    if request.prediction:  # a hint: it may be longer than the answer, and end before a token that the network lacks
        hint = await encode(model, request.prediction, False, "prediction", keep="start")
        prediction = takewhile(lambda token_id: token_id < model.config.vocab_size, hint.ids[:max_tokens])
    task = GenerateTask(
        sampling=sampling,
        grammar=form.grammar,
        grammar_prefix=form.prefix,
        thought_limit=form.thought_limit,
        prediction=tuple(prediction),
    )
    return Job(prompt, task, form.new_parser, form.kept_ids)


async def find_spans(model: ServedModel, request: ChatRequest, prompt: Prompt) -> list[Span]:
    """Return the spans of the chat's messages in its prompt. Raises the errors of `spans_of`."""
    arguments, _ = _thinking(model, request)
    chat = request.chat
    rest = (chat.opens_answer, arguments, chat.shown_tools)
    marked = await render_chat(model, with_marks(chat.messages), *rest, is_continued=chat.continue_final_message)
    return spans_of(chat.messages, marked, prompt.encoder or prompt)


async def begin_conversation(
    model: ServedModel, request: ChatRequest, check: Callable[[Job], Awaitable[None]] | None = None
) -> Conversation:
    """Start a chat, and wait for its first output: until then an error still has its own HTTP status. Errors have the
    client's names of fields.

    `accept` must have been called for the body. `check` gets the job before the engine, and may raise an ApiError.
    """
    with request.names.in_errors():
        job = await _job(model, request)
        if check is not None:
            await check(job)
        started, arrivals = await begin(model, request, [job])
    return Conversation(model, request, job, started, arrivals)
