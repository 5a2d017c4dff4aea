"""Runs requests to the engine that are answered at once, by tensors or one token: all of one HTTP request are answered,
or none.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from lightwell.server.engine.messages.outputs import Array, TokenLogprobs
from lightwell.server.engine.messages.request import EngineRequest, Intervention, Task
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.prompts.prompt import MAX_TOGETHER, Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import ApiError, EngineError, PayloadTooLarge, QueueFull, too_much_captured

_TOKEN_BYTES = 26
"""Bytes of one token in an answer, approximately: its text, its id, its span in the input."""


@dataclass(frozen=True, slots=True)
class Work:
    """One input and the engine's task for it."""

    task: Task
    prompt: Prompt
    capture_bytes: int
    interventions: tuple[Intervention, ...] = ()
    is_sent: bool = True
    """Whether the captured numbers stay in memory until the answer is sent."""

    @property
    def num_bytes(self) -> int:
        """Return how many bytes it counts for in the capture budget."""
        return self.capture_bytes + value_bytes(self.interventions)


@dataclass(slots=True)
class TaskResult:
    """The engine's answer to one task."""

    tensors: dict[str, Array] = field(default_factory=dict)
    logprobs: TokenLogprobs | None = None
    """Log-probabilities of the newest token, if the task generates with log-probabilities."""
    num_cached_tokens: int = 0


def value_bytes(interventions: Sequence[Intervention]) -> int:
    """Return the bytes of interventions that the worker keeps during the request: they count as captured numbers."""
    return sum(len(change.array.data) for change in interventions if change.array is not None)


def count_rejection(model: ServedModel, error: ApiError) -> None:
    """Count an error that refuses an inspection request."""
    if isinstance(error, PayloadTooLarge):
        model.metrics.capture_rejections.labels("answer_too_large").inc()
    elif isinstance(error, QueueFull) and error.code == "capture_budget_full":
        model.metrics.capture_rejections.labels("budget_full").inc()


@contextmanager
def counted_refusals(model: ServedModel) -> Iterator[None]:
    """Count a refusal of an answer that would be too large."""
    try:
        yield
    except PayloadTooLarge as error:
        count_rejection(model, error)
        raise


def token_bytes(inputs: Sequence[Prompt]) -> int:
    """Return approximately how many bytes the tokens of all inputs take in an answer."""
    return _TOKEN_BYTES * sum(prompt.num_tokens for prompt in inputs)


def check_capture(model: ServedModel, num_bytes: int, param: str | None = None) -> None:
    """Raise PayloadTooLarge for more captured bytes than are ever accepted.

    All inputs of one HTTP request count together: the captures of the first wait here for the last.
    """
    limit = model.capture_limit
    if num_bytes > limit:
        error = too_much_captured(num_bytes, limit, param)
        count_rejection(model, error)
        raise error


async def run_all(model: ServedModel, works: Sequence[Work]) -> list[TaskResult]:
    """Return the results of all works, in order. Raises the first ApiError; the others are aborted or not begun."""
    captured = sum(work.capture_bytes for work in works)
    values = max((value_bytes(work.interventions) for work in works), default=0)
    check_capture(model, captured + values)
    fitting = (model.capture_limit - captured) // max(1, values)  # or it would fill its own budget
    try:
        if len(works) == 1:  # without a task of its own, which would be a large part of the cost of a short input
            return [await _run_one(model, works[0])]
        max_together = max(1, min(MAX_TOGETHER, model.settings.max_num_seqs, fitting))
        return await _run_together(model, works, max_together)
    except ApiError as error:
        count_rejection(model, error)
        raise


async def _run_together(model: ServedModel, works: Sequence[Work], max_together: int) -> list[TaskResult]:
    """Return the results of all works; at most `max_together` are in the engine at once."""
    places = asyncio.Semaphore(max_together)
    failures: list[ApiError] = []

    async def run(work: Work) -> TaskResult:
        async with places:
            if failures:  # these run before `gather` cancels them: each would be refused, and counted, once more
                raise failures[0]
            try:
                return await _run_one(model, work)
            except ApiError as error:
                failures.append(error)
                raise

    tasks = [asyncio.create_task(run(work)) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_one(model: ServedModel, work: Work) -> TaskResult:
    request_context = current_request()
    request_context.check_time()
    request = EngineRequest(
        prompt_token_ids=tuple(work.prompt.ids),
        task=work.task,
        encoder_token_ids=tuple(work.prompt.encoder_ids),
        second_segment=work.prompt.second_segment,
        interventions=work.interventions,
        capture_bytes=work.num_bytes,
    )
    handle = await model.engine.submit(request, request_context)
    result = TaskResult()
    outcome: str | None = "abort"
    try:
        async for output in handle:
            result.tensors.update(output.tensors)
            result.logprobs = output.logprobs or result.logprobs
            result.num_cached_tokens = max(result.num_cached_tokens, output.num_cached_tokens)
            if output.finish_reason is not None:
                outcome = None
                model.metrics.observe_end(
                    output.finish_reason, request_context.elapsed, output.timing, work.prompt.num_tokens
                )
                if work.is_sent:
                    model.engine.hold_capture(work.capture_bytes, request_context=request_context)
                return result
        outcome = None
        raise EngineError("The engine ended this request without an answer.", code="engine_error")
    except ApiError:
        outcome = None  # it failed: not an abort by the client
        raise
    finally:
        handle.close()
        if outcome is not None:
            model.metrics.observe_end(outcome, request_context.elapsed, None, work.prompt.num_tokens)
