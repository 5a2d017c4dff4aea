"""The engine of one model, and the engines of a server: their clients and the workers that they start and end.

worker i of a model: started by `WorkerLauncher`: `EngineWorker.setup`, then `EngineWorker.run`
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client.core import Metric

from lightwell.server.config.devices import Places, as_text, places
from lightwell.server.config.memory_estimate import sizes
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.memory.process_memory import free_host_memory
from lightwell.server.generation.model_list import ModelSlot
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.http.errors import Unavailable
from lightwell.server.lifecycle.litserve_adapter import WorkerLauncher
from lightwell.server.lifecycle.model_files import load_model_files
from lightwell.server.lifecycle.supervisor import Process, Supervisor
from lightwell.server.lifecycle.worker_process import weight_bytes, worker_environment
from lightwell.server.worker.engine_worker import ENGINE_FACTORY, EngineWorker
from lightwell.server.worker.model_fingerprint import Fingerprint, difference

_REAP_TIMEOUT = 2.0
_LOOK_INTERVAL = 0.02
_MIB = 1 << 20
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Devices of NVIDIA's and AMD's drivers: where one is, a worker may put its model on a GPU."""


class ServerGaveUp(RuntimeError):
    """Raised when the workers cannot run; the message is one line for the operator."""


class ModelHost:
    """The engine client of one model, and its workers."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        config: EngineConfig,
        found: Places,
        model_files: Fingerprint,
        on_give_up: Callable[[str], None],
        engine_factory: str = ENGINE_FACTORY,
        *,
        is_one_of_several: bool = False,
    ) -> None:
        """Prepare the workers. Raises ServerGaveUp if there is no place for their socket."""
        self.name = name
        try:
            self.client = EngineClient(settings, found.num_workers, name if is_one_of_several else "")
        except OSError as error:
            raise ServerGaveUp(
                f"the folder for the workers' socket cannot be created: {error}; set TMPDIR to another folder"
            ) from error
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(self.client.socket.remove)  # every end, also by a signal, removes the folder
            self._threads = settings.threads
            self._worker = EngineWorker(
                config,
                self.client.socket.path,
                model_files=model_files,
                core_groups=found.core_groups,
                engine_factory=engine_factory,
                log_name=f"{name}-worker" if is_one_of_several else "worker",
                log_level=settings.log_level,
                log_format=settings.log_format,
            )
            self._launcher = WorkerLauncher(
                self._worker, accelerator=found.accelerator, cards=found.cards, num_workers=found.num_workers
            )
            self.supervisor = Supervisor(
                self.client, self._launch, on_give_up, lambda: difference(model_files, config.model)
            )
            unless_made.pop_all()

    async def start(self) -> None:
        """Accept the workers' connections, and watch their processes."""
        await self.client.start()
        await self.supervisor.start()

    async def stop(self) -> None:
        """End every request and every connection: the workers then end by themselves."""
        self.client.begin_drain()
        await self.supervisor.stop()
        await self.client.stop()

    def end(self, timeout: float) -> None:
        """Wait for the workers for this many seconds, and kill the rest. It needs no event loop."""
        self.client.socket.remove()
        self.supervisor.reap(timeout)

    def _launch(self, worker_id: int) -> Process:
        self._worker.socket_path = self.client.socket.path  # a new one if the folder disappeared
        with worker_environment(self._threads, weight_bytes(self._worker.config.model)):
            return self._launcher.launch(worker_id)


