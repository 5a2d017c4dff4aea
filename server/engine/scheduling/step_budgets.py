"""Step budgets: bound the size of a step by the time of earlier steps."""

from math import isfinite

from lightwell.server.engine.scheduling.capture_budget import CaptureBudget
from lightwell.server.engine.scheduling.prompt_budget import PromptBudget, PromptLimits, adapted
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.scheduler import Scheduler
from lightwell.server.engine.scheduling.speculation import Speculation

_STEP_SECONDS = 1.0
"""Longest time of a step of prompts: new requests wait for its end."""
_LEAST_TOKENS = 128
"""Tokens that a step may always have: with fewer, each costs more, since the weights are read once per step."""
_FIRST_TOKENS = 256
"""Most tokens next to decodes before the first measurement."""

_QUIET_STEP_SECONDS = 0.2
"""Time of a step of batch rows while no other requests come, if a request that comes can cancel it."""
QUIET_SECONDS = 2.0
"""Time without other requests after which steps of batch rows are longer."""
_FIRST_BACKGROUND_TOKENS = 8
_MOST_BACKGROUND_TOKENS = 1 << 20


class StepSize:
    """The number of tokens that a step computes in about a second. It matters only on slow machines: elsewhere a step
    of `max_num_batched_tokens` takes less.
    """

    def __init__(self) -> None:
        self._cost: float | None = None
        """Recent seconds per token."""

    @property
    def tokens(self) -> int:
        """Return the most tokens of a step next to its decodes."""
        return _FIRST_TOKENS if self._cost is None else max(_LEAST_TOKENS, int(_STEP_SECONDS / self._cost))

    def note(self, seconds: float, schedule: Schedule) -> None:
        if schedule.num_tokens - schedule.num_decodes >= _LEAST_TOKENS:
            self._cost = adapted(self._cost, max(seconds / schedule.num_tokens, 1e-9))

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figure, if the cost is not usable."""
        if self._cost is not None and not (isfinite(self._cost) and self._cost > 0):
            raise AssertionError(f"the cost of a token is {self._cost} s; a finite number above 0 is expected")


class BackgroundSize:
    """The number of tokens of a step of batch rows that takes a given time. A request that arrives during such a step
    waits for its end, or cancels it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._size = float(_FIRST_BACKGROUND_TOKENS)

    @property
    def tokens(self) -> int:
        return int(self._size)

    def note(self, seconds: float, num_tokens: int) -> None:
        """Change the size after a step, at most to twice or half of it. It grows only after a step that used it all."""
        factor = min(2.0, max(0.5, self._seconds / max(seconds, 1e-9)))
        if factor < 1 or num_tokens >= self.tokens:
            self._size = min(max(self._size * factor, 1.0), _MOST_BACKGROUND_TOKENS)

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figure, if the size is not usable."""
        if not 1 <= self._size <= _MOST_BACKGROUND_TOKENS:
            raise AssertionError(f"a step of batch rows has {self._size} tokens; at least 1 is expected")


class StepBudgets:
    """The budgets of captures and of prompts, and the size of steps."""

    def __init__(
        self, max_capture_tokens: int | None, prompts: PromptLimits, speculation: Speculation | None = None
    ) -> None:
        """max_capture_tokens: most tokens of captures in a step, or None without a bound."""
        self._speculation = speculation or Speculation()
        self.captures = CaptureBudget(max_capture_tokens) if max_capture_tokens else None
        self._prompts = PromptBudget(prompts)
        self._size = StepSize()
        self._background = BackgroundSize(prompts.background_seconds)
        self._quiet_background = BackgroundSize(_QUIET_STEP_SECONDS)
        self._is_quiet = False

    def schedule(self, scheduler: Scheduler, *, is_quiet: bool = False) -> Schedule:
        """Schedule the next step within the budgets. is_quiet: whether steps of batch rows may be longer."""
        self._is_quiet = is_quiet
        captures = None if self.captures is None else self.captures.tokens
        return scheduler.schedule(captures, self._prompt_tokens, self._size_of_background.tokens)

    @property
    def _size_of_background(self) -> BackgroundSize:
        return self._quiet_background if self._is_quiet else self._background

    def _prompt_tokens(self, num_decodes: int, num_prompts: int) -> int:
        bound = self._prompts.tokens(num_decodes, num_prompts) if num_decodes else None
        return self._size.tokens if bound is None else min(bound, self._size.tokens)

    def note(self, seconds: float, schedule: Schedule) -> None:
        work = schedule.work
        self._size.note(seconds, schedule)
        if schedule.is_background:
            self._size_of_background.note(seconds, schedule.num_tokens)
        if self.captures is not None and schedule.has_text:
            self.captures.note(seconds, work)
        if not work.num_capture_tokens and not schedule.encodes:
            num_decodes, num_following = schedule.num_decodes, schedule.num_following
            num_prompt_tokens = work.num_text_tokens - num_decodes - num_following
            if num_prompt_tokens or not num_following:
                self._prompts.note(seconds, num_decodes, num_prompt_tokens)
            else:
                self._speculation.note(seconds, num_decodes, num_following, self._prompts.decode_seconds(num_decodes))

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figures, if they contradict each other."""
        self._size.check_integrity()
        self._background.check_integrity()
        self._quiet_background.check_integrity()
        if self.captures is not None:
            self.captures.check_integrity()
        self._prompts.check_integrity()
