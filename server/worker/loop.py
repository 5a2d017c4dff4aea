"""The worker's main loop: receive messages, run one engine step, send one message, and repeat.

A step that raises ends the worker with an error, since the engine's state can no longer be trusted. The API process
then fails the requests and starts another worker.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightwell.server.engine.memory.process_memory import give_back_memory
from lightwell.server.engine.messages.outputs import RequestOutput, StepOutput, failure_of, raise_exit
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.ipc import messages
from lightwell.server.ipc.link import WorkerLink

if TYPE_CHECKING:  # the API process imports this module, and no torch
    from lightwell.server.engine.engine import Engine

logger = logging.getLogger(__name__)

IDLE_INTERVAL = 0.5
"""Seconds between two heartbeats of an idle worker."""
IDLE_BEFORE_CHECK = 2.0
"""Seconds of idleness before the engine's state is checked and freed memory is returned to the system, so that the next
request rarely waits for this.
"""
CHECK_INTERVAL = 10.0
"""Least seconds between two checks."""
_LAST_WORDS = 1.0
_MOST_ABORT_BYTES = 64
"""Most bytes of the header of an Abort; longer headers are not decoded when looking for aborts."""
_BEAT = messages.encode(messages.Heartbeat())


def run_engine(engine: "Engine", link: WorkerLink) -> None:
    """Run the loop. It ends only by an exception: ConnectionError when the link ends, or an error of the engine."""
    engine.call_when_ready(link.wake)  # for answers that need no step
    news = _News(link)
    engine.watch_aborts(news.new_aborts)
    engine.watch_requests(lambda: news.has_request)
    engine.send_early(lambda early: _send(link, early, stepped=False))
    engine.call_when_short(lambda: link.flush(_LAST_WORDS))
    watch = StepWatch()
    while True:
        taken = _take_messages(engine, link, 0.0 if engine.has_work else IDLE_INTERVAL)
        for number in taken.questions:
            link.send(*messages.encode(messages.Described(number, engine.state() | watch.state())))
        if engine.has_work:
            watch.begin()
            news.has_request = False
            step, stepped = engine.step(), True
            watch.end()
        elif taken.is_any:  # an abort may have changed the gauges
            step, stepped = StepOutput(stats=engine.stats()), False
        else:
            link.send(*_BEAT)
            if watch.should_check():
                _check(engine, link)
                give_back_memory()
            continue
        if taken.failures:
            step = replace(step, others=(*taken.failures, *step.others))
        _send(link, step, taken.refusals, stepped=stepped)
        del step, taken  # frees the answers before the next step


def _send(
    link: WorkerLink, step: StepOutput, refusals: Sequence[messages.RequestRefused] = (), *, stepped: bool
) -> None:
    link.send(*messages.encode(messages.step_message(step, refusals, stepped=stepped)))


def _check(engine: "Engine", link: WorkerLink) -> None:
    """Check the engine's state. Raises AssertionError for a contradiction: the engine is then unusable."""
    try:
        engine.check_integrity()
    except AssertionError as error:
        link.send(*messages.encode(messages.IntegrityFailed(" ".join(str(error).split()))))
        link.flush(_LAST_WORDS)
        raise


class StepWatch:
    """Records the time and duration of the last step, and decides when to check the engine's state."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._ended = clock()
        self._checked = -CHECK_INTERVAL
        self._num_steps = self._num_checked_steps = 0

    def begin(self) -> None:
        self._begun = self._clock()

    def end(self) -> None:
        self._ended = self._clock()
        self._num_steps += 1

    def should_check(self) -> bool:
        """Return True once in each idle period, after some seconds of it. The loop calls this while idle."""
        now = self._clock()
        is_due = now - self._ended >= IDLE_BEFORE_CHECK and now - self._checked >= CHECK_INTERVAL
        if self._num_steps == self._num_checked_steps or not is_due:
            return False
        self._checked, self._num_checked_steps = now, self._num_steps
        return True

    def state(self) -> dict[str, Any]:
        """Return the state for a debug dump, in seconds."""
        if not self._num_steps:
            return {"num_steps": 0}
        since, took = self._clock() - self._ended, self._ended - self._begun
        return {"num_steps": self._num_steps, "last_step_took": round(took, 6), "since_last_step": round(since, 3)}


@dataclass(slots=True)
class _News:
    """The messages that arrive during a step. They stay in the queue: an Abort does not overtake its request."""

    link: WorkerLink
    has_request: bool = False
    """True if a request has arrived since the step began; rows of batches do not count."""

    def new_aborts(self) -> list[int]:
        """Return the uids of the Aborts since the last check."""
        uids = []
        for frame in self.link.peek():
            uid = messages.aborted_uid(frame.header) if len(frame.header) <= _MOST_ABORT_BYTES else None
            if uid is not None:
                uids.append(uid)
            elif not self.has_request:
                self.has_request = messages.is_urgent(frame.header)
        return uids


@dataclass(slots=True)
class _Taken:
    """The messages between two steps, by kind."""

    is_any: bool
    refusals: list[messages.RequestRefused] = field(default_factory=list)
    failures: list[RequestOutput] = field(default_factory=list)
    """Outputs of requests that the engine could not begin."""
    questions: list[int] = field(default_factory=list)
    """Numbers of the `Describe` messages."""


def _send_loaded(link: WorkerLink, number: int, error: str | None) -> None:
    with contextlib.suppress(ConnectionError):  # the API process is gone: the loop's thread ends this process
        link.send(*messages.encode(messages.AdapterLoaded(number, error)))


def _take_messages(engine: "Engine", link: WorkerLink, timeout: float) -> _Taken:
    """Give the engine all messages. An error of one message must not end the worker of the others."""
    frames = link.poll(timeout)
    taken = _Taken(bool(frames))
    for frame in frames:
        try:
            message = messages.decode_to_worker(frame.header, frame.buffers)
        except messages.MessageError as error:
            taken.refusals.append(messages.RequestRefused(messages.uid_of(frame.header), str(error)))
            continue
        match message:
            case EngineRequest():
                _add_request(engine, message, taken)
            case messages.Abort(uid):
                engine.abort(uid)
            case messages.Describe(number):
                taken.questions.append(number)
            case messages.LoadAdapter(number, folder, root):
                done = partial(_send_loaded, link, number)
                engine.adapters.begin(number, Path(folder), done, root=None if root is None else Path(root))
            case messages.DropAdapter(number):
                engine.adapters.drop(number)
    return taken


def _add_request(engine: "Engine", request: EngineRequest, taken: _Taken) -> None:
    try:
        engine.add_request(request)
    except ValueError as error:
        taken.refusals.append(messages.RequestRefused(request.uid, str(error)))
    except BaseException as error:
        raise_exit(error)
        named = {"request_id": request.request_id}
        logger.exception("request %d could not be begun", request.uid, extra={"fields": named})
        failure = failure_of(error)
        taken.failures.append(RequestOutput(uid=request.uid, finish_reason=failure.reason, error=failure.message))
