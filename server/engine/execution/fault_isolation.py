"""Fault isolation: runs a failed step again in halves, until the sequences that cause the failure run alone.

The others get the same results as without the failure: keys and values are written again to the same places, captures
of a failed pass are undone first, and numbers do not depend on the sequences that share a pass.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from lightwell.server.engine.captures.request_captures import NOTHING, RequestCaptures
from lightwell.server.engine.execution.model_runner import ModelRunner
from lightwell.server.engine.execution.step_cancellation import StepCancelled
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.memory.process_memory import give_back_memory, reserve
from lightwell.server.engine.messages.outputs import Failure, failure_of, raise_exit
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)


def run_isolated(
    runner: ModelRunner,
    schedule: Schedule,
    captures: Mapping[int, RequestCaptures],
    check: Callable[[], None],
    first: Callable[[], StepResult],
) -> StepResult:
    """Return the step's result. Its `failures` are the sequences that fail when they run alone, or all of them if not
    even one token finds memory: other requests may hold it.

    first: the first attempt at the whole step. Raises the exception of `runner.check` if it is not a lack of memory:
    then no sequence is the cause, and the engine cannot continue. Raises StepCancelled when `check`, which is called
    between pieces of the work, raises it: then the step has no result.
    """
    everyone = schedule.sequences
    try:
        marks = {uid: found.mark() for uid, found in captures.items() if found is not NOTHING}
        isolation = _Isolation(runner, schedule, captures, check, marks)
    except BaseException as error:  # marks need memory too
        return _all_short(everyone, error)
    try:
        try:
            return first()
        except StepCancelled:
            raise
        except BaseException as error:
            failure = _logged(everyone, error)
        # Not in the handler: the exception keeps the tensors of the failed pass alive, and memory may be short. A plan
        # for the next step may have taken a sequence's blocks.
        return isolation.result([seq for seq in everyone if seq.status is SequenceStatus.RUNNING], failure)
    except StepCancelled:
        isolation.take_back(captures.keys())
        raise
    except BaseException as error:
        isolation.take_back(captures.keys())
        return _all_short(everyone, error)


def _all_short(sequences: ReadOnlySequence[Sequence], error: BaseException) -> StepResult:
    """Return the result of a step without any memory. Raises `error` if it has another cause."""
    failure = failure_of(error)
    if failure.reason != "memory":
        raise error
    return StepResult(failures={seq.uid: failure for seq in sequences})


def _logged(sequences: ReadOnlySequence[Sequence], error: BaseException) -> Failure:
    """Log the failure of a pass over these sequences, and return it. Raises `error` if it ends the process."""
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
    """One step's work, in parts that can be undone and run again."""

    runner: ModelRunner
    schedule: Schedule
    captures: Mapping[int, RequestCaptures]
    check: Callable[[], None]
    marks: Mapping[int, Callable[[], None]]
    """By uid, functions that undo the captures since the step began."""

    def result(self, everyone: ReadOnlySequence[Sequence], failure: Failure) -> StepResult:
        """Return the result of the step's parts, after the whole step has failed. Raises the runner's exceptions."""
        result = StepResult()
        self._clean_up(self.captures.keys(), failure)
        self.runner.check()
        with reserve():
            self._isolate(everyone, failure, result)
        self.runner.check()  # a GPU may report a failure late
        return result

    def take_back(self, uids: Iterable[int]) -> None:
        """Undo the step's captures for these requests."""
        for uid in uids:
            if uid in self.marks:
                self.marks[uid]()

    def _isolate(self, sequences: ReadOnlySequence[Sequence], failure: Failure, result: StepResult) -> None:
        """Add to `result` the results of sequences that failed only because of others, and the failures of the rest."""
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
        """Return the result of these sequences, or their failure, after undoing their captures."""
        captures = {seq.uid: self.captures[seq.uid] for seq in sequences}
        part = self.schedule.of(captures.keys())
        try:
            return self.runner.run(part, captures, self.check)
        except StepCancelled:
            raise
        except BaseException as error:
            failure = _logged(sequences, error)
        self._clean_up(captures.keys(), failure)  # not in the handler either
        return failure

    def _clean_up(self, uids: Iterable[int], failure: Failure) -> None:
        self.take_back(uids)
        if failure.reason == "memory":
            give_back_memory()
