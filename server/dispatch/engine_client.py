"""The engine as the API process sees it: submit a request, read its outputs, ask how the workers are.

Owns the table of requests in flight, admission, deadlines, the socket to the workers (`server.dispatch.worker_socket`)
and the watch over them (`server.dispatch.worker_health`). Starts no process (`server.lifecycle.supervisor`) and knows
nothing of routes. All of it runs in one event loop.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from server.config.settings import Settings
from server.dispatch.admission import Admission
from server.dispatch.debug_report import WorkerQuestions, admission_state, request_state
from server.dispatch.request_handle import RequestHandle
from server.dispatch.routing import Candidate, Route, RoutedPrompt, Router
from server.dispatch.worker_health import WorkerHealth
from server.dispatch.worker_socket import WorkerSocket
from server.dispatch.worker_state import WorkerState, add_counters, seconds_until_ready, together, unready
from server.engine.outputs import EngineInfo, EngineStats
from server.engine.request import EngineRequest, GenerateTask, Intervention, Task
from server.http.errors import ApiError, BadRequest, Unavailable, WorkerLost
from server.ipc import frames, link, messages
from server.ipc.messages import MessageError
from server.observability.access_log import current_record
from server.observability.metrics import ClientCounters, WorkerNumbers

logger = logging.getLogger(__name__)

_DEADLINE_SLACK = 0.25
"""Seconds that the worker, which enforces deadlines, has to say so itself."""
_PROGRESS_INTERVAL = 2.0


class EngineClient:
    """See the module. `on_step` is called with the stats of each engine step, `on_hung` with a worker to be killed."""

    def __init__(self, settings: Settings, num_workers: int = 1) -> None:
        self.live = True
        """False once the workers were given up."""
        self.end_reason = ""
        """Why they were."""
        self.draining = False
        self._is_over = False
        """Of a drain: what had begun by then may not go on either."""
        self.on_step: Callable[[EngineStats], None] | None = None
        self.on_hung: Callable[[int], None] | None = None
        self.workers = tuple(WorkerState(i) for i in range(num_workers))
        self._router = Router(num_workers)
        self._reuses_prefixes = not settings.no_prefix_caching
        self.admission = Admission.of(settings, num_workers)
        self.counts = ClientCounters(requests_refused=self.admission.refusals)
        self._request_timeout = settings.request_timeout or None
        self.socket = WorkerSocket(lambda: link.LinkProtocol(self._on_frame, self._on_lost))
        self._by_protocol: dict[link.LinkProtocol, WorkerState] = {}
        self._dead_stats = EngineStats()
        self._last_info: EngineInfo | None = None
        self._next_uid = 0
        self._questions = WorkerQuestions(self._send)
        self._watch = WorkerHealth(
            self.workers,
            timeout=settings.worker_timeout,
            load_timeout=settings.load_timeout,
            on_hung=self._fail_hung,
            on_given_up=self._kill_hung,
        )
        self._watching: asyncio.Task[None] | None = None

    # ---- life cycle

    async def start(self) -> None:
        """Take the workers' connections; they may have been waiting in the listener's queue."""
        await self.socket.accept()
        self._watching = asyncio.create_task(self._watch.run(), name="worker-watch")

    async def stop(self) -> None:
        """End every connection: the workers leave by themselves when they see it."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        self.fail_all(Unavailable("The server is shutting down.", code="shutting_down", retry_after=1))
        for protocol in list(self._by_protocol):
            protocol.abort("the server is shutting down")
        self.socket.stop()

    def begin_drain(self) -> None:
        """Take no more HTTP requests; those of which the engine has, or had, something go on."""
        self.draining = True

    @property
    def num_inflight(self) -> int:
        return sum(len(worker.requests) for worker in self.workers)

    def fail_all(self, error: ApiError) -> None:
        """End every request in flight with this error, as the server ends."""
        self._is_over = True
        for worker in self.workers:
            self._fail_requests(worker, error)

    # ---- what the routes ask

    def ready(self) -> bool:
        return self.live and not self.draining and all(worker.is_ready for worker in self.workers)

    def reason(self) -> str:
        """Why `ready` is False, in a few words; "ready" when it is True."""
        if not self.live:
            return self.end_reason
        if self.draining:
            return "draining"
        return next((worker.reason() for worker in self.workers if not worker.is_ready), "ready")

    def worker_numbers(self) -> list[WorkerNumbers]:
        """Of each worker slot, for the metrics."""
        return [WorkerNumbers(worker.is_ready, worker.stats, worker.requests_total) for worker in self.workers]

    def info(self) -> EngineInfo:
        """Of the workers, also while one is being restarted. Raises Unavailable before any was ready."""
        if self._last_info is None:
            raise unready(self.workers, f"The model is not loaded yet: {self.reason()}.", "loading")
        return self._last_info

    def stats(self) -> EngineStats:
        """All workers together, those that died included: counters never go back, gauges are of the living."""
        living = [worker.stats for worker in self.workers if worker.info is not None]
        return replace(together(self._dead_stats, living), inflight_capture_bytes=self.admission.capture_bytes)

    async def describe(self) -> dict[str, Any]:
        """What this process and the workers are doing, for a debug dump."""
        flights = [(worker.worker_id, handle) for worker in self.workers for handle in worker.requests.values()]
        return {
            "ready": self.ready(),
            "reason": self.reason(),
            "in_flight": [request_state(worker_id, handle) for worker_id, handle in flights],
            "admission": admission_state(self.admission),
            "worker_restarts": self.counts.worker_restarts,
            "workers": await self._questions.ask(self.workers, self.socket.path),
        }

    async def submit(
        self,
        task: Task,
        prompt_token_ids: Sequence[int],
        *,
        encoder_token_ids: Sequence[int] = (),
        interventions: Sequence[Intervention] = (),
        deadline: float | None = None,
        capture_bytes: int = 0,
        priority: int = 0,
    ) -> RequestHandle:
        """Hand a request to the worker that `server.dispatch.routing` chooses.

        `deadline` is CLOCK_MONOTONIC seconds; without one `--request-timeout` counts. `capture_bytes` is what its
        tensors will take. Of those that wait, lower priorities go first. Raises Unavailable (503), QueueFull (429),
        PayloadTooLarge (413).
        """
        now = time.monotonic()
        candidates = self._ready_workers()
        if deadline is None and self._request_timeout is not None:
            deadline = now + self._request_timeout
        max_tokens = task.sampling.max_tokens if isinstance(task, GenerateTask) else 0
        num_encoded = len(encoder_token_ids)
        cost = self.admission.cost(
            len(prompt_token_ids), num_encoded, max_tokens, capture_bytes, is_inspection=task.is_inspection
        )
        record = current_record.get()
        client = "" if record is None else record.key or ""
        # Who goes before the others does not wait for them; what was begun is not refused for what waits by now.
        self.admission.admit(cost, client, waits=priority >= 0 and not _is_begun())
        route = self._route(candidates, task, prompt_token_ids, encoder_token_ids, is_changed=bool(interventions))
        worker = self.workers[route.worker_id]
        self._next_uid += 1
        handle = RequestHandle(
            self._next_uid, cost, record, self._abort, self._release_capture, self._count_failure, client
        )
        handle.num_expected_tokens = route.num_prefix_tokens
        worker.add(handle)
        try:
            request = EngineRequest(
                uid=handle.uid,
                prompt_token_ids=tuple(prompt_token_ids),
                task=task,
                arrival_time=now,
                deadline=deadline,
                encoder_token_ids=tuple(encoder_token_ids),
                interventions=tuple(interventions),
                priority=priority,
                client=client,
                request_id="" if record is None else record.request_id,
            )
            self._send(worker, *messages.new_request(request))
        except BaseException:
            handle.close()  # what was not sent holds no place, and is nobody's request
            raise
        if record is not None:
            record.count_prompt(cost.num_read)
        self.counts.requests_submitted += 1
        if deadline is not None:
            handle.seconds_allowed = deadline - (now if record is None else record.started)
            delay = max(0.0, deadline - now) + _DEADLINE_SLACK
            handle.timer = asyncio.get_running_loop().call_later(delay, self._expire, handle)
        return handle

    def check_room(self, num_requests: int = 1, *, waits: bool = True, is_inspection: bool = False) -> None:
        """Raise what `submit` would raise of any so many requests, before anything is known of them: Unavailable (503)
        or QueueFull (429). `waits`: whether the time they would wait counts. `is_inspection`: they only look inside.
        """
        self._ready_workers()
        record = current_record.get()
        client = "" if record is None else record.key or ""
        self.admission.check(num_requests, client, waits=waits, is_inspection=is_inspection)

    def hold_capture(self, num_bytes: int) -> None:
        """Let bytes that were read from a handle count as in flight until the HTTP request that runs now is over.

        A client that reads slowly keeps its answer in memory: it must not make room for the next one.
        """
        record = current_record.get()
        if record is not None and num_bytes:
            self.admission.hold_capture(num_bytes)
            record.at_end.append(partial(self.admission.release_capture, num_bytes))

    def _ready_workers(self) -> list[WorkerState]:
        """Those that take requests, one at least. Raises Unavailable (503)."""
        if self.draining and (self._is_over or not _is_begun()):
            raise Unavailable("The server is shutting down.", code="draining", retry_after=1)
        candidates = [worker for worker in self.workers if worker.is_ready]
        if not candidates:
            raise unready(self.workers, f"No worker is ready: {self.reason()}.", "not_ready")
        return candidates

    def _route(
        self,
        candidates: Sequence[WorkerState],
        task: Task,
        prompt_token_ids: Sequence[int],
        encoder_token_ids: Sequence[int],
        *,
        is_changed: bool,
    ) -> Route:
        if len(self.workers) == 1:
            return Route(candidates[0].worker_id, 0)
        loads = [Candidate(worker.worker_id, worker.num_tokens_left, len(worker.requests)) for worker in candidates]
        prompt = RoutedPrompt.of(task, prompt_token_ids, encoder_token_ids, is_changed=is_changed)
        route = self._router.route(loads, prompt)
        self.counts.routed_prefix_tokens += route.num_prefix_tokens
        return route

    # ---- ends of requests

    def _finish(self, worker: WorkerState, handle: RequestHandle) -> None:
        """Take the request out of the table and of the counts."""
        worker.remove(handle)
        self.admission.release(handle.cost, handle.client, was_read=handle.was_read)
        if handle.timer is not None:
            handle.timer.cancel()

    def _release_capture(self, handle: RequestHandle) -> None:
        self.admission.release_capture(handle.cost.capture_bytes)

    def _count_failure(self, error: ApiError) -> None:
        self.counts.request_failed[error.code or error.type] += 1

    def _worker_of(self, handle: RequestHandle) -> WorkerState | None:
        return next((worker for worker in self.workers if handle.uid in worker.requests), None)

    def _abort(self, handle: RequestHandle) -> None:
        """Nobody waits for it any more: free its place in the worker."""
        worker = self._worker_of(handle)
        if worker is not None:
            self._finish(worker, handle)
            self._send(worker, messages.Abort(handle.uid))

    def _expire(self, handle: RequestHandle) -> None:
        """The worker did not end it in time."""
        handle.expire(was_scheduled=handle.was_read)
        self._abort(handle)

    def _fail_requests(self, worker: WorkerState, error: ApiError) -> None:
        handles = list(worker.requests.values())
        for handle in handles:
            self._finish(worker, handle)
            handle.fail(error)
        for handle in handles:
            self._send(worker, messages.Abort(handle.uid))

    # ---- what the workers say

    def _send(self, worker: WorkerState, message: messages.ToWorker, buffers: Sequence[messages.Buffer] = ()) -> None:
        if worker.protocol is not None:
            worker.protocol.send(messages.encode(message), buffers)

    def _on_frame(self, protocol: link.LinkProtocol, frame: frames.Frame) -> None:
        """Raises MessageError for what makes no sense; the link then drops the worker."""
        message = messages.decode_from_worker(frame.header)
        if isinstance(message, messages.Hello):
            self._greet(protocol, message)
            return
        worker = self._by_protocol.get(protocol)
        if worker is None:
            raise MessageError(f"{type(message).__name__} came before Hello")
        worker.silent_for = 0.0
        if worker.is_hung:
            logger.warning("worker %d answers again", worker.worker_id)
            worker.is_hung = False
        match message:
            case messages.StepMessage():
                self._take_step(worker, message, frame.buffers)
            case messages.Loading(done, total):
                worker.note_progress(done, total)
                self._log_progress(worker, message)
            case messages.Ready(info):
                self._take_ready(worker, info)
                logger.info("worker %d is ready: %s", worker.worker_id, info)
            case messages.LoadFailed(text):
                worker.load_error = text
            case messages.Described():
                self._questions.take(message)
            case messages.IntegrityFailed(text):
                self.counts.integrity_failures += 1
                logger.error("worker %d ends, as its books contradict each other: %s", worker.worker_id, text)

    def _take_ready(self, worker: WorkerState, info: EngineInfo) -> None:
        self._last_info = info
        worker.become_ready(info)
        infos = [each.info or info for each in self.workers]  # those that are not there yet will be as large
        rooms = [each.memory_room for each in infos if each.memory_room is not None]
        self.admission.note_memory(min(rooms, default=None))
        has_cache = info.num_blocks > 2  # an encoder has one block beside the null block, and keeps nothing in it
        num_blocks = sum(each.num_blocks - 1 for each in infos) if has_cache else 1
        self.admission.note_cache(num_blocks, info.block_size)
        reused = info.num_blocks - 1 if has_cache and self._reuses_prefixes else 0
        self._router.begin(worker.worker_id, num_blocks=reused, block_size=info.block_size)

    def _log_progress(self, worker: WorkerState, message: messages.Loading) -> None:
        """A line every few seconds: a small model needs none."""
        now = time.monotonic()
        if now - worker.progress_logged > _PROGRESS_INTERVAL:
            worker.progress_logged = now
            percent = 100 * message.done // max(1, message.total)
            logger.info("worker %d is loading the model: %d %%", worker.worker_id, percent)

    def _greet(self, protocol: link.LinkProtocol, hello: messages.Hello) -> None:
        if not 0 <= hello.worker_id < len(self.workers) or protocol in self._by_protocol:
            raise MessageError(f"unexpected Hello of worker {hello.worker_id}")
        worker = self.workers[hello.worker_id]
        if worker.protocol is not None:
            raise MessageError(f"worker {hello.worker_id} is already connected")
        worker.protocol, worker.pid = protocol, hello.pid
        worker.load_error = worker.progress = None
        worker.progress_logged = time.monotonic()
        worker.silent_for = worker.stalled_for = 0.0
        worker.gone.clear()
        self._by_protocol[protocol] = worker

    def _take_step(self, worker: WorkerState, step: messages.StepMessage, buffers: Sequence[messages.Buffer]) -> None:
        worker.stats = step.stats
        num_read = step.stats.iteration_tokens if step.stepped else 0
        for uid, token_id in zip(step.token_uids, step.token_ids, strict=True):
            handle = worker.requests.get(uid)
            if handle is not None:  # or it was aborted while the step ran
                num_read += self._note_token(worker, handle, 0)
                handle.push_token(token_id)
        for wire in step.outputs:
            handle = worker.requests.get(wire.uid)
            if handle is None:
                continue
            if wire.token_id is not None:
                num_read += self._note_token(worker, handle, wire.num_cached_tokens)
            handle.push(messages.request_output(wire, buffers))
            if handle.is_finished:
                self._finish(worker, handle)
        self.admission.note_tokens_read(num_read)
        for refusal in step.refusals:
            handle = worker.requests.get(refusal.uid)
            if handle is not None:
                self._finish(worker, handle)
                handle.fail(BadRequest(refusal.message, code="request_refused"))
        if step.stepped and self.on_step is not None:
            try:
                self.on_step(step.stats)
            except Exception:  # an observer must not cost the worker its link
                logger.exception("the observer of engine steps failed")

    def _note_token(self, worker: WorkerState, handle: RequestHandle, num_cached_tokens: int) -> int:
        """What a step that brought it a token read of prompts beyond what it computed: its first tells that its prompt
        was read, of which some came from the cache; any other was computed, and is no prompt's.
        """
        worker.num_tokens_left -= 1
        if handle.was_read:
            return -1
        handle.was_read = True
        worker.num_tokens_left -= handle.cost.num_read - handle.num_expected_tokens
        self.admission.note_prompt_read(handle.cost)
        return num_cached_tokens

    def _on_lost(self, protocol: link.LinkProtocol, reason: str) -> None:
        worker = self._by_protocol.pop(protocol, None)
        if worker is None:
            return
        logger.log(
            logging.DEBUG if worker.load_error or (self.draining and not worker.requests) else logging.WARNING,
            "lost worker %d (pid %s) with %d requests in flight: %s",
            worker.worker_id,
            worker.pid,
            len(worker.requests),
            reason,
        )
        worker.protocol = worker.info = worker.pid = worker.progress = None
        worker.is_hung = False
        self._dead_stats = add_counters(self._dead_stats, [worker.stats])
        worker.stats = EngineStats()
        worker.expect_start()
        self._router.end(worker.worker_id)
        lost = "The worker that ran this request ended; send it again."
        self._fail_requests(worker, WorkerLost(lost, code="worker_lost", retry_after=seconds_until_ready(self.workers)))
        worker.gone.set()

    def _fail_hung(self, worker: WorkerState) -> None:
        hung = "The worker that ran this request hangs."
        self._fail_requests(worker, WorkerLost(hung, code="worker_hung", retry_after=5))

    def _kill_hung(self, worker: WorkerState) -> None:
        if self.on_hung is not None:
            self.on_hung(worker.worker_id)


def _is_begun() -> bool:
    """Whether the HTTP request that runs now has given the engine something before: a drain lets it come to its end."""
    record = current_record.get()
    return record is not None and record.engine_requests > 0
