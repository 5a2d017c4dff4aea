"""POST /v1/completions: text that continues a prompt, whole or as a stream, with log-probabilities and attention."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.model.tokenization.detokenizer import Detokenizer
from lightwell.server.dialects.openai.answer_writer import AnswerWriter, prompt_ids, text_fields
from lightwell.server.dialects.responses import large_response
from lightwell.server.engine.messages.outputs import TokenLogprobs
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.attention_rows import prompt_rows
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.completion import completion_jobs
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.logprobs import LegacyLogprobs, ranked_entries
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.request import PromptRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Arrived, Collected, Job, Started, begin, collect, start, token_writer
from lightwell.server.http.sse import EventStream, TokenEvent, event, unless_disconnected
from lightwell.server.http.tensor_formats import JsonArray
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.generation import CompletionAnswer, CompletionRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/v1/completions",
        tags=["generation"],
        summary="Continue a prompt",
        response_model=CompletionAnswer,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Return the text that continues each prompt. With `stream`, it is sent as server-sent events, one per
        token, ending in `[DONE]`.
        """
        model = await accept(context, body, "/v1/completions")
        asked = _asked(body)
        jobs = await completion_jobs(model, asked)
        if not body.stream:
            return await unless_disconnected(request, _whole(model, body, asked, jobs))
        started, arrivals = await unless_disconnected(request, begin(model, asked, jobs))
        writer = _CompletionWriter(model, body, jobs, started)
        direct = None
        if writer.may_write_tokens:
            direct = token_writer(started, writer.event_of_tokens())
        return EventStream(_events(writer, arrivals), started.close, direct)


def _asked(body: CompletionRequest) -> PromptRequest:
    fields = text_fields(body)
    scored = [number for number in (body.prompt_logprobs, body.logprobs if body.echo else None) if number is not None]
    fields["sampling"]["prompt_logprobs"] = max(scored, default=None)
    return PromptRequest(
        **fields,
        num_logprobs=body.num_logprobs,
        prompt=body.prompt,
        decoder_input=body.decoder_input,
        add_special_tokens=body.add_special_tokens,
        max_tokens=body.max_tokens,
        cuts_max_tokens="max_tokens" not in body.model_fields_set,
    )


async def _whole(model: ServedModel, body: CompletionRequest, asked: PromptRequest, jobs: list[Job]) -> Response:
    started = await start(model, asked, jobs)
    choices = await collect(started)
    writer = _CompletionWriter(model, body, jobs, started)
    answer = writer.head(writer.CHUNK)
    each = zip(started.runs, choices, strict=True)
    answer["choices"] = [await writer.whole_choice(run.index, choice) async for run, choice in in_turns(each, 1)]
    answer["usage"] = writer.usage()
    return await large_response(answer)


async def _events(writer: "_CompletionWriter", arrivals: AsyncIterator[Arrived]) -> AsyncIterator[bytes]:
    async for arrived in arrivals:
        yield event(orjson.dumps(writer.stream_chunk([await writer.chunk(arrived.run.index, arrived.piece)])))
    yield writer.end_of_stream()


class _CompletionWriter(AnswerWriter):
    """Writes the choices of completions."""

    CHUNK = "text_completion"
    body: CompletionRequest

    def __init__(self, model: ServedModel, body: CompletionRequest, jobs: list[Job], started: Started) -> None:
        super().__init__(model, body, jobs, started, "cmpl")
        self._legacy: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return the fields that every chunk of a choice has."""
        return {
            "index": index,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }

    def event_of_tokens(self) -> TokenEvent:
        """Return the event of each token after the first."""
        choice = self.choice(0, Piece(text=TokenEvent.TEXT))
        return self.token_event(choice, None if self.body.logprobs is None else self._entry)

    def _entry(self, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        return self._legacy[0].entry(token_id, logprobs)

    def _prompt(self, index: int) -> Prompt:
        return self.jobs[index // (self.body.n or 1)].prompt

    def _echo(self, index: int) -> str:
        prompt = self._prompt(index)
        if prompt.text is not None:
            return prompt.text
        known = [i for i in prompt.ids if i < self.model.tokenizer.vocab_size]
        return self.model.tokenizer.decode(known, self.body.skip_special_tokens)

    async def whole_choice(self, index: int, choice: Collected) -> dict[str, Any]:
        """Return a choice in one piece."""
        piece = Piece(
            text=choice.text,
            token_ids=tuple(choice.token_ids),
            logprobs=tuple(choice.logprobs),
            prompt_logprobs=choice.prompt_logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        written = await self.chunk(index, piece)
        tensors = choice.tensors
        if self.body.max_tokens == 0:
            tensors = [kept for kept in map(prompt_rows, tensors) if kept]
        if self.started.rows is not None and tensors:
            written["attention"] = self.started.rows.whole(tensors, len(self._prompt(index).ids) - 1, JsonArray)
        return written

    async def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return the chunk of a piece; the first has the prompt, if it is echoed."""
        is_first = index not in self._begun
        self._begun.add(index)
        if self.body.max_tokens == 0:
            piece = Piece(
                prompt_logprobs=piece.prompt_logprobs,
                tensors=prompt_rows(piece.tensors),
                finish_reason=piece.finish_reason and "length",
            )
        query = len(self._prompt(index).ids) - 1 + self.num_tokens[index]
        self.num_tokens[index] += len(piece.token_ids)
        echoes = bool(self.body.echo) and is_first
        choice = self.choice(index, piece)
        if echoes:
            choice["text"] = self._echo(index) + piece.text
        choice["logprobs"] = await self._logprobs(index, piece, echoes)
        if self.body.return_token_ids:
            choice["token_ids"] = piece.token_ids
            if is_first:
                choice["prompt_token_ids"] = prompt_ids(self._prompt(index))
            if self.body.logprobs is not None:
                entries = await ranked_entries(self.model.tokenizer, piece.logprobs, self.body.logprobs)
                choice["output_logprobs"] = entries
        if self.body.prompt_logprobs is not None and piece.prompt_logprobs is not None:
            entries = await ranked_entries(self.model.tokenizer, piece.prompt_logprobs, self.body.prompt_logprobs)
            choice["prompt_logprobs"] = entries
        if self.started.rows is not None and piece.tensors:
            choice["attention"] = self.started.rows.piece(piece.tensors, query)
        return choice

    async def _logprobs(self, index: int, piece: Piece, echoes: bool) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        prompt = self._prompt(index)
        if index not in self._legacy:
            exact = self.jobs[index // (self.body.n or 1)].task.grammar is not None
            self._legacy[index] = self._written(prompt.ids, len(self._echo(index)) if echoes else 0, exact=exact)
        generated = await self._legacy[index].entries(piece.token_ids, piece.logprobs)
        if not echoes or piece.prompt_logprobs is None:
            return generated
        echoed = await self._written().entries(prompt.ids, piece.prompt_logprobs)
        return {name: [*echoed[name], *generated[name]] for name in echoed}

    def _written(self, before: Sequence[int] = (), offset: int = 0, *, exact: bool = False) -> LegacyLogprobs:
        """Return the log-probabilities of tokens that are written after others, at this offset of the choice's text."""
        tokenizer = self.model.tokenizer
        text = Detokenizer(tokenizer, before, self.body.skip_special_tokens, exact=exact)
        return LegacyLogprobs(tokenizer, self.body.logprobs or 0, text, offset)
