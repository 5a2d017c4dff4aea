"""Run-ahead: starts a step on a device while the one before still runs, with tokens that the host does not know yet.

The device then never waits for the host. The end of a sequence is noticed one step late; its extra numbers are dropped.
A step that runs an encoder, or captures more than patterns of the rows that chose its tokens, waits for the one before.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lightwell.server.engine.captures.request_captures import NOTHING, RequestCaptures
from lightwell.server.engine.execution.model_runner import ModelRunner
from lightwell.server.engine.execution.started_step import StartedStep
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.messages.outputs import raise_exit
from lightwell.server.engine.scheduling.schedule import Schedule

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Step:
    """A step that was scheduled."""

    schedule: Schedule
    captures: Mapping[int, RequestCaptures]
    began: float
    """CLOCK_MONOTONIC seconds at which it was scheduled."""
    started: StartedStep | None = None
    is_advanced: bool = False
    """Whether its sequences are past it (`Schedule.advance`)."""


class RunAhead:
    """The step that runs, and the one that was started after it."""

    def __init__(self, plan: Callable[[], Step | None], leave_rows: Callable[[], None]) -> None:
        """plan: returns the next step, or None if nothing is left to do. leave_rows: as in `Scheduler`."""
        self._plan, self._leave_rows = plan, leave_rows
        self._next: Step | None = None
        self._has_warned = False

    @property
    def is_running(self) -> bool:
        """Return whether a step was started and not taken yet."""
        return self._next is not None

    def take(self) -> Step | None:
        """Return the next step, which may run already, or None if there is nothing to do."""
        step, self._next = self._next or self._plan(), None
        return step

    def run(self, runner: ModelRunner, step: Step, check: Callable[[], None]) -> StepResult:
        """Run a step to its end, and meanwhile start the next one if possible. Raises the runner's exceptions."""
        if not runner.can_run_ahead:
            return runner.run(step.schedule, step.captures, check)
        try:
            if step.started is None:
                step.started = runner.start(step.schedule, step.captures, check)
                self._advance(step)
            self._start_next(runner, step.started)
            return step.started.finish()
        except BaseException:
            self._drop_next()
            self._leave_rows()
            if step.is_advanced:
                step.schedule.retreat()
                step.is_advanced = False
            raise

    def go_on(self, result: StepResult) -> None:
        """Advance the step that was started meanwhile, once the one before is committed."""
        if self._next is None:
            return
        if result.failures:  # some of its sequences may begin again
            self._drop_next()
        else:
            self._advance(self._next)

    @staticmethod
    def _advance(step: Step) -> None:
        step.schedule.advance()
        step.is_advanced = True

    def _start_next(self, runner: ModelRunner, running: StartedStep) -> None:
        step = self._plan()
        if step is None or not step.schedule.sequences or not _may_begin(step, running, runner):
            return  # it is planned again later
        try:
            step.started = runner.start(step.schedule, step.captures, lambda: None, running)
        except BaseException as error:
            raise_exit(error)
            if not self._has_warned:  # a lasting cause would fill the log
                logger.warning("a step could not start before the previous one ended; it runs later", exc_info=error)
                self._has_warned = True
            return  # it will run later, and fail there if it must
        self._next = step

    def _drop_next(self) -> None:
        if self._next is not None and self._next.started is not None and self._next.started.passed is not None:
            self._next.started.passed.wait()
        self._next = None


def _may_begin(step: Step, running: StartedStep, runner: ModelRunner) -> bool:
    """Return whether a step may begin before the tokens of the running one are known."""
    if step.schedule.encodes:
        return False
    places = running.places
    if step.schedule.is_steady:
        return bool(places) or not running.sampling
    for seq in step.schedule.sequences:
        if seq.adapter is not None or seq.chooses_on_host or (seq.awaits_token and seq.uid not in places):
            return False
        captures, rows = step.captures[seq.uid], seq.row_capture
        if captures is not NOTHING and not captures.is_empty:
            return False
        if rows is not None and not (runner.serves_patterns and (rows.kind, rows.part) == ("pattern", "decoder")):
            return False
    return True
