"""Holds a step that was started: on a device it may still run.

It knows what is to be taken when the step is done; it starts nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from model.hooks.hooks import Hooks
from server.engine.captures.attention_sink import AttentionSink
from server.engine.captures.request_captures import RequestCaptures
from server.engine.execution.device_runner import DevicePass
from server.engine.execution.step_result import StepResult
from server.engine.execution.token_choice import Placed, TokenChoice
from server.engine.outputs import Failure


@dataclass(slots=True, eq=False)
class StartedStep:
    """A step that was started."""

    captures: Mapping[int, RequestCaptures]
    result: StepResult = field(default_factory=StepResult)
    """What is known so far."""
    sampling: Sequence[Placed] = ()
    """The chunks from whose last rows tokens are chosen."""
    hooks: Hooks | None = None
    row_sinks: Mapping[int, AttentionSink] = field(default_factory=dict)
    """The sinks of the attention rows that choose tokens, by uid."""
    passed: DevicePass | None = None
    """The step on the device, or None if it is done."""

    @property
    def places(self) -> dict[int, int]:
        """Return, by uid, the place of each token that the device chooses among all of them."""
        if self.passed is None or not self.passed.rows:
            return {}
        return {at.chunk.sequence.uid: place for place, at in enumerate(self.sampling)}

    @torch.inference_mode()
    def finish(self) -> StepResult:
        """Wait until the step is done, and return all that it gives."""
        result = self.result
        if self.passed is not None:
            self.passed.wait()
            if self.passed.rows:
                TokenChoice.take(self.sampling, self.passed, result)
            self.passed.deliver()
        result.attention_seconds += seconds_of(self.hooks)
        for uid, sink in self.row_sinks.items():
            result.rows[uid] = sink.arrays()
            if sink.problem is not None:
                result.failures.setdefault(uid, Failure("overflow", sink.problem))
        for uid, found in self.captures.items():
            if found.sinks and found.problem is not None:
                result.failures[uid] = Failure("overflow", found.problem)
        return result


def seconds_of(hooks: Hooks | None) -> float:
    """Return the seconds that attention took for hooks."""
    return 0.0 if hooks is None else hooks.attention_seconds
