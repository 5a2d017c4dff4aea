"""One request in flight, as the API process sees it: its outputs, its failure and its end. Independent of sockets."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lightwell.server.dispatch.admission import Cost
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.outputs import RequestOutput, raise_exit
from lightwell.server.http.errors import ApiError, BadRequest, EngineError, Unavailable, not_in_time

logger = logging.getLogger(__name__)


def error_of(output: RequestOutput) -> ApiError | None:
    """Return the error that an output ends its request with, or None for an output that is no such end."""
    match output.finish_reason:
        case "memory":
            message = f"The engine has no memory left for this request: {output.error}"
            return Unavailable(message, code="no_memory", retry_after=1)
        case "overflow":
            return BadRequest(f"{output.error}.", code="not_finite")
        case "grammar":
            return BadRequest(f"no answer can match it: {output.error}.", code="grammar_refused")
        case "prefix":
            message = "messages: the answer continues the last message, and that message does not match the format."
            return BadRequest(message, param="messages", code="grammar_refused")
        case "error" | "abort":
            reason = output.error or "the engine aborted it"
            return EngineError(f"The engine failed on this request: {reason}", code="engine_error")
    return None


def adds_to_token(output: RequestOutput) -> bool:
    """Return whether an output has only a token, log-probabilities and numbers of drafts."""
    return (
        output.finish_reason is None
        and output.timing is None
        and not output.tensors
        and output.prompt_logprobs is None
        and output.error is None
    )


@dataclass(slots=True, eq=False, repr=False)
class RequestHandle:
    """A request in flight. Iterate over it for its `RequestOutput`s; the last one has a finish_reason.

    It raises an ApiError when the request fails: WorkerLost (503), EngineError (500), DeadlineExceeded (504),
    Unavailable (503) if memory ran out, BadRequest (400) if the engine refuses the request or a number overflowed. It
    belongs to one event loop.
    """

    uid: int
    cost: Cost
    request_context: RequestContext
    on_close: Callable[["RequestHandle"], None]
    on_taken: Callable[["RequestHandle", ApiError | None], None]
    """A function that is called once, when the reader has the end or has left, with the error that the reader got."""
    num_expected_tokens: int = 0
    """Tokens of the prompt that are expected to be in the worker's prefix cache."""
    was_read: bool = False
    """Whether the whole prompt was computed."""
    seconds_allowed: float | None = None
    """Seconds from the arrival of the HTTP request to the deadline."""
    num_generated_tokens: int = 0
    is_finished: bool = False
    """Whether the engine has reported the end of the request."""
    timer: asyncio.TimerHandle | None = None
    """The deadline's timer; the client cancels it."""
    on_token: Callable[[int, RequestOutput | None], bool] | None = None
    """Called with a token that comes while the reader waits, and with its output if that `adds_to_token`; if it returns
    False, the reader gets the token.
    """
    _is_taken: bool = field(init=False, default=False)
    _is_closed: bool = field(init=False, default=False)
    _outputs: deque[RequestOutput] = field(init=False, default_factory=deque)
    _error: ApiError | None = field(init=False, default=None)
    _waiter: asyncio.Future[None] | None = field(init=False, default=None)

    @property
    def num_tokens_left(self) -> int:
        """Return the uncomputed tokens of its prompt, plus the largest number that may still be generated; 0 for a row
        of a batch, which no other request waits for.
        """
        if self.cost.is_background:
            return 0
        num_read = self.cost.num_read if self.was_read else self.num_expected_tokens
        return self.cost.num_tokens - num_read - self.num_generated_tokens

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
        if output.token_id is not None:
            self._charge(1)
        if output.finish_reason is not None:
            self._take()
        return output

    def close(self, *, is_complete: bool = False) -> None:
        """Abort the request if it is unfinished, and drop unread outputs. It may be called again.

        is_complete: whether the reader has the whole answer, as at a stop string. The tokens after it, which came in
        the same step, are not charged.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not is_complete:
            self._charge(sum(output.token_id is not None for output in self._outputs))
        self._outputs.clear()
        self._take()
        self._wake()
        if not self.is_finished:
            self.on_close(self)  # last: it writes to a socket

    def push(self, output: RequestOutput) -> None:
        """Add an output; the engine client calls this. An end by deadline, error or abort raises in the iteration."""
        if output.token_id is not None and adds_to_token(output):
            self.push_token(output.token_id, output)
            return
        self.num_generated_tokens += output.token_id is not None
        if output.finish_reason == "deadline":
            self.expire(was_scheduled=output.timing is not None and output.timing.scheduled is not None)
        elif (error := error_of(output)) is not None:
            self.fail(error)
        else:
            self._outputs.append(output)
            self.is_finished = output.finish_reason is not None
            self._wake()

    def push_token(self, token_id: int, output: RequestOutput | None = None) -> None:
        """Add a token, with its output unless it came with nothing else; the engine client calls this."""
        self.num_generated_tokens += 1
        waiter, on_token = self._waiter, self.on_token
        try:
            if waiter is not None and on_token is not None and not waiter.done() and on_token(token_id, output):
                self._charge(1)
                return
        except BaseException as error:  # only this request fails: the same message has tokens of others
            raise_exit(error)
            logger.exception("a token of request %d could not be handed on", self.uid)
            self._error = EngineError("The server failed on this request; see its log.", code="internal_error")
        else:
            self._outputs.append(output or RequestOutput(uid=self.uid, token_id=token_id))
        self._wake()

    def expire(self, *, was_scheduled: bool) -> None:
        """End the request because its time is over; the engine client calls this."""
        if self.num_generated_tokens:
            reached = f"{self.num_generated_tokens} tokens were generated by then"
        elif was_scheduled:
            reached = "it was being computed, and nothing was generated yet"
        else:
            reached = "it was still waiting for its turn"
        self.fail(not_in_time(self.seconds_allowed, reached))

    def fail(self, error: ApiError) -> None:
        """End the request with this error, after the outputs that came before it; the engine client calls this."""
        self._error = error
        self.is_finished = True
        self._wake()

    def _charge(self, num_tokens: int) -> None:
        if self.request_context.record is not None:
            self.request_context.record.count_generated(num_tokens)

    def _take(self, error: ApiError | None = None) -> None:
        """Report the end to the owner once: the reader holds the outputs now. error: the error that the reader got; a
        reader that leaves earlier gets none, so that no failure is counted.
        """
        if not self._is_taken:
            self._is_taken = True
            self.on_taken(self, error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
