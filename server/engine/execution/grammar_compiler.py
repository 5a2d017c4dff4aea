"""Grammar compiler: compiles the grammars of requests in its own thread, next to the steps, and caches them.

A request waits here until its grammar is compiled; then the engine's thread takes it.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightwell.model.sampling.grammar.deep_stack import deep_stacks
from lightwell.model.sampling.grammar.matcher import GrammarMatcher
from lightwell.server.engine.messages.outputs import Failure, failure_of
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask

logger = logging.getLogger(__name__)

MAX_KEPT = 64
"""Number of cached grammars: about 100 kB each, very large ones some MB."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request with its compiled grammar, or the failure of the compilation."""

    request: EngineRequest
    matcher: GrammarMatcher | None
    failure: Failure | None


class GrammarCompiler:
    """A queue of requests with grammars, and the thread that compiles them. Its methods are for the engine's thread."""

    def __init__(self, read_vocabulary: Callable[[], Any]) -> None:
        """read_vocabulary: returns the vocabulary; the thread calls it until it succeeds."""
        self._read_vocabulary = read_vocabulary
        self._vocabulary: Any = None
        self._changed = threading.Condition()
        self._waiting: deque[EngineRequest | None] = deque()
        """Requests with grammars to compile; None only reads the vocabulary."""
        self.requests: dict[int, EngineRequest] = {}
        """The requests that wait for their grammars, by uid."""
        self._results: list[Compiled] = []
        self._kept: OrderedDict[str, GrammarMatcher] = OrderedDict()
        """A matcher at the beginning of each cached grammar, the most recently used last."""
        self._wake: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.num_compiled = 0
        self.num_cached = 0
        """Requests with a grammar that was already compiled."""
        self.compile_seconds = 0.0

    @property
    def has_results(self) -> bool:
        """Return whether a request is ready to begin, or to end."""
        return bool(self._results)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from the compiler's thread, whenever there is a result."""
        self._wake = wake

    def warm_up(self) -> None:
        """Start to read the vocabulary, so that the first grammar need not wait for it."""
        self._queue(None)

    def matcher(self, task: GenerateTask) -> GrammarMatcher | None:
        """Return a matcher at the beginning of a text, or None if that takes time, since its grammar is not cached or
        part of the text exists.
        """
        kept = None if task.grammar_prefix else self._find(task.grammar or "")
        return None if kept is None else self._at_beginning(kept, task)

    def _find(self, grammar: str) -> GrammarMatcher | None:
        with self._changed:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
        self.num_cached += kept is not None
        return kept

    def _at_beginning(self, kept: GrammarMatcher, task: GenerateTask) -> GrammarMatcher:
        if not task.grammar_prefix and task.thought_limit is None:
            return kept.copy()
        return kept.begun(self._vocabulary, task.grammar_prefix, task.thought_limit)

    def add(self, request: EngineRequest) -> None:
        """Queue a request with a grammar. Admission limits the number of waiting requests."""
        self.requests[request.uid] = request
        self._queue(request)

    def remove(self, uid: int) -> EngineRequest | None:
        """Remove and return a request, or None if it does not wait here."""
        return self.requests.pop(uid, None)

    def close(self) -> None:
        """End the thread, after the grammar that it compiles."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take_results(self) -> list[Compiled]:
        """Return the results since the last call."""
        with self._changed:
            results, self._results = self._results, []
        return [result for result in results if self.requests.pop(result.request.uid, None) is not None]

    def _queue(self, request: EngineRequest | None) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            with deep_stacks():
                thread.start()
            self._thread = thread
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def _goes_on(self) -> bool:
        return not self._is_closed

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._goes_on():
                    return
                request = self._waiting.popleft()
            if request is None:
                with self._changed:  # a second later: the first answer would wait for the interpreter's lock
                    self._changed.wait_for(lambda: self._waiting or self._is_closed, 1.0)
                    if not self._goes_on():
                        return
                # A panic of Rust code is no Exception; the first request with a grammar reports the reason.
                with contextlib.suppress(BaseException):
                    self._find_vocabulary()
            elif request.uid in self.requests:
                result = self._compiled(request)
                with self._changed:
                    self._results.append(result)
                self._wake()

    def _compiled(self, request: EngineRequest) -> Compiled:
        assert isinstance(request.task, GenerateTask)
        assert request.task.grammar is not None
        grammar = request.task.grammar
        try:
            matcher = self._find(grammar)  # another request may have had the same grammar
            if matcher is None:
                began = time.monotonic()
                matcher = GrammarMatcher.compile(grammar, self._find_vocabulary())
                with self._changed:
                    self._kept[grammar] = matcher
                    while len(self._kept) > MAX_KEPT:
                        self._kept.popitem(last=False)
                self.compile_seconds += time.monotonic() - began
                self.num_compiled += 1
            matcher = self._at_beginning(matcher, request.task)
        except ValueError as error:
            return Compiled(request, None, Failure("grammar", str(error)))
        except BaseException as error:  # a panic of Rust code too; other requests continue
            logger.exception("a grammar could not be compiled")
            return Compiled(request, None, failure_of(error))
        return Compiled(request, matcher, None)

    def _find_vocabulary(self) -> Any:
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
        return self._vocabulary
