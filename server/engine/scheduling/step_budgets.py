"""Bounds what a step may hold beside running text, by how long earlier steps took. It knows schedules and seconds."""

from server.engine.scheduling.capture_budget import CaptureBudget
from server.engine.scheduling.prompt_budget import PromptBudget, PromptLimits
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler


class StepBudgets:
    """The budgets of captures and of prompts."""

    def __init__(self, max_capture_tokens: int | None, prompts: PromptLimits) -> None:
        """Bound captures to that many tokens at most, or not at all."""
        self.captures = CaptureBudget(max_capture_tokens) if max_capture_tokens else None
        self._prompts = PromptBudget(prompts)

    def schedule(self, scheduler: Scheduler) -> Schedule:
        """Choose what the next step computes, within what the budgets allow."""
        return scheduler.schedule(None if self.captures is None else self.captures.tokens, self._prompts.tokens)

    def note(self, seconds: float, schedule: Schedule) -> None:
        """Note how long a step took."""
        work = schedule.work
        if self.captures is not None and schedule.has_text:
            self.captures.note(seconds, work)
        if not work.num_capture_tokens and not schedule.encodes:
            num_decodes = schedule.num_decodes
            self._prompts.note(seconds, num_decodes, work.num_text_tokens - num_decodes)

    def check_integrity(self) -> None:
        """Check both for contradictions. Raises AssertionError with the facts."""
        if self.captures is not None:
            self.captures.check_integrity()
        self._prompts.check_integrity()
