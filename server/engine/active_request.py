"""Active requests: the requests that have begun, each with its captures, times and outputs."""

import logging
import time
from dataclasses import dataclass, replace

from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.adapters import Adapters
from lightwell.server.engine.captures.request_captures import RequestCaptures
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.grammar import Grammar
from lightwell.server.engine.info import stacks_of
from lightwell.server.engine.messages.outputs import FinishReason, PromptLogprobs, RequestOutput, Timing
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.scheduler import Scheduler
from lightwell.server.engine.scheduling.steady_rows import SteadyRows
from lightwell.server.engine.sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)


class NoCaptureMemory(Exception):
    """There is no memory for a request's captures. It has not begun."""


@dataclass(slots=True)
class ActiveRequest:
    """A request that has begun."""

    sequence: Sequence
    captures: RequestCaptures
    timing: Timing

    @property
    def is_gathering(self) -> bool:
        """Return whether it holds memory for an answer that was not sent yet."""
        return self.captures.num_bytes > 0

    @property
    def has_answered(self) -> bool:
        """Return whether an output was sent; the first one includes all captures of the prompt."""
        return self.timing.first_token is not None

    def answer(self, result: StepResult, now: float) -> list[RequestOutput]:
        """Return its outputs after a step with tokens for it, or with its end: one for each token that the step has
        chosen or that the grammar then forced, at least one. If this raises, nothing has changed.

        now: CLOCK_MONOTONIC seconds.
        """
        seq = self.sequence
        tokens, rows = result.tokens.get(seq.uid, []), result.rows.get(seq.uid, [])
        outputs = [RequestOutput(uid=seq.uid, token_id=each) for each in (tokens + seq.forced if tokens else [None])]
        for output, logprobs in zip(outputs, result.logprobs.get(seq.uid, ()), strict=False):
            output.logprobs = logprobs
        for output, tensors in zip(outputs, rows, strict=False):
            output.tensors = tensors
        first, last = outputs[0], outputs[-1]
        if seq.prediction:  # only these clients read the numbers, and a token without them is handed on faster
            last.num_accepted, last.num_rejected = seq.num_accepted, seq.num_rejected
        if self.has_answered and not seq.is_finished:  # as in nearly every step
            return outputs
        found, timing = self.captures, self.timing
        first.num_cached_tokens = last.num_cached_tokens = seq.num_cached_tokens
        if not self.has_answered:
            first.timing = timing = replace(timing, first_token=now)
            first.tensors = first.tensors | found.arrays()
            if found.prompt_logprobs is not None:
                first.prompt_logprobs = PromptLogprobs.of(found.prompt_logprobs)
            found = found.after_prompt()
        if seq.is_finished:
            last.timing = timing = replace(timing, finished=now)
            last.finish_reason = seq.finish_reason
            is_stopping = seq.finish_reason == "stop" and seq.token_ids[-1] in seq.stopping_ids
            last.stop_token_id = seq.token_ids[-1] if is_stopping else None
        self.captures, self.timing = found, timing
        return outputs


class ActiveRequests(dict[int, ActiveRequest]):
    """All requests that have begun, by uid: the same ones as in the scheduler."""

    def __init__(self, scheduler: Scheduler, model: Transformer, adapters: Adapters) -> None:
        super().__init__()
        self._adapters = adapters
        self._scheduler = scheduler
        self._model = model
        self._stacks = stacks_of(model.config)
        self._rows: SteadyRows | None = None
        self._captures: dict[int, RequestCaptures] = {}
        """The captures of the latest step. A next step with the same rows uses them again."""

    def begin(self, request: EngineRequest, grammar: Grammar | None = None) -> None:
        """Queue a request and allocate memory for its captures.

        Raises NoCaptureMemory without memory for them, and ValueError if the request cannot run: too long for the
        cache, an empty prompt, a token that the network lacks, a uid in use, an adapter that is not loaded, or an
        invalid intervention. After any exception, nothing has changed.
        """
        self._check_tokens(request)
        seq = Sequence(request, self._stacks, self._adapters.of(request.adapter), grammar)
        self._scheduler.add(seq)
        try:
            captures = RequestCaptures.of(seq, self._model)
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises the latter
            self._scheduler.finish(seq, "memory")
            raise NoCaptureMemory("no memory for its captures") from error
        except BaseException:
            self._scheduler.finish(seq, "error")
            raise
        self[request.uid] = ActiveRequest(seq, captures, Timing(request.arrival_time))

    def _check_tokens(self, request: EngineRequest) -> None:
        """Raise ValueError for a token that the network lacks: on a GPU it would crash the worker."""
        size = self._model.config.vocab_size
        for ids in (request.prompt_token_ids, request.encoder_token_ids):
            if ids and not 0 <= min(ids) <= max(ids) < size:
                wrong = next(token for token in ids if not 0 <= token < size)
                raise ValueError(f"request {request.uid}: there is no token {wrong}; 0 to {size - 1} are accepted")

    def captures_of(self, schedule: Schedule, now: float) -> dict[int, RequestCaptures]:
        """Return the captures of a step's requests, by uid, and set the time of each request's first step.

        now: CLOCK_MONOTONIC seconds.
        """
        if schedule.rows is not None and schedule.rows is self._rows:
            return self._captures
        captures: dict[int, RequestCaptures] = {}
        for seq in schedule.sequences:
            active = self[seq.uid]
            captures[seq.uid] = active.captures
            if active.timing.scheduled is None:
                active.timing = replace(active.timing, scheduled=now)
        self._rows, self._captures = schedule.rows, captures
        return captures

    def plain_tokens(self, schedule: Schedule, result: StepResult) -> tuple[dict[int, int], list[Sequence]]:
        """Return the tokens of a step that come with nothing else, by uid, and the step's other active requests."""
        if schedule.is_steady:
            return {uid: tokens[0] for uid, tokens in result.tokens.items()}, []
        tokens: dict[int, int] = {}
        others: list[Sequence] = []
        of, special = result.tokens, {*result.logprobs, *result.rows, *result.failures}
        for seq in schedule.sequences:
            uid = seq.uid
            active = self.get(uid)
            if active is None:
                continue
            if (
                active.timing.first_token is None
                or seq.status is SequenceStatus.FINISHED
                or uid not in of
                or uid in special
                or seq.grammar is not None
                or seq.num_accepted
                or seq.num_rejected
            ):
                others.append(seq)
            else:
                tokens[uid] = of[uid][0]
        return tokens, others

    def withdraw(self, uid: int) -> EngineRequest:
        """Remove and return a request without outputs, and free all its memory."""
        seq = self.pop(uid).sequence
        self._scheduler.finish(seq, "memory")
        named = {"request_id": seq.request.request_id}
        logger.warning("memory is short: request %d waits to begin again", uid, extra={"fields": named})
        return seq.request

    def end(self, uid: int, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """End a request early, and free its blocks. Returns its last output."""
        self._scheduler.abort(uid, reason)
        timing = replace(self.pop(uid).timing, finished=time.monotonic())
        return RequestOutput(uid=uid, finish_reason=reason, error=error, timing=timing)
