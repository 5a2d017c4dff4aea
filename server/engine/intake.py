"""Intake: begins requests, at once or after waiting for a grammar or for memory, and answers those that need no
step.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from lightwell.model.sampling.grammar.matcher import GrammarMatcher
from lightwell.server.engine.active_request import ActiveRequests, NoCaptureMemory
from lightwell.server.engine.execution.grammar_compiler import GrammarCompiler
from lightwell.server.engine.execution.weight_queries import Answer, WeightQueries
from lightwell.server.engine.memory.memory_retry import MemoryRetry
from lightwell.server.engine.messages.outputs import FinishReason, RequestOutput, failure_of, raise_exit
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask, WeightsTask

logger = logging.getLogger(__name__)


class Intake:
    """The requests outside the steps: they wait, or another thread answers them."""

    def __init__(self, active: ActiveRequests, answer: Answer, read_vocabulary: Callable[[], Any]) -> None:
        """active: gets the requests that begin; answer: answers questions about the weights; read_vocabulary: returns
        the vocabulary of grammars.
        """
        self.memory_retry = MemoryRetry()
        self.grammars = GrammarCompiler(read_vocabulary)
        self.ends: list[RequestOutput] = []
        """The last outputs of ended requests, for the next report."""
        self._active = active
        self._weight_queries = WeightQueries(answer)
        self._questions: dict[int, EngineRequest] = {}
        """Open questions about the weights, by uid."""

    @property
    def has_work(self) -> bool:
        """Return whether `take_ready` has work, or `ends` is not empty."""
        if self.ends or self._weight_queries.has_results or self.grammars.has_results:
            return True
        return self.memory_retry.may_begin(self.is_anyone_gathering)

    @property
    def has_questions(self) -> bool:
        """Return whether a question about the weights is not answered yet."""
        return bool(self._questions)

    @property
    def uids(self) -> set[int]:
        """Return the uids of requests that have not begun, except those that wait for memory."""
        return {*self._questions, *self.grammars.requests, *[output.uid for output in self.ends]}

    def is_anyone_gathering(self) -> bool:
        """Return whether a request holds memory for its answer, or may do so."""
        return self.has_questions or any(active.is_gathering for active in self._active.values())

    def close(self) -> None:
        """End the threads that answer requests."""
        self._weight_queries.close()
        self.grammars.close()

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from another thread, when there is work for `take_ready`."""
        self._weight_queries.call_when_ready(wake)
        self.grammars.call_when_ready(wake)

    def add(self, request: EngineRequest) -> None:
        """Begin a request, or let it wait. Raises ValueError or others if it cannot run; then nothing has changed."""
        if request.uid in self.memory_retry or request.uid in self.grammars.requests:
            raise ValueError(f"request uid {request.uid} is already in use")
        if isinstance(request.task, WeightsTask) and self.memory_retry.wait_behind(request):
            return
        self._begin(request)
        self._let_others_first(request)

    def abort(self, uid: int) -> None:
        """End a request that has not begun. Unknown uids are ignored."""
        request = self.memory_retry.remove(uid) or self.grammars.remove(uid)
        if request is not None:
            self.ends.append(request.unbegun("abort"))
        else:
            self._weight_queries.abort(uid)

    def take_ready(self) -> None:
        """Begin the requests that no longer need to wait, and end requests that are answered or cannot begin."""
        self._take_answers()
        self._take_grammars()
        self._take_turns()

    def wait_or_end(self, request: EngineRequest, error: str) -> None:
        """Queue a request without memory again, or end it."""
        if not self.memory_retry.wait_again(request):
            self.ends.append(request.unbegun("memory", error))

    def _begin(self, request: EngineRequest) -> None:
        """Begin a request, even if others wait for memory."""
        grammar: GrammarMatcher | None = None
        if isinstance(request.task, WeightsTask):  # needs no step
            self._weight_queries.add(request)
            self._questions[request.uid] = request
            return
        if isinstance(request.task, GenerateTask) and request.task.grammar is not None:
            grammar = self.grammars.matcher(request.task)
            if grammar is None:
                self.grammars.add(request)
                return
        self._begin_with(request, grammar)

    def _begin_with(self, request: EngineRequest, grammar: GrammarMatcher | None) -> None:
        if grammar is not None and grammar.error is not None:
            self._end(request, "prefix", None)
            return
        try:
            self._active.begin(request, grammar)
        except NoCaptureMemory as error:
            self.wait_or_end(request, str(error))

    def _let_others_first(self, request: EngineRequest) -> None:
        """Withdraw a request that has begun, if it holds memory and others waited for memory before it."""
        uid = request.uid
        if uid in self._active and self._active[uid].is_gathering and self.memory_retry.wait_behind(request):
            self._active.withdraw(uid)

    def _take_answers(self) -> None:
        for output in self._weight_queries.take_results():
            request = self._questions.pop(output.uid)
            if output.finish_reason == "memory":
                self.wait_or_end(request, output.error or "")
            else:
                self.ends.append(output)

    def _take_grammars(self) -> None:
        """Begin the requests with compiled grammars, and end those with failed ones."""
        for compiled in self.grammars.take_results():
            request, failure = compiled.request, compiled.failure
            if failure is not None:
                self._end(request, failure.reason, failure.message)
                continue
            try:
                self._begin_with(request, compiled.matcher)
                self._let_others_first(request)
            except BaseException as error:
                self._fail(request, error)

    def _take_turns(self) -> None:
        """Begin or end the next requests that waited for memory."""
        for turn in self.memory_retry.turns(time.monotonic(), self.is_anyone_gathering):
            if isinstance(turn, RequestOutput):
                self.ends.append(turn)
                continue
            try:
                self._begin(turn)
            except BaseException as error:
                self._fail(turn, error)

    def _fail(self, request: EngineRequest, error: BaseException) -> None:
        raise_exit(error)
        logger.error("request %d could not begin", request.uid, exc_info=error)
        failure = failure_of(error)
        self._end(request, failure.reason, failure.message)

    def _end(self, request: EngineRequest, reason: FinishReason, error: str | None) -> None:
        self.ends.append(request.unbegun(reason, error))
