"""Bounds the size of a step by the time that earlier steps took. It reads schedules and seconds."""

from math import isfinite

from server.engine.scheduling.capture_budget import CaptureBudget
from server.engine.scheduling.prompt_budget import PromptBudget, PromptLimits, adapted
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler

_STEP_SECONDS = 1.0
"""The time that a step of prompts should take at most: new requests wait for its end."""
_LEAST_TOKENS = 128
"""Tokens that a step may always have, however long they take: with fewer, each costs more, since the weights are read
once per step.
"""
_FIRST_TOKENS = 256
"""Most tokens next to decodes before any step was measured."""


class StepSize:
    """The number of tokens that a step computes in about a second. It matters on slow machines only: elsewhere a step
    of `max_num_batched_tokens` takes less.
    """

    def __init__(self) -> None:
        self._cost: float | None = None
        """Recent seconds per token."""

    @property
    def tokens(self) -> int:
        """Return the most tokens next to the decodes of a step."""
        return _FIRST_TOKENS if self._cost is None else max(_LEAST_TOKENS, int(_STEP_SECONDS / self._cost))

    def note(self, seconds: float, schedule: Schedule) -> None:
        if schedule.num_tokens - schedule.num_decodes >= _LEAST_TOKENS:
            self._cost = adapted(self._cost, max(seconds / schedule.num_tokens, 1e-9))

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figure, if no number of tokens follows from it."""
        if self._cost is not None and not (isfinite(self._cost) and self._cost > 0):
            raise AssertionError(f"the cost of a token is {self._cost} s; a finite number above 0 is expected")


class StepBudgets:
    """The budgets of captures and of prompts, and the size of steps."""

    def __init__(self, max_capture_tokens: int | None, prompts: PromptLimits) -> None:
        """Bound captures to that many tokens at most, or not at all."""
        self.captures = CaptureBudget(max_capture_tokens) if max_capture_tokens else None
        self._prompts = PromptBudget(prompts)
        self._size = StepSize()

    def schedule(self, scheduler: Scheduler) -> Schedule:
        """Choose the work of the next step, within the budgets."""
        return scheduler.schedule(None if self.captures is None else self.captures.tokens, self._prompt_tokens)

    def _prompt_tokens(self, num_decodes: int, num_prompts: int) -> int:
        """Return the most prompt tokens next to `num_decodes` decodes."""
        bound = self._prompts.tokens(num_decodes, num_prompts) if num_decodes else None
        return self._size.tokens if bound is None else min(bound, self._size.tokens)

    def note(self, seconds: float, schedule: Schedule) -> None:
        work = schedule.work
        self._size.note(seconds, schedule)
        if self.captures is not None and schedule.has_text:
            self.captures.note(seconds, work)
        if not work.num_capture_tokens and not schedule.encodes:
            num_decodes = schedule.num_decodes
            self._prompts.note(seconds, num_decodes, work.num_text_tokens - num_decodes)

    def check_integrity(self) -> None:
        """Check them for contradictions. Raises AssertionError with the facts."""
        self._size.check_integrity()
        if self.captures is not None:
            self.captures.check_integrity()
        self._prompts.check_integrity()