class ModelHosts:
    """The engines of the loaded models. They share the free memory of the machine evenly.

    `on_give_up(slot, reason)` is called when the workers of a model ended and are not restarted.
    """

    def __init__(
        self,
        num_sharing: int,
        on_give_up: Callable[[ModelSlot, str], None],
        engine_factory: str = ENGINE_FACTORY,
    ) -> None:
        self._num_sharing = num_sharing
        self._free = free_host_memory()
        self._on_give_up = on_give_up
        self._engine_factory = engine_factory
        self._hosts: dict[ModelSlot, ModelHost] = {}
        self._ended: dict[ModelSlot, EngineClient] = {}
        """The last client, with its counters, of each model that is not loaded."""
        self.is_draining = False

    def __iter__(self) -> Iterator[ModelHost]:
        return iter(list(self._hosts.values()))

    def add(self, slot: ModelSlot, config: EngineConfig, model_files: Fingerprint) -> ModelHost:
        """Make the engine of a model. Raises SettingsError without the devices, and ServerGaveUp."""
        settings = slot.settings
        try:
            found = places(settings.devices, config.device)
        except ValueError as error:
            raise SettingsError(f"--devices {as_text(settings.devices)}: {error}") from None
        host = ModelHost(
            slot.id,
            settings,
            at_places(config, found, self._free, self._num_sharing),
            found,
            model_files,
            lambda reason: self._on_give_up(slot, reason),
            self._engine_factory,
            is_one_of_several=self._num_sharing > 1,
        )
        host.client.on_step = slot.metrics.observe_step
        if (earlier := self._ended.pop(slot, None)) is not None:
            host.client.continue_counters(earlier)
        self._hosts[slot] = host
        return host

    def begin_drain(self) -> None:
        """Accept no more HTTP requests, and load no more models."""
        self.is_draining = True
        for host in self:
            host.client.begin_drain()

    def metrics(self, slot: ModelSlot) -> Iterator[Metric]:
        """Yield the metrics of a model's engine; only its counters while it is not loaded."""
        if (host := self._hosts.get(slot)) is not None:
            yield from host.client.metrics()
        elif (ended := self._ended.get(slot)) is not None:
            yield from (each for each in ended.metrics() if each.type == "counter")

    def read(self, slot: ModelSlot) -> ModelFiles:
        """Read a model's files but its weights. Raises ValueErrors and OSErrors of one line."""
        return load_model_files(slot.settings)

    async def start(self, slot: ModelSlot, files: ModelFiles) -> ServedModel:
        """Load a model, and return it once it is ready.

        Raises ValueErrors and OSErrors of one line, and Unavailable while the server ends.
        """
        if self.is_draining:
            raise Unavailable("The server is shutting down.", code="draining", retry_after=1)
        check_memory(files)
        try:
            host = self.add(slot, slot.settings.engine_config(files.folder), files.fingerprint)
            host.supervisor.launch_all()
            await host.start()
            while not host.client.ready():
                if not host.client.live:
                    raise ValueError(host.client.end_reason)
                if self.is_draining:
                    raise Unavailable("The server is shutting down.", code="draining", retry_after=1)
                await asyncio.sleep(_LOOK_INTERVAL)
        except BaseException as error:
            await self.stop(slot)
            if isinstance(error, ServerGaveUp):
                raise OSError(str(error)) from error
            raise
        return ServedModel.of(files, host.client, slot.metrics)

    async def stop(self, slot: ModelSlot) -> None:
        """End the workers of a model."""
        host = self._hosts.get(slot)
        if host is not None:
            await host.stop()
            await asyncio.to_thread(host.end, _REAP_TIMEOUT)
            self._ended[slot] = host.client
            del self._hosts[slot]  # not before: the end of the server ends all that are left


def check_memory(files: ModelFiles) -> None:
    """Raise ValueError, with the numbers, for a model that the free memory of this machine cannot hold."""
    settings, free = files.settings, free_host_memory()
    may_use_gpu = settings.device == "cuda" or (settings.device == "auto" and any(map(os.path.exists, GPU_DRIVERS)))
    if free is None or may_use_gpu:
        return
    found = sizes(files.config, settings, files.folder / "config.json")
    needed = found.weights + found.processes
    if needed > free:
        raise ValueError(
            f"it needs about {needed // _MIB} MiB of memory ({found.weights // _MIB} of weights), and "
            f"{free // _MIB} MiB are free"
        )


def at_places(config: EngineConfig, found: Places, free: int | None, num_sharing: int) -> EngineConfig:
    """Return the configuration of a model's workers: their devices, and their shares of memory.

    free: bytes of memory that were free at the start. num_sharing: models that share it evenly, and share a GPU.
    """
    num_shares = num_sharing * found.num_workers
    return replace(
        config,
        device="cuda" if found.cards else "cpu" if found.core_groups else config.device,
        memory_share=free // num_shares if num_shares > 1 and free is not None else None,
        gpu_memory_utilization=config.gpu_memory_utilization / num_sharing,
        num_workers=found.num_workers,
    )
