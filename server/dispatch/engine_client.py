"""The engine as the API process sees it: submit a request, read its outputs, read the state of the workers.

The client admits each request and sends it to a worker; `server.dispatch.inflight_requests` follows it, and
`server.dispatch.worker_pool` has the workers' connections. It starts no process (`server.lifecycle.supervisor`) and
runs in one event loop. Independent of routes.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from msgspec import structs
from prometheus_client.core import Metric

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.admission import Admission
from lightwell.server.dispatch.debug_report import WorkerQuestions, admission_state, request_state
from lightwell.server.dispatch.inflight_requests import InflightRequests
from lightwell.server.dispatch.lora_registry import LoraRegistry
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.dispatch.routing import Candidate, Route, RoutedPrompt, Router
from lightwell.server.dispatch.worker_pool import WorkerPool
from lightwell.server.dispatch.worker_state import WorkerState, seconds_until_ready, unready
from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask
from lightwell.server.http.errors import ApiError, Unavailable, WorkerLost
from lightwell.server.ipc import messages
from lightwell.server.observability.metrics import ClientCounters, WorkerNumbers, of_adapters, of_caches, of_engine

H = TypeVar("H", bound=RequestHandle)

logger = logging.getLogger(__name__)


class EngineClient:
    """The engine's client. `on_step` gets the stats of each engine step, `on_hung` each worker to kill."""

    def __init__(
        self, settings: Settings, num_workers: int = 1, model: str = "", connected: socket.socket | None = None
    ) -> None:
        """Listen for workers, or use the connection to one in this process. model: the name of the model in messages,
        if the server has several.
        """
        self.live = True
        """Whether there are workers: False once they were given up."""
        self.end_reason = ""
        """Why the workers were given up."""
        self.draining = False
        self.is_relayed = False
        """True in one of several API processes: the main process takes the requests, and may refuse them."""
        self._is_over = False
        """Whether a drain is over: running HTTP requests may not submit more either."""
        self.on_step: Callable[[EngineStats], None] = lambda stats: None
        self.on_hung: Callable[[int], None] = lambda worker_id: None
        self.on_info: set[Callable[[EngineInfo], None]] = set()
        """Functions that are called with the description of each worker that becomes ready."""
        self._router = Router(num_workers)
        self._reuses_prefixes = not settings.no_prefix_caching
        self.admission = Admission.of(settings, num_workers)
        self.counts = ClientCounters(requests_refused=self.admission.refusals)
        self._request_timeout = settings.request_timeout or None
        self._pool = WorkerPool(
            num_workers,
            settings,
            model,
            connected,
            on_message=self._take_message,
            on_ready=self._take_ready,
            on_lost=self._fail_lost,
            on_hung=self._fail_hung,
            on_given_up=lambda worker: self.on_hung(worker.worker_id),
        )
        self.workers = self._pool.workers
        self.socket = self._pool.socket
        self._inflight = InflightRequests(self.workers, self.admission, self.counts.request_failed, self._pool.send)
        self._questions = WorkerQuestions(self._pool.send)
        self.adapters = LoraRegistry(settings, self.workers, self._pool.send)

    # ---- life cycle

    async def start(self) -> None:
        """Accept the workers' connections; they may have been waiting in the listener's queue."""
        await self._pool.start()

    async def stop(self) -> None:
        """End every request, then every connection: the workers exit when their connection ends."""
        self.fail_all(Unavailable("The server is shutting down.", code="shutting_down", retry_after=1))
        await self._pool.stop()

    def begin_drain(self) -> None:
        """Accept no more HTTP requests; an HTTP request that has submitted one may submit more."""
        self.draining = self._pool.may_leave = True

    @property
    def num_inflight(self) -> int:
        return self._inflight.count

    def end_background(self) -> None:
        """End the rows of batches, which begin again after the restart."""
        for worker in self.workers:
            error = Unavailable("The server is shutting down.", code="shutting_down", retry_after=1)
            self._inflight.fail_all(worker, error, only_background=True)

    def fail_all(self, error: ApiError) -> None:
        """End every request in flight with this error, because the server ends."""
        self._is_over = True
        for worker in self.workers:
            self._inflight.fail_all(worker, error)

    # ---- for the routes

    def ready(self) -> bool:
        return self.live and not self.draining and all(worker.is_ready for worker in self.workers)

    def reason(self) -> str:
        """Return why `ready` is False, in a few words; "ready" when it is True."""
        if not self.live:
            return self.end_reason
        if self.draining:
            return "draining"
        return next((worker.reason() for worker in self.workers if not worker.is_ready), "ready")

    def continue_counters(self, earlier: "EngineClient") -> None:
        """Begin with the counters of the client that the model had before it was unloaded: they never decrease."""
        for field in fields(ClientCounters):
            value = getattr(earlier.counts, field.name)
            if isinstance(value, int):
                setattr(self.counts, field.name, value)
            else:  # in place: other parts of this client count in it too
                getattr(self.counts, field.name).update(value)
        self._pool.continue_counters(earlier.stats())
        for worker, before in zip(self.workers, earlier.workers, strict=False):
            worker.requests_total = before.requests_total

    def worker_numbers(self) -> list[WorkerNumbers]:
        """Return the numbers of each worker slot, for the metrics."""
        return [WorkerNumbers(worker.is_ready, worker.stats, worker.requests_total) for worker in self.workers]

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the engine, its workers and its adapters, as they are now."""
        yield from of_engine(self.stats(), self.counts, self.worker_numbers())
        yield from of_caches([worker.info for worker in self.workers if worker.info is not None])
        yield from of_adapters(self.adapters.num_requests())

    def info(self) -> EngineInfo:
        """Return the workers' info, also while one is being restarted. Raises Unavailable before any was ready."""
        if self._pool.last_info is None:
            raise unready(self.workers, f"The model is not loaded yet: {self.reason()}.", "loading")
        return self._pool.last_info

    def stats(self) -> EngineStats:
        """Return the stats of all workers as one. The counters include workers that ended; the gauges do not."""
        return replace(self._pool.stats(), inflight_capture_bytes=self.admission.capture.used)

    async def describe(self) -> dict[str, Any]:
        """Return the state of this process and of the workers, for a debug dump."""
        flights = [(worker.worker_id, handle) for worker in self.workers for handle in worker.requests.values()]
        return {
            "ready": self.ready(),
            "reason": self.reason(),
            "in_flight": [request_state(worker_id, handle) for worker_id, handle in flights],
            "admission": admission_state(self.admission),
            "worker_restarts": self.counts.worker_restarts,
            "workers": await self._questions.ask(self.workers, self.socket.path),
        }

    async def submit(self, request: EngineRequest, request_context: RequestContext) -> RequestHandle:
        """Hand a request to the worker that `server.dispatch.routing` chooses. Raises the errors of `begin`."""
        handle = self.begin(request, request_context, RequestHandle)
        if self.is_relayed:
            await self._inflight.admitted(handle)
            record = request_context.record
            if request.capture_bytes and record is not None:  # until then the main process counts them as in flight
                record.at_end.append(partial(self._pool.send, self.workers[0], messages.Abort(handle.uid)))
        self.count(handle)
        return handle

    def count(self, handle: RequestHandle) -> None:
        """Count a request that was submitted."""
        if (record := handle.request_context.record) is not None:
            record.count_prompt(handle.cost.num_read)
        self.counts.requests_submitted += 1

    def begin(self, request: EngineRequest, request_context: RequestContext, make_handle: Callable[..., H]) -> H:
        """Send a request, and return its handle, of any kind.

        Raises Unavailable (503), QueueFull (429), PayloadTooLarge (413), and the errors of `LoraRegistry.workers_with`
        if `request_context` names an adapter.
        """
        now, task = time.monotonic(), request.task
        candidates = self._ready_workers(request_context)
        adapter = request_context.adapter
        if adapter is not None:
            candidates = self.adapters.workers_with(adapter, candidates, task)
        deadline = request_context.deadline
        if deadline is None and self._request_timeout is not None and not request_context.is_background:
            deadline = now + self._request_timeout
        cost = self.admission.cost(
            len(request.prompt_token_ids),
            len(request.encoder_token_ids),
            task.sampling.max_tokens if isinstance(task, GenerateTask) else 0,
            request.capture_bytes,
            is_inspection=task.is_inspection,
            is_background=request_context.is_background,
        )
        record, client = request_context.record, request_context.client
        # Requests of a negative priority do not wait for the others. An HTTP request that has begun is not refused for
        # a queue that grew meanwhile.
        self.admission.admit(cost, client, waits=request_context.priority >= 0 and not request_context.has_begun)
        number, cache_salt = 0 if adapter is None else adapter.number, request_context.cache_salt
        salt = (hash((number, cache_salt)),) if number or cache_salt else ()  # to use no blocks of others
        route = self._route(candidates, request, salt)
        worker = self.workers[route.worker_id]
        handle = self._inflight.begin(worker, cost, request_context, route.num_prefix_tokens, make_handle)
        try:
            request = structs.replace(
                request,
                uid=handle.uid,
                arrival_time=now,
                deadline=deadline,
                priority=request_context.priority,
                client=client,
                request_id="" if record is None else record.request_id,
                adapter=number,
                cache_salt=cache_salt,
                has_begun=request_context.has_begun,
            )
            self._pool.send(worker, request)
        except BaseException:
            handle.close()  # a request that was not sent must free its place
            raise
        if deadline is not None:
            self._inflight.end_by(handle, deadline)
        return handle

    def check_room(
        self, num_requests: int = 1, *, request_context: RequestContext, is_inspection: bool = False
    ) -> None:
        """Raise the errors of `submit` that do not depend on the requests: Unavailable (503) or QueueFull (429).
        `is_inspection`: whether they only capture.
        """
        self._ready_workers(request_context)
        if request_context.is_background:
            return
        waits = request_context.priority >= 0
        self.admission.check(num_requests, request_context.client, waits=waits, is_inspection=is_inspection)

    def hold_capture(self, num_bytes: int, *, request_context: RequestContext) -> None:
        """Let bytes that were read from a handle count as in flight until the HTTP request is over.

        A client that reads slowly keeps its answer in memory: it must not make room for the next one.
        """
        record = request_context.record
        if record is not None and num_bytes:
            self.admission.hold_capture(num_bytes)
            record.at_end.append(partial(self.admission.release_capture, num_bytes))

    def _ready_workers(self, request_context: RequestContext) -> list[WorkerState]:
        may_begin = request_context.has_begun and not request_context.is_background
        if self.draining and (self._is_over or not may_begin):
            raise Unavailable("The server is shutting down.", code="draining", retry_after=1)
        candidates = [worker for worker in self.workers if worker.is_ready]
        if not candidates:
            raise unready(self.workers, f"No worker is ready: {self.reason()}.", "not_ready")
        return candidates

    def _route(self, candidates: Sequence[WorkerState], request: EngineRequest, salt: tuple[int, ...]) -> Route:
        if len(self.workers) == 1:
            return Route(candidates[0].worker_id, 0)
        loads = [Candidate(worker.worker_id, worker.num_tokens_left, len(worker.requests)) for worker in candidates]
        encoded = (*salt, *request.encoder_token_ids)
        is_changed = bool(request.interventions)
        prompt = RoutedPrompt.of(request.task, request.prompt_token_ids, encoded, is_changed=is_changed)
        route = self._router.route(loads, prompt)
        self.counts.routed_prefix_tokens += route.num_prefix_tokens
        return route

    # ---- messages of the workers

    def _take_message(self, worker: WorkerState, message: messages.FromWorker) -> None:
        match message:
            case messages.StepMessage():
                self._take_step(worker, message)
            case messages.AdapterLoaded():
                self.adapters.take(worker, message)
            case messages.Described():
                self._questions.take(message)
            case messages.Admitted() | messages.RequestFailed():
                self._inflight.take_answer(worker, message)
            case messages.IntegrityFailed(text):
                self.counts.integrity_failures += 1
                logger.error("%s ends, as its counts contradict each other: %s", worker.name, text)

    def _take_ready(self, worker: WorkerState, info: EngineInfo) -> None:
        self.adapters.begin(worker)
        infos = [each.info or info for each in self.workers]  # workers that are not ready yet will have the same size
        rooms = [each.memory_room for each in infos if each.memory_room is not None]
        self.admission.note_memory(min(rooms, default=None))
        has_cache = info.num_blocks > 2  # an encoder stores nothing: it has one block in addition to the null block
        num_blocks = sum(each.num_blocks - 1 for each in infos) if has_cache else 1
        self.admission.note_cache(num_blocks, info.block_size)
        reused = info.num_blocks - 1 if has_cache and self._reuses_prefixes and info.reuses_prefixes else 0
        self._router.begin(worker.worker_id, num_blocks=reused, block_size=info.block_size)
        for tell in self.on_info:
            tell(info)

    def _take_step(self, worker: WorkerState, step: messages.StepMessage) -> None:
        worker.stats = step.stats
        self._inflight.take_step(worker, step)
        if step.stepped:
            try:
                self.on_step(step.stats)
            except Exception:  # an observer's error must not close the worker's link
                logger.exception("the observer of engine steps failed")

    def _fail_lost(self, worker: WorkerState) -> None:
        self._router.end(worker.worker_id)
        self.adapters.end(worker)
        lost = "The worker that ran this request ended; send it again."
        error = WorkerLost(lost, code="worker_lost", retry_after=seconds_until_ready(self.workers))
        self._inflight.fail_all(worker, error)

    def _fail_hung(self, worker: WorkerState) -> None:
        error = WorkerLost("The worker that ran this request hangs.", code="worker_hung", retry_after=5)
        self._inflight.fail_all(worker, error)
