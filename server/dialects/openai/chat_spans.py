"""Reasons of the sentences of an answer: the spans of the messages that each depends on, estimated and measured.

The estimate of a span is the sum of its words' parts (`server.dialects.parts.passes`) in the logits of the sentence's
tokens. Its effect is the change of the sentence's log-probability in a pass without the span
(`server.dialects.parts.taking_out`). A pass without a span serves all sentences.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from msgspec import structs

from lightwell.model.analysis.arrays import Float64
from lightwell.model.hooks.points import Stack
from lightwell.server.dialects.inspect.inspection import NamedToken
from lightwell.server.dialects.inspect.token_reasons import explained_token
from lightwell.server.dialects.parts.passes import ExplainedLogit, ExplainedPass
from lightwell.server.dialects.parts.reasons import check_finite, mean_embeddings
from lightwell.server.dialects.parts.taking_out import Word, without
from lightwell.server.engine.messages.request import Intervention, LensTask, Part, TraceTask
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.conversation import Answered
from lightwell.server.generation.prompts.message_spans import MAX_SPANS, Span, at_most, ranges_of_tokens
from lightwell.server.generation.prompts.prompt import NOTHING, Prompt, packed
from lightwell.server.generation.prompts.sentences import sentences
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import Work, check_capture, run_all
from lightwell.server.http.errors import PayloadTooLarge
from lightwell.server.http.tensor_formats import NumpyArray, as_numpy
from lightwell.server.schemas.judgements.reasons import ChatExplain

_MOST_TOGETHER = 64
"""Most tokens of an answer with estimates from one pass."""


@dataclass(frozen=True, slots=True)
class SpanQuestion:
    """The question of a chat about the spans of its prompt."""

    model: ServedModel
    options: ChatExplain
    versus: NamedToken | None
    """The token of `read_versus`."""
    prompt: Prompt
    spans: Sequence[Span]

    def check_cost(self, max_tokens: int, num_choices: int) -> None:
        """Raise PayloadTooLarge if the reasons of `max_tokens` tokens may need too many tokens or captures."""
        model, read = self.model, self.with_answer([0] * max_tokens)
        check_capture(model, self.trace_bytes(read, 1), "explain")
        if self.options.verify:
            # Of a span at the beginning of the prompt, each query has its own keys to be removed.
            num_rows = 2 + max(span.end_token if span.first_token == 0 else 0 for span in self.spans)
            check_capture(model, 4 * model.config.num_layers * num_rows * read.num_tokens, "explain")
        num_estimates = -(-max_tokens // self.num_together(read))
        num_removed = min(len(self.spans), self.options.verify * min(max_tokens, MAX_SPANS))
        num_passes = num_choices * (1 + num_estimates + num_removed)
        cost, limit, of = num_passes * read.num_tokens, model.settings.max_num_queued_tokens, "--max-num-queued-tokens"
        key = current_request().key
        quota = None if key is None else key.limits.tokens_per_minute
        if quota is not None and quota < limit:
            limit, of = quota, "tokens_per_minute of the API key"
        if cost > limit:
            raise PayloadTooLarge(
                f"explain: the reasons of {max_tokens} tokens (max_tokens) by {len(self.spans)} spans need up to "
                f"{num_passes} passes over {read.num_tokens} tokens, {cost} tokens together; at most {limit} are "
                f"accepted ({of}). Send a smaller max_tokens or verify, or a shorter conversation.",
                param="explain",
                code="reasons_too_large",
            )

    def with_answer(self, token_ids: Sequence[int]) -> Prompt:
        """Return the prompt with all tokens of an answer but the last, which no token follows."""
        return Prompt(self.prompt.ids + packed(token_ids[:-1]), encoder=self.prompt.encoder)

    def trace(self, asked: Sequence[ExplainedLogit]) -> ExplainedPass:
        """Return the pass that explains these logits of one prompt together."""
        info = self.model.engine_info
        is_wide = info is not None and info.dtype == "float64"
        positions = tuple(each.position for each in asked if each.position is not None)
        return ExplainedPass(self.model.config, asked[0], "float64" if is_wide else "float32", positions)

    def trace_bytes(self, read: Prompt, count: int) -> int:
        """Return an upper bound of the bytes captured for the estimates of `count` tokens."""
        one = self.trace([ExplainedLogit(read, "words", 0, 0, position) for position in range(count)])
        return one.trace_bytes + count * (8 * 2 * _MOST_TOGETHER + len(one.parts.parts) * one.question_bytes)

    def num_together(self, read: Prompt) -> int:
        """Return the number of tokens with estimates from one pass. It uses a quarter of the accepted captures."""
        first, second = self.trace_bytes(read, 1), self.trace_bytes(read, 2)
        room = max(0, self.model.capture_limit // 4 - first)
        return min(_MOST_TOGETHER, 1 + room // (second - first))

    @property
    def stack(self) -> Stack:
        """Return the stack that reads the messages."""
        return "decoder" if self.prompt.encoder is None else "encoder"

    def removal(self, read: Prompt, span: Span, means: dict[Stack, NumpyArray]) -> tuple[Intervention, ...]:
        """Return the interventions of a pass without a span."""
        words = [Word(self.stack, position) for position in range(span.first_token, span.end_token)]
        lengths: dict[Stack, int] = {"encoder": len(read.encoder_ids), "decoder": len(read.ids)}
        return without(self.model.config, words, {stack: n for stack, n in lengths.items() if n}, means)


@dataclass(slots=True)
class SpanReasons:
    """The numbers of one answer, computed as its sentences need them. There are A tokens and S spans."""

    of: SpanQuestion
    read: Prompt
    """The prompt with the answer."""
    token_ids: Sequence[int]
    """The answer's tokens up to the end of the last sentence."""
    logprobs: Float64 = field(init=False)
    """Log-probability of each token [A]."""
    orders: list[list[int]] = field(init=False)
    """The three likeliest tokens at the place of each token."""
    estimates: list[Float64] = field(default_factory=list)
    """Estimates of the spans for each token so far, an array [S] a token."""
    values: list[float] = field(default_factory=list)
    """The explained logit, or difference, of each token so far."""
    without: dict[int, Float64] = field(default_factory=dict)
    """Log-probability of each token [A] without a span, by the span's index."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Return the positions that predict the answer's tokens."""
        return tuple(range(len(self.of.prompt.ids) - 1, len(self.read.ids)))

    async def begin(self) -> None:
        """Compute the answer's log-probabilities."""
        top_k = min(3, self.of.model.config.vocab_size)
        (found,) = await run_all(self.of.model, [self._scoring(top_k, ())])
        self.logprobs = _logprobs(found.tensors)
        check_finite(self.logprobs)
        self.orders = as_numpy(found.tensors["lens.ids"])[0].tolist()

    def _scoring(self, top_k: int, changes: tuple[Intervention, ...]) -> Work:
        """Return the work that computes the log-probability of each token."""
        task = LensTask(
            layers=(self.of.model.config.num_layers,),
            positions=self.positions,
            top_k=top_k,
            target_token_ids=tuple(self.token_ids),
            is_target_of_position=True,
        )
        return Work(task, self.read, 4 * len(self.token_ids) * (2 * top_k + 3), changes, is_sent=False)

    async def estimate(self, end: int) -> None:
        """Estimate the spans for all tokens before `end`, and some after them."""
        while len(self.values) < end:
            first = len(self.values)
            own = slice(first, first + self.of.num_together(self.read))
            asked = [
                explained_token(self.of.model, self.read, position, order, self.of.options, self.of.versus, token_id)
                for position, order, token_id in zip(
                    self.positions[own], self.orders[own], self.token_ids[own], strict=True
                )
            ]
            await self._estimate(asked)

    async def _estimate(self, asked: Sequence[ExplainedLogit]) -> None:
        model, one = self.of.model, self.of.trace(asked)
        targets = np.array([each.targets for each in asked])  # [Q, 1 or 2]
        units = np.unique(targets)
        logits = structs.replace(one.parts.capture("logits", None, one.traced), units=tuple(units.tolist()))
        task = TraceTask(points=(*one.trace().points, logits))
        num_bytes = one.trace_bytes + 8 * len(asked) * len(units)
        (found,) = await run_all(model, [Work(task, self.read, num_bytes, is_sent=False)])
        trace = {name: as_numpy(tensor) for name, tensor in found.tensors.items()}
        part: Part = "decoder" if self.of.stack == "decoder" else "cross"
        question = one.questions_of(list(one.states(trace)), tuple(chain(*targets.tolist())))[part]
        num_bytes = one.question_bytes * len(asked)
        (answer,) = await run_all(model, [Work(question, NOTHING, num_bytes, is_sent=False)])
        weights = {name: as_numpy(tensor) for name, tensor in answer.tensors.items()}
        words = await asyncio.to_thread(one.words, part, trace, weights)  # [Q, K]
        sums = [words[:, span.first_token : span.end_token].sum(1) for span in self.of.spans]
        self.estimates += list(np.stack(sums, 1))
        rows = np.take_along_axis(trace[logits.name].astype(np.float64), np.searchsorted(units, targets), 1)
        self.values += (rows[:, 0] - rows[:, 1:].sum(1)).tolist()
        check_finite([*self.values, *self.estimates[-1]])

    async def measure(self, spans: Sequence[int]) -> None:
        """Measure the answer without each of these spans."""
        left = [span for span in spans if span not in self.without]
        means = await mean_embeddings(self.of.model, [self.of.stack], self.of.options) if left else {}
        works = await asyncio.to_thread(
            lambda: [self._scoring(1, self.of.removal(self.read, self.of.spans[span], means)) for span in left]
        )
        results = await run_all(self.of.model, works) if works else []
        self.without |= {span: _logprobs(each.tensors) for span, each in zip(left, results, strict=True)}

    async def sentence(self, sentence: Span, text: str) -> dict[str, Any]:
        """Return the reasons of a sentence, as `schemas.judgements.reasons.SpanReasons` describes them."""
        own = slice(sentence.first_token, sentence.end_token)
        await self.estimate(sentence.end_token)
        estimates = np.sum(self.estimates[own], 0)
        strongest = np.argsort(-np.abs(estimates), kind="stable")[: self.of.options.verify].tolist()
        await self.measure(strongest)
        value, logprob = math.fsum(self.values[own]), float(self.logprobs[own].sum())
        removed = np.array([self.without[span][own].sum() for span in strongest])
        rows = zip(strongest, removed.tolist(), (removed - logprob).tolist(), _shares(removed - logprob), strict=True)
        parts = zip(self.of.spans, estimates.tolist(), _shares(estimates), strict=True)
        return {
            "by": "span",
            "text": text,
            **_place(sentence),
            "logprob": logprob,
            "value": value,
            "rest": value - float(estimates.sum()),
            "parts": [
                {"message": span.message, **_place(span), "estimate": estimate, "share": share}
                for span, estimate, share in parts
            ],
            "verify": [dict(zip(("span", "logprob", "effect", "share"), row, strict=True)) for row in rows]
            if self.of.options.verify
            else None,
        }


