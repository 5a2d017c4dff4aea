"""The worker's main loop: take the messages that came, run one engine step, send one message, and repeat.

A step that raises ends the worker with an error: what the engine holds can no longer be trusted, and the API process
fails the requests and starts another worker. It knows nothing of HTTP, and of the engine only its few calls.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.engine.memory.memory_limit import give_back_memory
from server.engine.outputs import RequestOutput, StepOutput, failure_of, raise_exit
from server.ipc import messages
from server.ipc.link import WorkerLink
from server.ipc.messages import AdapterLoaded, DropAdapter, LoadAdapter

if TYPE_CHECKING:  # the API process imports this module, and no torch
    from server.engine.engine import Engine

logger = logging.getLogger(__name__)

IDLE_INTERVAL = 0.5
"""Seconds between two heartbeats of an idle worker."""
IDLE_BEFORE_CHECK = 2.0
"""Seconds of idleness before the engine's counters are checked and the memory that its steps have freed is given
back: the next request should not wait for that.
"""
CHECK_INTERVAL = 10.0
"""Least seconds between two checks."""
_LAST_WORDS = 1.0
_MOST_ABORT_BYTES = 64
"""Most bytes of the header of an Abort: a longer one need not be decoded twice."""
_BEAT = messages.encode(messages.Heartbeat())


def run_engine(engine: "Engine", link: WorkerLink) -> None:
    """Run the loop. It ends by an exception only: ConnectionError when the link ends, or what the engine raised."""
    engine.call_when_ready(link.wake)  # an answer that needs no step must not wait for one
    engine.watch_aborts(lambda: _new_aborts(link))
    engine.send_early(lambda early: _send(link, early, stepped=False))
    engine.call_when_short(lambda: link.flush(_LAST_WORDS))
    watch = StepWatch()
    while True:
        taken = _take_messages(engine, link, 0.0 if engine.has_work else IDLE_INTERVAL)
        for number in taken.questions:
            link.send(*messages.encode(messages.Described(number, engine.state() | watch.state())))
        if engine.has_work:
            watch.begin()
            step, stepped = engine.step(), True
            watch.end()
        elif taken.is_any:  # an abort freed something: the gauges must not wait for the next request
            step, stepped = StepOutput(outputs=(), stats=engine.stats()), False
        else:
            link.send(*_BEAT)
            if watch.should_check():
                _check(engine, link)
                give_back_memory()
            continue
        step = replace(step, outputs=(*taken.failures, *step.outputs))
        _send(link, step, taken.refusals, stepped=stepped)
        del step, taken  # or the next step would hold this one's answers in addition to its own


def _send(
    link: WorkerLink, step: StepOutput, refusals: Sequence[messages.RequestRefused] = (), *, stepped: bool
) -> None:
    link.send(*messages.encode(messages.step_message(step, refusals, stepped=stepped)))


def _check(engine: "Engine", link: WorkerLink) -> None:
    """Check the engine's counters. Raises AssertionError if they disagree: nothing it holds can be trusted then."""
    try:
        engine.check_integrity()
    except AssertionError as error:
        link.send(*messages.encode(messages.IntegrityFailed(" ".join(str(error).split()))))
        link.flush(_LAST_WORDS)
        raise


class StepWatch:
    """Records when the engine last stepped, how long that took, and so when its counters should be checked."""

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
        """Return True once in each period of idleness, after some seconds of it. The loop calls this while idle."""
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


def _new_aborts(link: WorkerLink) -> list[int]:
    """Return the uids of the Aborts that came since the last check. They keep their places in the queue, so that
    none overtakes the request it ends: for one that the engine does not know yet, this check is too early.
    """
    short = (frame for frame in link.peek() if len(frame.header) <= _MOST_ABORT_BYTES)
    uids = (messages.aborted_uid(frame.header) for frame in short)
    return [uid for uid in uids if uid is not None]


@dataclass(slots=True)
class _Taken:
    """The messages that came between two steps, sorted."""

    is_any: bool
    refusals: list[messages.RequestRefused] = field(default_factory=list)
    failures: list[RequestOutput] = field(default_factory=list)
    """Outputs of requests that the engine could not even begin."""
    questions: list[int] = field(default_factory=list)
    """Numbers of the questions about what the engine is doing."""


def _send_loaded(link: WorkerLink, number: int, error: str | None) -> None:
    """Report that an adapter is loaded, or why it is not."""
    with contextlib.suppress(ConnectionError):  # the API process is gone: the loop's own thread ends this process
        link.send(*messages.encode(AdapterLoaded(number, error)))


def _take_messages(engine: "Engine", link: WorkerLink, timeout: float) -> _Taken:
    """Give the engine all messages that have come. One that it fails to take must not cost the others their worker."""
    frames = link.poll(timeout)
    taken = _Taken(bool(frames))
    for frame in frames:
        try:
            message = messages.decode_to_worker(frame.header, frame.buffers)
        except messages.MessageError as error:
            taken.refusals.append(messages.RequestRefused(messages.uid_of(frame.header), str(error)))
            continue
        if isinstance(message, messages.Abort):
            engine.abort(message.uid)
            continue
        if isinstance(message, messages.Describe):
            taken.questions.append(message.number)
            continue
        if isinstance(message, LoadAdapter):
            done = partial(_send_loaded, link, message.number)
            root = None if message.root is None else Path(message.root)
            engine.adapters.begin(message.number, Path(message.folder), done, root=root)
            continue
        if isinstance(message, DropAdapter):
            engine.adapters.drop(message.number)
            continue
        try:
            engine.add_request(message)
        except ValueError as error:
            taken.refusals.append(messages.RequestRefused(message.uid, str(error)))
        except BaseException as error:
            raise_exit(error)
            named = {"request_id": message.request_id}
            logger.exception("request %d could not be begun", message.uid, extra={"fields": named})
            failure = failure_of(error)
            taken.failures.append(RequestOutput(uid=message.uid, finish_reason=failure.reason, error=failure.message))
    return taken
