"""Answers to questions about one input: the probability of each option, and its reasons.

The engine reads the first question before the others, so that their common prefix is in the cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightwell.server.dialects.judgements.questions import Asked, Question, ask
from lightwell.server.dialects.parts.passes import ExplainedLogit
from lightwell.server.dialects.parts.reasons import check_explainable, explain
from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, Work, run_all
from lightwell.server.http.errors import BadRequest, EngineError, shown
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.judgements.fields import JudgementFields
from lightwell.server.schemas.judgements.reasons import Explain


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer to one question."""

    probabilities: tuple[float, ...]
    """The share of each option among all labels, which sum to 1."""
    label_mass: float
    """The probability of all labels together, of the whole vocabulary."""
    is_label: bool
    """Whether the likeliest token of the vocabulary is a label."""

    @property
    def best(self) -> int:
        """Return the likeliest option, the first among equals."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def expected(self) -> float:
        """Return the mean of the options' numbers."""
        return math.fsum(i * probability for i, probability in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """Return how far the largest probability is above 1 / n, on a scale from 0 to 1 (TypeSafe's confidence)."""
        equal = 1 / len(self.probabilities)
        return 1.0 if equal == 1 else max(0.0, (max(self.probabilities) - equal) / (1 - equal))


@dataclass(frozen=True, slots=True)
class Judgements:
    """The answers to the questions of one request."""

    each: list[Judgement]
    num_read: int
    """Tokens of all prompts."""
    num_cached: int
    """Tokens of them that the prefix cache had."""


async def judge_with_reasons(
    model: ServedModel,
    body: JudgementFields,
    messages: Sequence[ChatMessage],
    questions: Sequence[Question],
) -> tuple[Judgements, list[dict[str, Any]]]:
    """Return the answers to questions about a conversation, and the additional fields of each: its reasons, if the
    body has `explain`. Raises ApiError.
    """
    options = body.explain
    if options is not None:  # before the engine runs
        check_explainable(model, len(questions), "questions")
        for question in questions:
            _named(options, question)
    asked = await ask(model, messages, questions, body.chat_template_kwargs)
    found = await _judge(model, asked)
    if options is None:
        return found, [{} for _ in questions]
    logits = [
        _explained(model, options, question, each, judgement)
        for question, each, judgement in zip(questions, asked, found.each, strict=True)
    ]
    return found, [{"reasons": each} for each in await explain(model, logits, options)]


async def _judge(model: ServedModel, asked: Sequence[Asked]) -> Judgements:
    works = []
    for each in asked:  # each generates one token, which is not used
        sampling = SamplingParams(max_tokens=1, seed=0, temperature=0, logprobs=0, logprob_token_ids=each.labels)
        works.append(Work(GenerateTask(sampling=sampling), each.prompt, 0, is_sent=False))
    # Blocks of the cache are shared once they are computed: together, all questions would compute the input.
    results = await run_all(model, works[:1])
    if len(works) > 1:
        results += await run_all(model, works[1:])
    return Judgements(
        [_judgement(result) for result in results],
        sum(each.prompt.num_tokens for each in asked),
        sum(result.num_cached_tokens for result in results),
    )


def _judgement(result: TaskResult) -> Judgement:
    found = result.logprobs
    if found is None:
        raise EngineError("The engine ended this request without an answer.", code="engine_error")
    largest = max(logprob for _, logprob in found.top)
    weights = [math.exp(logprob - largest) for _, logprob in found.top]
    total = math.fsum(weights)
    return Judgement(
        tuple(weight / total for weight in weights),
        min(1.0, total * math.exp(largest)),
        found.token_id in {token_id for token_id, _ in found.top},
    )


def _explained(
    model: ServedModel, options: Explain, question: Question, asked: Asked, found: Judgement
) -> ExplainedLogit:
    order = sorted(range(len(asked.labels)), key=lambda i: -found.probabilities[i])
    named = _named(options, question)
    target = next((i for i in order if i != named), order[0])
    versus = next((i for i in order if i != target), None) if options.versus == "next" else named
    versus = None if versus == target else versus

    def described(option: int) -> dict[str, Any]:
        token_id = asked.labels[option]
        return {
            "option": question.options[option].text,
            "token": model.tokenizer.token_strings([token_id])[0],
            "token_id": token_id,
        }

    return ExplainedLogit(
        asked.prompt,
        "words",
        asked.labels[target],
        None if versus is None else asked.labels[versus],
        described=(described(target), None if versus is None else described(versus)),
    )


def _named(options: Explain, question: Question) -> int | None:
    """Return the option named by `versus`, or None if it names none. Raises BadRequest for an unknown option."""
    if options.versus is None or options.versus == "next":
        return None
    wanted = str(options.versus).lower() if isinstance(options.versus, bool) else options.versus
    texts = [option.text for option in question.options]
    if wanted in texts:
        return texts.index(str(wanted))
    raise BadRequest(
        f'explain.versus: {shown(options.versus)} is not an option of {question.field}; accepted: "next", null, '
        f"{', '.join(map(shown, texts[:20]))}{', ...' if len(texts) > 20 else ''}.",
        param="explain.versus",
    )
