"""Reasons of a chat's answer: of its first tokens, each one's logit against the runner-up's or another's, or of its
sentences.
"""

from collections.abc import AsyncIterator
from typing import Any

from lightwell.server.dialects.inspect.inspection import capture
from lightwell.server.dialects.inspect.token_reasons import explained_token, likeliest, read_versus
from lightwell.server.dialects.openai.chat_spans import SpanQuestion, reasons_of_sentences
from lightwell.server.dialects.parts.passes import ExplainedLogit
from lightwell.server.dialects.parts.reasons import check_room, explain
from lightwell.server.engine.messages.request import TraceTask
from lightwell.server.generation.conversation import Answered, find_spans
from lightwell.server.generation.prompts.message_spans import MAX_SPANS
from lightwell.server.generation.prompts.prompt import NOTHING, Prompt, packed
from lightwell.server.generation.request import ChatRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Job
from lightwell.server.generation.tasks import Work, run_all
from lightwell.server.http.errors import BadRequest, PayloadTooLarge
from lightwell.server.http.tensor_formats import as_numpy
from lightwell.server.schemas.judgements.reasons import MAX_EXPLAINED, ChatExplain


class ChatReasons:
    """The reasons that a chat requests. Raises BadRequest if the request's answer cannot have them."""

    def __init__(self, model: ServedModel, request: ChatRequest, options: ChatExplain) -> None:
        self._model, self._request, self._options = model, request, options
        self.is_by_span = options.by == "span"
        if not self.is_by_span and (request.is_stream or request.num_choices > 1):
            given = "stream true" if request.is_stream else f"n {request.num_choices}"
            raise BadRequest(
                f'explain: with {given}, reasons are accepted only with by "span" (got {options.by}).', param="explain"
            )
        self._versus = read_versus(model, options, 1, request.interventions)
        self._prompt = NOTHING
        self._question: SpanQuestion | None = None

    async def prepare(self, job: Job) -> None:
        """Read the prompt. Raises PayloadTooLarge, before anything is generated, for reasons that need too much."""
        model, options, max_tokens = self._model, self._options, job.sampling.max_tokens
        self._prompt = job.prompt
        if not self.is_by_span:
            count = min(max_tokens, MAX_EXPLAINED)
            read = Prompt(job.prompt.ids + packed([0] * (count - 1)), encoder=job.prompt.encoder)
            positions = range(len(job.prompt.ids) - 1, len(read.ids))
            check_room(model, [ExplainedLogit(read, "words", 0, 1, position) for position in positions], options)
            return
        if (num_messages := len(self._request.chat.messages)) > MAX_SPANS:
            raise PayloadTooLarge(
                f'explain: {num_messages} messages have at least as many spans; with by "span" at most {MAX_SPANS} '
                "messages are accepted.",
                param="explain",
                code="reasons_too_large",
            )
        spans = await find_spans(model, self._request, job.prompt)
        self._question = SpanQuestion(model, options, self._versus, job.prompt, spans)
        self._question.check_cost(max_tokens, self._request.num_choices)

    async def of(self, answered: Answered) -> list[dict[str, Any]]:
        """Return the reasons of a choice: of its first tokens, or of its sentences. Raises ApiError."""
        if self.is_by_span:
            return [each async for each in self.sentences(answered)]
        model, prompt, told = self._model, self._prompt, tuple(answered.token_ids[:MAX_EXPLAINED])
        if not told:
            return []
        read = Prompt(prompt.ids + packed(told[:-1]), encoder=prompt.encoder)
        positions = tuple(range(len(prompt.ids) - 1, len(read.ids)))
        point = capture(model, "decoder", "logits", positions=positions)
        num_bytes = 4 * len(positions) * model.config.vocab_size
        (found,) = await run_all(model, [Work(TraceTask(points=(point,)), read, num_bytes, is_sent=False)])
        logits = as_numpy(found.tensors[point.name])
        asked = [
            explained_token(model, read, position, likeliest(row), self._options, self._versus, token_id)
            for position, row, token_id in zip(positions, logits, told, strict=True)
        ]
        return await explain(model, asked, self._options)

    def sentences(self, answered: Answered) -> AsyncIterator[dict[str, Any]]:
        """Return the reasons of each sentence of a choice, in order, as each is ready."""
        assert self._question is not None
        return reasons_of_sentences(self._question, answered)
