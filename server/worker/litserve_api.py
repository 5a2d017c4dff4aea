"""The worker's side of LitServe: `EngineApi.setup` makes the engine and the link to the API process.

This module is imported by the API process too, so torch and the engine are imported in `setup` alone, by name.
Knows nothing of how requests run (`server.worker.loop`).
"""

import gc
import importlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import litserve as ls

from server.config.devices import bind_to_cores
from server.dispatch.stack_dumps import stacks_file, write_stacks_on_signal
from server.engine.config import EngineConfig
from server.engine.memory.mapped_libraries import let_go_of_libraries
from server.engine.memory.memory_limit import give_back_memory, limit_memory
from server.ipc import messages
from server.ipc.link import WorkerLink, is_listened_to
from server.observability.logs import configure_logging
from server.worker.loop import EngineLike, EngineLoop
from server.worker.model_fingerprint import Fingerprint, difference

logger = logging.getLogger(__name__)

ENGINE_FACTORY = "server.engine.engine:Engine.from_folder"


class EngineApi(ls.LitAPI):  # type: ignore[misc]  # litserve ships no types
    """What LitServe pickles to the worker: how to make the engine and where the API process listens.

    `core_groups` are the CPU cores of each worker, where they are shared out. `model_files` are those that the API
    process has read: the worker serves no others. `engine_factory` is "module:attribute.path" of a callable
    (EngineConfig, progress) -> engine.
    """

    def __init__(
        self,
        config: EngineConfig,
        socket_path: str,
        *,
        model_files: Fingerprint,
        core_groups: Sequence[Sequence[int]] = (),
        engine_factory: str = ENGINE_FACTORY,
        log_level: str = "info",
        log_format: str = "text",
    ) -> None:
        super().__init__(api_path="/engine", stream=True, loop=EngineLoop())
        self.config = config
        self.socket_path = socket_path
        self.model_files = model_files
        self.core_groups = core_groups
        self.engine_factory = engine_factory
        self.log_level = log_level
        self.log_format = log_format
        self.engine: EngineLike | None = None
        self.link: WorkerLink | None = None

    def setup(self, device: str) -> None:
        """Greet the API process, then make the engine. A failure is told in one line and ends this process.

        LitServe would only log an exception and leave; so none gets out of here.
        """
        worker_id = int(os.environ["LITSERVE_WORKER_ID"])
        gc.disable()  # until `freeze_garbage`: there is none in what imports make, a tenth of whose time it took
        configure_logging(self.log_level, self.log_format, f"worker-{worker_id}")
        if self.core_groups:
            bind_to_cores(self.core_groups[worker_id])  # before torch counts the cores
        try:
            link = WorkerLink.connect(self.socket_path)
        except OSError:
            os._exit(0)  # the API process left while this one was starting
        link.watch(self.leave)
        write_stacks_on_signal(stacks_file(self.socket_path, worker_id))
        link.send(messages.encode(messages.Hello(worker_id, os.getpid())))
        self.config = replace(
            self.config,
            folder=Path(self.socket_path).parent,
            start_logging=partial(configure_logging, self.log_level, self.log_format),
        )
        if self.config.device == "cuda":
            self.config = replace(self.config, device=device)  # the card that LitServe gave this worker
        try:
            self.engine = self._make_engine(link)
            memory_room = limit_memory(self.config.worker_memory, self.config.memory_share, self.config.tensor_parallel)
        except BaseException as error:
            if not isinstance(error, ValueError | OSError):  # not the checkpoint's fault: show where
                logger.exception("the engine could not be made")
            line = " ".join(str(error).split()) or type(error).__name__
            link.send(messages.encode(messages.LoadFailed(line)))
            link.flush(timeout=5.0)
            os._exit(3)
        freeze_garbage()
        self.link = link
        link.send(messages.encode(messages.Ready(replace(self.engine.info, memory_room=memory_room))))
        let_go_of_libraries()

    def leave(self) -> None:
        """The link is gone: end this process. If the API process was killed, nobody else removes its socket."""
        if not is_listened_to(self.socket_path):
            shutil.rmtree(os.path.dirname(self.socket_path), ignore_errors=True)
        os._exit(0)

    def _make_engine(self, link: WorkerLink) -> EngineLike:
        module, _, path = self.engine_factory.partition(":")
        factory: Any = importlib.import_module(module)
        for name in path.split("."):
            factory = getattr(factory, name)

        def progress(done: int, total: int) -> None:
            link.send(messages.encode(messages.Loading(done, total)))

        engine = cast("EngineLike", factory(self.config, progress))
        # Afterwards, so that a file that changes while it is read is noticed.
        changed = difference(self.model_files, self.config.model)
        if changed is not None:
            raise ValueError(changed)
        return engine


def freeze_garbage() -> None:
    """Take all that lives now out of the garbage collector's sight, which looks from now on, and give back what making
    it took.

    It stays for good, and looking through it again (torch alone brings some 10^5 objects) would halt a step.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    give_back_memory()
