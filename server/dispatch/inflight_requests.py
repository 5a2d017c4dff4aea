"""Requests that workers have: each gets its worker's outputs, and ends exactly once.

Independent of admission and of routing (`server.dispatch.engine_client`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lightwell.server.dispatch.admission import Admission, Cost
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.dispatch.worker_state import WorkerState
from lightwell.server.http.errors import ApiError, BadRequest
from lightwell.server.ipc import messages

H = TypeVar("H", bound=RequestHandle)

_DEADLINE_SLACK = 0.25
"""Seconds that the worker, which enforces deadlines, has to report one itself."""


@dataclass(eq=False)
class InflightRequests:
    """The requests of all workers. A request that ends frees its part of `admission`; one that fails is counted in
    `failures` by the code of its error; `send` writes to a worker.
    """

    workers: Sequence[WorkerState]
    admission: Admission
    failures: Counter[str]
    send: Callable[[WorkerState, messages.ToWorker], None]
    _last_uid: int = field(init=False, default=0)
    _unadmitted: dict[int, asyncio.Future[None]] = field(init=False, default_factory=dict)
    """Requests that the main process has not answered yet."""

    @property
    def count(self) -> int:
        """Return the number of requests in flight."""
        return sum(len(worker.requests) for worker in self.workers)

    def begin(
        self,
        worker: WorkerState,
        cost: Cost,
        request_context: RequestContext,
        num_expected_tokens: int,
        make_handle: Callable[..., H],
    ) -> H:
        """Add an admitted request to its worker. num_expected_tokens: of the prompt, expected in the worker's cache."""
        self._last_uid += 1
        handle = make_handle(self._last_uid, cost, request_context, self._abort, self._let_go, num_expected_tokens)
        worker.add(handle)
        return handle

    def end_by(self, handle: RequestHandle, deadline: float) -> None:
        """End a request at its deadline, in CLOCK_MONOTONIC seconds, if its worker does not."""
        handle.seconds_allowed = deadline - handle.request_context.arrival
        delay = max(0.0, deadline - time.monotonic()) + _DEADLINE_SLACK
        handle.timer = asyncio.get_running_loop().call_later(delay, self._expire, handle)

    def take_step(self, worker: WorkerState, step: messages.StepMessage) -> None:
        """Pass the outputs of one step of a worker to its requests."""
        is_background = all(handle.cost.is_background for handle in worker.requests.values())
        num_read = step.stats.iteration_tokens if step.stepped and not is_background else 0
        num_later = 0  # tokens after the first of their requests
        find = worker.requests.get
        for uid, token_id in zip(step.token_uids, step.token_ids, strict=True):
            handle = find(uid)
            if handle is None:
                continue  # it was aborted during the step
            if handle.was_read and not handle.cost.is_background:
                num_later += 1
            else:
                num_read += self._note_token(worker, handle, 0, step.stepped)
            handle.push_token(token_id)
        worker.num_tokens_left -= num_later
        num_read -= num_later if step.stepped else 0
        for output in step.outputs:
            handle = worker.requests.get(output.uid)
            if handle is None:
                continue
            if output.token_id is not None:
                num_read += self._note_token(worker, handle, output.num_cached_tokens, step.stepped)
            handle.push(output)
            if handle.is_finished:
                self._finish(worker, handle)
        self.admission.note_tokens_read(num_read)
        for refusal in step.refusals:
            handle = worker.requests.get(refusal.uid)
            if handle is not None:
                self._finish(worker, handle)
                handle.fail(BadRequest(refusal.message, code="request_refused"))

    async def admitted(self, handle: RequestHandle) -> None:
        """Wait until the main process has admitted a request. Raises its ApiError otherwise."""
        self._unadmitted[handle.uid] = answer = asyncio.get_running_loop().create_future()
        try:
            await answer
        except BaseException:
            handle.close()
            raise
        finally:
            del self._unadmitted[handle.uid]

    def take_answer(self, worker: WorkerState, answer: messages.Admitted | messages.RequestFailed) -> None:
        """Take the main process's answer to a request, or the error with which it ended later."""
        waiting, handle = self._unadmitted.get(answer.uid), worker.requests.get(answer.uid)
        if isinstance(answer, messages.Admitted):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
            return
        error = answer.status, answer.message, answer.error_type, answer.param, answer.code, answer.retry_after
        if waiting is not None and not waiting.done():
            waiting.set_exception(ApiError(*error))
        elif handle is not None:
            self._finish(worker, handle)
            handle.fail(ApiError(*error))

    def fail_all(self, worker: WorkerState, error: ApiError, *, only_background: bool = False) -> None:
        """End every request of a worker, or only the rows of batches, with this error."""
        handles = [each for each in worker.requests.values() if each.cost.is_background or not only_background]
        for handle in handles:
            self._finish(worker, handle)
            handle.fail(error)
        for handle in handles:
            self.send(worker, messages.Abort(handle.uid))

    def _note_token(self, worker: WorkerState, handle: RequestHandle, num_cached_tokens: int, stepped: bool) -> int:
        """Count a token of a request, and return the prompt tokens of the step beyond its computed tokens. The first
        token of a request means that its prompt was read, partly from the cache; a later token is no prompt token.
        """
        if handle.cost.is_background:
            handle.was_read = handle.was_read or stepped
            return 0
        worker.num_tokens_left -= 1
        if not stepped:
            return 0
        if handle.was_read:
            return -1
        handle.was_read = True
        worker.num_tokens_left -= handle.cost.num_read - handle.num_expected_tokens
        self.admission.note_prompt_read(handle.cost)
        return num_cached_tokens

    def _finish(self, worker: WorkerState, handle: RequestHandle) -> None:
        worker.remove(handle)
        self.admission.release(handle.cost, handle.request_context.client, was_read=handle.was_read)
        if handle.timer is not None:
            handle.timer.cancel()

    def _abort(self, handle: RequestHandle) -> None:
        worker = next((worker for worker in self.workers if handle.uid in worker.requests), None)
        if worker is not None:
            self._finish(worker, handle)
            self.send(worker, messages.Abort(handle.uid))

    def _expire(self, handle: RequestHandle) -> None:
        handle.expire(was_scheduled=handle.was_read)
        self._abort(handle)

    def _let_go(self, handle: RequestHandle, error: ApiError | None) -> None:
        if error is not None:
            self.failures[error.code or error.type] += 1
        self.admission.release_capture(handle.cost.capture_bytes)
