"""Weight queries: answers questions about the weights in its own thread, one at a time, next to the steps.

A question must never delay a step: the thread uses one core, at a lower priority than the engine's thread, and its long
products and decompositions run without Python's lock. Results wait here for the engine's thread. The numbers come from
`model.analysis.weights`.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import torch

from lightwell.server.engine.captures.attention_sink import as_array
from lightwell.server.engine.messages.outputs import RequestOutput, Timing, failure_of
from lightwell.server.engine.messages.request import EngineRequest, WeightsTask

logger = logging.getLogger(__name__)

Check = Callable[[], None]
"""Called often while an answer is computed; it raises when the request has ended."""
Answer = Callable[[WeightsTask, Check], Mapping[str, torch.Tensor]]
"""Computes an answer; raises ValueError for an invalid question."""

_NICENESS = 5
"""Niceness of the thread: a third of the weight of the engine's thread. At 10, a tenth, a question of 0.2 s took 11 s
on a machine with nine programs on each core.
"""


class _Stopped(Exception):
    """Raised when the request ends before its answer is complete; its argument is the finish reason."""


class WeightQueries:
    """A queue of questions and the thread that answers them. Its methods are for the engine's thread."""

    def __init__(self, answer: Answer) -> None:
        """Start the queue. Call it from the engine's thread, once its number of threads is set."""
        # torch fixes a thread's number of threads at its first use, to the last one set by any thread. So it is fixed
        # here, before the inspector's thread sets its own.
        torch.get_num_threads()
        self._answer = answer
        self._changed = threading.Condition()
        self._waiting: deque[EngineRequest] = deque()
        self._running: int | None = None
        self._aborted = False
        """Whether the running question was aborted."""
        self._results: list[RequestOutput] = []
        self._wake: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from the inspector's thread, whenever there is a result."""
        self._wake = wake

    def add(self, request: EngineRequest) -> None:
        """Queue a question; `request.task` is a WeightsTask. Admission bounds the queue."""
        if self._thread is None:  # most servers never need it
            thread = threading.Thread(target=self._run, name="inspector", daemon=True)
            thread.start()  # raises without memory; then the next question tries again
            self._thread = thread
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def abort(self, uid: int) -> bool:
        """End a question early and return whether it was in this queue. Its output is among the results."""
        with self._changed:
            if uid == self._running:
                self._aborted = True
                return True
            for request in self._waiting:
                if request.uid == uid:
                    self._waiting.remove(request)
                    self._results.append(request.unbegun("abort"))
                    return True
        return False

    def close(self) -> None:
        """End the thread, after the question that it answers."""
        with self._changed:
            self._is_closed = self._aborted = True
            self._changed.notify()

    def take_results(self) -> list[RequestOutput]:
        """Return the outputs since the last call."""
        with self._changed:
            results, self._results = self._results, []
        return results

    def _run(self) -> None:
        torch.set_num_threads(1)  # only of this thread
        with contextlib.suppress(OSError, AttributeError):  # a system that has no niceness of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                request = self._waiting.popleft()
                self._running, self._aborted = request.uid, False
            output = self._answered(request)
            with self._changed:
                self._running = None
                self._results.append(output)
            self._wake()

    def _answered(self, request: EngineRequest) -> RequestOutput:
        assert isinstance(request.task, WeightsTask)
        scheduled = time.monotonic()

        def check() -> None:
            if self._aborted:
                raise _Stopped("abort")
            if request.deadline is not None and time.monotonic() > request.deadline:
                raise _Stopped("deadline")

        try:
            check()
            tensors = {name: as_array(tensor.detach()) for name, tensor in self._answer(request.task, check).items()}
            output = RequestOutput(uid=request.uid, tensors=tensors, finish_reason="done")
        except _Stopped as stopped:
            output = RequestOutput(uid=request.uid, finish_reason=stopped.args[0])
        except BaseException as error:  # other questions continue
            logger.exception("a question about the weights failed: %s", request.task)
            failure = failure_of(error)
            output = RequestOutput(uid=request.uid, finish_reason=failure.reason, error=failure.message)
        now = time.monotonic()
        output.timing = Timing(request.arrival_time, scheduled, now, now)
        return output
