"""One request while the engine has it: what it found, its clock, and the words it is told.

Knows what a step gave; neither queue nor network.
"""

import time
from dataclasses import dataclass, replace

from server.engine.captures.request_captures import RequestCaptures
from server.engine.execution.model_runner import StepResult
from server.engine.outputs import Array, FinishReason, RequestOutput, Timing, TokenLogprobs
from server.engine.request import EngineRequest
from server.engine.sequence import Sequence


@dataclass(slots=True)
class ActiveRequest:
    """One request that has begun."""

    sequence: Sequence
    captures: RequestCaptures
    timing: Timing

    @property
    def is_gathering(self) -> bool:
        """Whether it holds memory for its answer; it has then been told nothing yet."""
        return self.captures.num_bytes > 0

    @property
    def has_answered(self) -> bool:
        """Whether it was told something: with its first word goes all that its prompt gave."""
        return self.timing.first_token is not None

    def answer(self, result: StepResult, now: float) -> RequestOutput:
        """What it is told after a step that brought it a token, or its end. Whatever this raises, nothing has changed.

        now: CLOCK_MONOTONIC seconds.
        """
        seq = self.sequence
        token = result.tokens.get(seq.uid)
        if self.has_answered and not seq.is_finished:  # as in nearly every step
            return RequestOutput(
                uid=seq.uid,
                token_id=token,
                logprobs=result.logprobs.get(seq.uid),
                tensors=result.rows.get(seq.uid, {}),
                num_cached_tokens=seq.num_cached_tokens,
            )
        found, timing = self.captures, self.timing
        tensors: dict[str, Array] = dict(result.rows.get(seq.uid, {}))
        scored: list[TokenLogprobs | None] | None = None
        if not self.has_answered:
            timing = replace(timing, first_token=now)
            tensors.update(found.arrays())
            scored = found.prompt_logprobs
            found = RequestCaptures(patches=found.patches)
        if seq.is_finished:
            timing = replace(timing, finished=now)
        output = RequestOutput(
            uid=seq.uid,
            token_id=token,
            logprobs=result.logprobs.get(seq.uid),
            prompt_logprobs=None if scored is None else tuple(scored),
            tensors=tensors,
            finish_reason=seq.finish_reason,
            stop_token_id=token if seq.finish_reason == "stop" else None,
            num_cached_tokens=seq.num_cached_tokens,
            timing=timing,
        )
        self.captures, self.timing = found, timing
        return output

    def ending(self, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """Its last word, if it did not complete."""
        timing = replace(self.timing, finished=time.monotonic())
        return RequestOutput(uid=self.sequence.uid, finish_reason=reason, error=error, timing=timing)


def unbegun(request: EngineRequest, reason: FinishReason, error: str | None = None) -> RequestOutput:
    """The last word on a request that is in no step."""
    timing = Timing(request.arrival_time, finished=time.monotonic())
    return RequestOutput(uid=request.uid, finish_reason=reason, error=error, timing=timing)
