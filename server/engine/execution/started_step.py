"""A step that was started; on a device it may still run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lightwell.model.batch import Check
from lightwell.model.hooks.hooks import Hooks
from lightwell.server.engine.captures.attention_sink import AttentionSink
from lightwell.server.engine.captures.request_captures import RequestCaptures
from lightwell.server.engine.execution.device_runner import DevicePass
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.execution.token_choice import Placed, note_tokens
from lightwell.server.engine.messages.outputs import Failure


@dataclass(slots=True, eq=False)
class StartedStep:
    """A step that was started."""

    captures: Mapping[int, RequestCaptures]
    check: Check
    """Called between pieces of the work; it may raise to end the step."""
    result: StepResult = field(default_factory=StepResult)
    """The result so far."""
    sampling: Sequence[Placed] = ()
    """The chunks that need a token, which is chosen from their last rows."""
    hooks: Hooks | None = None
    row_sinks: Mapping[int, Sequence[AttentionSink]] = field(default_factory=dict)
    """The sinks of the attention rows that choose tokens, by uid; also of rows after a wrong draft."""
    passed: DevicePass | None = None
    """The step on the device, or None if it is done."""

    @property
    def places(self) -> dict[int, int]:
        """Return, by uid, the index of each token that the device chooses."""
        if self.passed is None or not self.passed.rows:
            return {}
        return {at.chunk.sequence.uid: place for place, at in enumerate(self.sampling)}

    @torch.inference_mode()
    def finish(self) -> StepResult:
        """Wait for the end of the step, and return its result."""
        result = self.result
        if self.passed is not None:
            self.passed.wait()
            if self.passed.rows:
                note_tokens(self.sampling, *self.passed.sampled(), result)
            self.passed.deliver()
        result.attention_seconds += seconds_of(self.hooks)
        for uid, sinks in self.row_sinks.items():
            if uid in result.tokens:
                self._deliver_rows(uid, sinks)
        for uid, found in self.captures.items():
            if found.sinks and found.problem is not None:
                result.failures[uid] = Failure("overflow", found.problem)
        return result

    def _deliver_rows(self, uid: int, sinks: Sequence[AttentionSink]) -> None:
        """Add the rows of a request's chosen tokens to the result. If the row of a later token fails, it is left to the
        next step.
        """
        result, tokens = self.result, self.result.tokens[uid]
        problems = [sink.problem for sink in sinks[: len(tokens)]]
        if problems[0] is not None:
            result.failures.setdefault(uid, Failure("overflow", problems[0]))
        del tokens[next((i for i, problem in enumerate(problems) if problem and i), len(tokens)) :]
        result.rows[uid] = [sink.arrays() for sink in sinks[: len(tokens)]]


def seconds_of(hooks: Hooks | None) -> float:
    """Return the seconds that attention spent on hooks."""
    return 0.0 if hooks is None else hooks.attention_seconds