async def reasons_of_sentences(question: SpanQuestion, answered: Answered) -> AsyncIterator[dict[str, Any]]:
    """Yield the reasons of each sentence of an answer, in order, as each is ready. Raises ApiError."""
    content = answered.message.content or ""
    found = _sentences_of(content, answered.pieces)
    if not found:
        return
    token_ids = answered.token_ids[: found[-1].end_token]
    reasons = SpanReasons(question, question.with_answer(token_ids), token_ids)
    await reasons.begin()
    for sentence in found:
        yield await reasons.sentence(sentence, content[sentence.start : sentence.end])


def _sentences_of(content: str, pieces: Sequence[Piece]) -> list[Span]:
    """Return the sentences of an answer's content as spans of message 0 and of the generated tokens, at most
    `MAX_SPANS`.

    The content may be a part of the generated text, which also has reasoning and calls: each sentence is searched in
    that text, from its end.
    """
    written = "".join([piece.text for piece in pieces])
    places, ranges, before = list[tuple[int, int]](), list[tuple[int, int]](), len(written)
    for start, end in reversed(sentences(content)):
        place = written.rfind(content[start:end], 0, before)
        if place >= 0:
            places.insert(0, (start, end))
            ranges.insert(0, (place, place + end - start))
            before = place
    tokens = ranges_of_tokens(ranges, *_token_offsets(pieces))
    found = [Span(0, *place, *range_) for place, range_ in zip(places, tokens, strict=True) if range_[0] < range_[1]]
    return at_most(found, MAX_SPANS)


def _token_offsets(pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
    """Return the first character and the end of each token in the text of its choice; a token without a text of its own
    has the text of the next one.
    """
    starts, ends = list[int](), list[int]()
    end = sum(len(piece.text) for piece in pieces)
    last = end
    for piece in reversed(pieces):
        start = end - len(piece.text)
        last = end if piece.text else last
        starts += [start] * len(piece.token_ids)
        ends += [last] * len(piece.token_ids)
        end = start
    return starts[::-1], ends[::-1]


def _place(span: Span) -> dict[str, Any]:
    return {"start": span.start, "end": span.end, "tokens": (span.first_token, span.end_token)}


def _logprobs(tensors: Any) -> Float64:
    found: Float64 = as_numpy(tensors["lens.target_logprobs"])[0, :, 0].astype(np.float64)
    return found


def _shares(numbers: Float64) -> list[float]:
    """Return each number divided by the sum of all absolute values, or 0 if all are 0."""
    total = float(np.abs(numbers).sum())
    return (numbers / total).tolist() if total else [0.0] * len(numbers)
