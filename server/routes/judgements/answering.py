"""Asks the engine for the probability of each option, the first question alone, and all others over the prefix that it
left in the cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from server.engine.request import GenerateTask
from server.engine.sampling_params import SamplingParams
from server.http.errors import EngineError
from server.routes.context import AppContext
from server.routes.judgements.questions import Asked
from server.routes.tasks import TaskResult, Work, run_all


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer to one question."""

    probabilities: tuple[float, ...]
    """The share of each option among all labels, which sum to 1."""
    label_mass: float
    """The probability of all labels together, of the whole vocabulary."""
    is_label: bool
    """Whether the likeliest token of all is a label."""

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
    """Those of them that the prefix cache had."""


async def judge(context: AppContext, asked: Sequence[Asked], arrival: float) -> Judgements:
    """Return the answer to each question. Raises ApiError, and then none is answered."""
    works = [Work(_task(each), each.prompt, 0, is_sent=False) for each in asked]
    # Blocks of the cache are shared once they are computed: together, all questions would compute the input.
    results = await run_all(context, works[:1], arrival)
    if len(works) > 1:
        results += await run_all(context, works[1:], arrival)
    return Judgements(
        [_judgement(result) for result in results],
        sum(each.prompt.num_tokens for each in asked),
        sum(result.num_cached_tokens for result in results),
    )


def _task(asked: Asked) -> GenerateTask:
    """Return the task that reads the logits where the label comes: it generates one token, which nobody reads."""
    return GenerateTask(
        sampling=SamplingParams(max_tokens=1, seed=0, temperature=0, logprobs=0, logprob_token_ids=asked.labels)
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
