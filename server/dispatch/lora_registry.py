"""LoRA adapters of the server: their names, the workers that have loaded each, and loading and unloading at run time.

Every worker has every adapter. A worker that restarts loads the adapters of the settings with its model; the others are
sent to it when it is ready. Independent of routes and of the adapters' files.
"""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from lightwell.server.config.lora_settings import resolved_root
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.dispatch.worker_state import WorkerState, unready
from lightwell.server.engine.messages.request import Task, WeightsTask
from lightwell.server.http.errors import BadRequest, NotFound
from lightwell.server.ipc.messages import AdapterLoaded, DropAdapter, LoadAdapter

logger = logging.getLogger(__name__)


async def _no_one() -> None:
    """Announce a change to no other process."""


class LoraRegistry:
    """The adapters of a server. All of it runs in one event loop."""

    def __init__(
        self,
        settings: Settings,
        workers: Sequence[WorkerState],
        send: Callable[[WorkerState, LoadAdapter | DropAdapter], None],
    ) -> None:
        """Serve the adapters of the settings, which the workers load with their model."""
        now = int(time.time())
        config = settings.engine_config(Path())  # it numbers them
        self._served = {
            name: ServedAdapter(name, each.number, each.folder, now)
            for (name, _), each in zip(settings.lora, config.adapters, strict=True)
        }
        self._from_start = frozenset(each.number for each in config.adapters)
        self._numbers = itertools.count(len(self._from_start) + 1)
        self._loading: dict[str, ServedAdapter] = {}
        self._max_loras = settings.max_loras
        root = resolved_root(settings.lora_root)
        self._root = None if root is None else str(root)
        self._workers = workers
        self._send = send
        self._answers: dict[tuple[int, int], asyncio.Future[str | None]] = {}
        """Awaited answers, by worker and adapter: None, or the reason why the adapter cannot be served."""
        self._num_requests: Counter[str] = Counter()
        self.announce: Callable[[], Awaitable[None]] = _no_one
        """Called after a change: when it returns, all API processes serve the same adapters."""

    def __iter__(self) -> Iterator[ServedAdapter]:
        return iter(self._served.values())

    def find(self, name: str) -> ServedAdapter | None:
        return self._served.get(name)

    def numbered(self, number: int) -> ServedAdapter | None:
        """Return the adapter with this number; None for 0, the model itself. Raises NotFound after it was unloaded."""
        found = next((each for each in self._served.values() if each.number == number), None)
        if number and found is None:
            raise NotFound("The LoRA adapter of this request was unloaded.", param="model", code="model_not_found")
        return found

    def replace(self, served: Sequence[ServedAdapter]) -> None:
        """Serve these adapters, which the main process has loaded."""
        self._served = {each.name: each for each in served}
        for worker in self._workers:
            worker.adapters = {each.number for each in served}

    def num_requests(self) -> dict[str, int]:
        """Return how many requests each adapter was named by since it was loaded."""
        return {name: self._num_requests[name] for name in self._served}

    def workers_with(self, adapter: ServedAdapter, candidates: Sequence[WorkerState], task: Task) -> list[WorkerState]:
        """Return the candidates that can run a request with this adapter, and count the request.

        Raises NotFound (404) if it was unloaded meanwhile, Unavailable (503) while no candidate has loaded it, and
        BadRequest (400) for a request that reads only the weights, which are the model's.
        """
        if self._served.get(adapter.name) != adapter:
            raise NotFound(f"The LoRA adapter {adapter.name!r} was unloaded.", param="model", code="model_not_found")
        if isinstance(task, WeightsTask):
            raise BadRequest(
                f"model: {adapter.name!r} is a LoRA adapter, but this route reads the weights of the model; the name "
                "of the model is accepted.",
                param="model",
                code="adapter_not_supported",
            )
        found = [worker for worker in candidates if adapter.number in worker.adapters]
        if not found:
            raise unready(self._workers, f"No worker has loaded the LoRA adapter {adapter.name!r} yet.", "not_ready")
        self._num_requests[adapter.name] += 1
        return found

    async def load(self, name: str, folder: Path) -> None:
        """Have every worker load an adapter, and serve it.

        Raises BadRequest (400) for a name in use, for more than `--max-loras`, and for an adapter that cannot be
        served, and Unavailable (503) while no worker is ready.
        """
        self._check_new(name)
        ready = [worker for worker in self._workers if worker.is_ready]
        if not ready:
            raise unready(self._workers, "No worker is ready to load an adapter.", "not_ready")
        adapter = ServedAdapter(name, next(self._numbers), folder, int(time.time()))
        self._loading[name] = adapter
        try:
            errors = await asyncio.gather(*(self._load_on(worker, adapter) for worker in ready))
            error = next((each for each in errors if each is not None), None)
            if error is not None:
                raise BadRequest(f"lora_path: {error}.", param="lora_path", code="lora_invalid")
        except BaseException:
            self._drop(adapter)
            raise
        finally:
            del self._loading[name]
        self._served[name] = adapter
        logger.info("the LoRA adapter %r is served, from %s", name, folder)

    def unload(self, name: str) -> None:
        """Serve an adapter no longer; requests that have begun keep it. Raises NotFound (404) for an unknown name."""
        adapter = self._served.pop(name, None)
        if adapter is None:
            raise NotFound(f"The LoRA adapter {name!r} is not loaded.", param="lora_name", code="lora_not_found")
        del self._num_requests[name]
        self._drop(adapter)
        logger.info("the LoRA adapter %r was unloaded", name)

    def begin(self, worker: WorkerState) -> None:
        """Note that a worker is ready with the adapters of the settings, and have it load the others."""
        worker.adapters = set(self._from_start)
        for adapter in (*self._served.values(), *self._loading.values()):
            if adapter.number not in self._from_start:
                self._send(worker, LoadAdapter(adapter.number, str(adapter.folder), self._root))

    def end(self, worker: WorkerState) -> None:
        """Note that a worker's process has ended: its answers are no longer awaited."""
        worker.adapters = set()
        for (worker_id, _), answer in self._answers.items():
            if worker_id == worker.worker_id and not answer.done():
                answer.set_result(None)

    def take(self, worker: WorkerState, message: AdapterLoaded) -> None:
        """Take a worker's answer to LoadAdapter."""
        if message.error is None:
            worker.adapters.add(message.number)
        else:
            logger.warning("%s could not load a LoRA adapter: %s", worker.name, message.error)
        answer = self._answers.get((worker.worker_id, message.number))
        if answer is not None and not answer.done():
            answer.set_result(message.error)

    async def _load_on(self, worker: WorkerState, adapter: ServedAdapter) -> str | None:
        key = (worker.worker_id, adapter.number)
        self._answers[key] = asyncio.get_running_loop().create_future()
        try:
            self._send(worker, LoadAdapter(adapter.number, str(adapter.folder), self._root))
            return await self._answers[key]
        finally:
            del self._answers[key]

    def _drop(self, adapter: ServedAdapter) -> None:
        for worker in self._workers:
            worker.adapters.discard(adapter.number)
            self._send(worker, DropAdapter(adapter.number))

    def _check_new(self, name: str) -> None:
        if name in self._served or name in self._loading:
            raise BadRequest(
                f"lora_name: the LoRA adapter {name!r} is already loaded; unload it first, or use another name.",
                param="lora_name",
                code="lora_name_in_use",
            )
        num_loaded = len(self._served) + len(self._loading)
        if num_loaded >= self._max_loras:
            raise BadRequest(
                f"lora_name: {num_loaded} LoRA adapters are loaded, the largest accepted number (--max-loras); unload "
                "one first.",
                param="lora_name",
                code="too_many_loras",
            )
