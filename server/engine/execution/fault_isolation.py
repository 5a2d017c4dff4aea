"""Runs a step; if it raises, runs it again in halves until the sequences that cause the failure are alone.

The others get what they would have got: keys and values are written again to the same places, what a failed pass had
captured is taken back first, and numbers do not depend on which sequences share a pass. It knows no queue and no
network.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from server.engine.captures.request_captures import RequestCaptures
from server.engine.execution.model_runner import ModelRunner
from server.engine.execution.step_cancellation import StepCancelled
from server.engine.execution.step_result import StepResult
from server.engine.memory.memory_limit import give_back_memory, reserve
from server.engine.outputs import Failure, failure_of, raise_exit
from server.engine.scheduling.schedule import Schedule
from server.engine.sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)


def run_isolated(
    runner: ModelRunner,
    schedule: Schedule,
    captures: Mapping[int, RequestCaptures],
    check: Callable[[], None] = lambda: None,
    first: Callable[[], StepResult] | None = None,
) -> StepResult:
    """Return the step's result. Sequences that fail when they run alone are among its `failures`, and so are all of
    them if not even one token finds memory: other requests may hold it.

    first: the first attempt, if it is not to run all of the step. Raises whatever else `runner.check` raises: then no
    sequence is to blame, and the engine cannot continue. Raises StepCancelled when `check`, which is called between
    pieces of the work, raises it: then nothing of the step has been delivered.
    """
    everyone = schedule.sequences
    try:
        marks = {uid: found.mark() for uid, found in captures.items() if found.is_gathering}
        isolation = _Isolation(runner, schedule, captures, check, marks)
    except BaseException as error:  # what takes a failed pass back needs memory too
        return _all_short(everyone, error)
    try:
        try:
            return first() if first else runner.run(schedule.chunks, captures, schedule.encodes, check)
        except StepCancelled:
            raise
        except BaseException as error:
            failure = _logged(everyone, error)
        # Not in the handler: the exception keeps alive whatever the failed pass held, and memory may be short. What was
        # planned meanwhile may have taken a sequence's blocks.
        return isolation.result([seq for seq in everyone if seq.status is SequenceStatus.RUNNING], failure)
    except StepCancelled:
        isolation.take_back(captures.keys())
        raise
    except BaseException as error:
        isolation.take_back(captures.keys())
        return _all_short(everyone, error)


def _all_short(sequences: ReadOnlySequence[Sequence], error: BaseException) -> StepResult:
    """Return the result of a step for which there was no memory at all. Raises `error` if it has another cause."""
    failure = failure_of(error)
    if failure.reason != "memory":
        raise error
    return StepResult(failures={seq.uid: failure for seq in sequences})


def _logged(sequences: ReadOnlySequence[Sequence], error: BaseException) -> Failure:
    """Log the failure of a pass over these sequences, and return it. Raises `error` if it asks the process to end."""
    raise_exit(error)
    failure = failure_of(error)
    if len(sequences) == 1:
        (seq,) = sequences
        named = {"request_id": seq.request.request_id}
        logger.exception("request %d failed; the other requests of its step continue", seq.uid, extra={"fields": named})
    else:
        num_requests = len(sequences)
        logger.warning("a step over %d requests failed, and is run in halves: %r", num_requests, error)
    return failure


@dataclass(frozen=True, slots=True)
class _Isolation:
    """One step's work, of which any part can be taken back and run again."""

    runner: ModelRunner
    schedule: Schedule
    captures: Mapping[int, RequestCaptures]
    check: Callable[[], None]
    marks: Mapping[int, Callable[[], None]]
    """By uid, what takes back all that a request has captured since the step began."""

    def result(self, everyone: ReadOnlySequence[Sequence], failure: Failure) -> StepResult:
        """Return what the parts of the step give, once all of it together has failed. Raises what the runner raises."""
        result = StepResult()
        self._clean_up(self.captures.keys(), failure)
        self.runner.check()
        with reserve():
            self._isolate(everyone, failure, result)
        self.runner.check()  # what fails late, as a GPU does, may have failed since
        return result

    def take_back(self, uids: Iterable[int]) -> None:
        """Discard what the step has captured for these requests."""
        for uid in uids:
            if uid in self.marks:
                self.marks[uid]()

    def _isolate(self, sequences: ReadOnlySequence[Sequence], failure: Failure, result: StepResult) -> None:
        """Add to `result` what sequences give that fail only because of others in the batch, and the failures of the
        rest.
        """
        if len(sequences) == 1:
            result.failures[sequences[0].uid] = failure
            return
        middle = len(sequences) // 2
        for half in (sequences[:middle], sequences[middle:]):
            part = self._attempt(half)
            if isinstance(part, StepResult):
                result.add(part)
            else:
                self._isolate(half, part, result)

    def _attempt(self, sequences: ReadOnlySequence[Sequence]) -> StepResult | Failure:
        """Return the result of these sequences, or why there is none; what they had captured is then taken back."""
        captures = {seq.uid: self.captures[seq.uid] for seq in sequences}
        part = self.schedule.of(captures.keys())
        try:
            return self.runner.run(part.chunks, captures, part.encodes, self.check)
        except StepCancelled:
            raise
        except BaseException as error:
            failure = _logged(sequences, error)
        self._clean_up(captures.keys(), failure)  # not in the handler either
        return failure

    def _clean_up(self, uids: Iterable[int], failure: Failure) -> None:
        """Release what a failed pass has left."""
        self.take_back(uids)
        if failure.reason == "memory":
            give_back_memory()
