"""One request in flight, as the API process sees it: its outputs as they come, its failure, its end.

Knows nothing of sockets: the engine client fills it and is told when it is closed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from server.engine.outputs import RequestOutput
from server.errors import ApiError, BadRequest, DeadlineExceeded, EngineError, Unavailable
from server.request_log import RequestRecord


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request counts for while it is unfinished."""

    num_tokens: int
    capture_bytes: int


class RequestHandle:
    """Iterate over it for the request's `RequestOutput`s; the one with a finish_reason is the last.

    Raises an ApiError when the request fails: WorkerLost (503), EngineError (500), DeadlineExceeded (504),
    Unavailable (503) where memory ran out, BadRequest (400) for what the engine refuses or what overflowed. Belongs to
    one event loop.
    """

    def __init__(
        self,
        uid: int,
        cost: Cost,
        record: RequestRecord | None,
        on_close: Callable[["RequestHandle"], None],
        on_taken: Callable[["RequestHandle"], None],
        on_fail: Callable[[ApiError], None],
    ) -> None:
        self.uid = uid
        self.cost = cost
        self.is_finished = False
        """The engine has nothing more to say about it."""
        self.timer: asyncio.TimerHandle | None = None
        """Of the deadline; the client cancels it."""
        self._record = record
        self._on_close = on_close
        self._on_taken = on_taken
        self._on_fail = on_fail
        self._is_taken = False
        self._is_closed = False
        self._outputs: deque[RequestOutput] = deque()
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> "RequestHandle":
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._outputs:
            if self._is_closed:
                raise StopAsyncIteration
            if self._error is not None:
                self._take(self._error)
                raise self._error
            if self.is_finished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output = self._outputs.popleft()
        if output.finish_reason is not None:
            self._take()
        return output

    def close(self) -> None:
        """Abort the request if it is unfinished and drop what nobody read. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._outputs.clear()
        if not self.is_finished:
            self._on_close(self)
        self._take()
        self._wake()

    def push(self, output: RequestOutput) -> None:
        """For the client: one more output. Ends by deadline, error or abort become an exception of the iteration."""
        if self._record is not None and output.token_id is not None:
            self._record.count_generated()
        if output.finish_reason == "deadline":
            self.fail(DeadlineExceeded("The request did not end within its time.", code="deadline_exceeded"))
        elif output.finish_reason == "memory":
            message = f"The engine has no memory left for this request: {output.error}"
            self.fail(Unavailable(message, code="no_memory", retry_after=1))
        elif output.finish_reason == "overflow":
            self.fail(BadRequest(f"{output.error}.", code="not_finite"))
        elif output.finish_reason in ("error", "abort"):
            reason = output.error or "the engine aborted it"
            self.fail(EngineError(f"The engine failed on this request: {reason}", code="engine_error"))
        else:
            self._outputs.append(output)
            self.is_finished = output.finish_reason is not None
            self._wake()

    def fail(self, error: ApiError) -> None:
        """For the client: the request ends with this error, after the outputs that came before it."""
        self._error = error
        self.is_finished = True
        self._wake()

    def _take(self, error: ApiError | None = None) -> None:
        """The end is in the reader's hands: its bytes are no longer ours to account for. A failure counts as one only
        here: a reader who left, or was content with what came before it, has counted another end.
        """
        if not self._is_taken:
            self._is_taken = True
            if error is not None:
                self._on_fail(error)
            self._on_taken(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
