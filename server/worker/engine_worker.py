"""Worker process: makes the engine and the link to the API process, and then runs the loop.

The API process imports this module too, so torch and the engine are imported only in `setup`, by name.
"""

import contextlib
import logging
import os
import pkgutil
import shutil
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, cast

from lightwell.server.config.devices import bind_to_cores
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.memory.mapped_libraries import let_go_of_libraries
from lightwell.server.engine.memory.process_memory import freeze_garbage, limit_memory
from lightwell.server.ipc import messages
from lightwell.server.ipc.link import WorkerLink, is_listened_to
from lightwell.server.ipc.stack_dumps import stacks_file, write_stacks_on_signal
from lightwell.server.observability.logs import configure_logging
from lightwell.server.worker.loop import run_engine
from lightwell.server.worker.model_fingerprint import Fingerprint, difference
from lightwell.server.worker.progress_reports import report_progress

if TYPE_CHECKING:
    from lightwell.server.engine.engine import Engine

logger = logging.getLogger(__name__)

ENGINE_FACTORY = "lightwell.server.engine.engine:Engine.from_folder"
"""How the engine is made, as "module:attribute.path" of a callable (EngineConfig, progress) -> engine."""


@dataclass(eq=False)
class EngineWorker:
    """An engine in its own process, to which this object is pickled."""

    config: EngineConfig
    socket_path: str
    """The path of the Unix socket on which the API process listens."""
    _: KW_ONLY
    model_files: Fingerprint
    """The fingerprint of the files that the API process has read: the worker serves only these."""
    core_groups: Sequence[Sequence[int]] = ()
    """The CPU cores of each worker, or nothing if all workers use all of them."""
    engine_factory: str = ENGINE_FACTORY
    log_name: str = "worker"
    log_level: str = "info"
    log_format: str = "text"
    _engine: "Engine" = field(init=False, repr=False)
    _link: WorkerLink = field(init=False, repr=False)

    def setup(self, worker_id: int, device: str) -> None:
        """Connect to the API process, then make the engine. Any failure is reported in one line and ends this process;
        no exception is raised.
        """
        link: WorkerLink | None = None
        try:
            configure_logging(self.log_level, self.log_format, f"{self.log_name}-{worker_id}")
            link = self._greet(worker_id)
            self._make_ready(link, device)
        except BaseException as error:
            line = " ".join(str(error).split()) or type(error).__name__
            if link is None or not isinstance(error, ValueError | OSError):  # an error of the code: log its place
                logger.exception("worker %d could not start", worker_id)
                line = f"the worker could not start: {line}"
            if link is not None:
                with contextlib.suppress(ConnectionError):  # the API process left meanwhile
                    link.send(*messages.encode(messages.LoadFailed(line)))
                    link.flush(timeout=5.0)
            logging.shutdown()
            os._exit(3)

    def _greet(self, worker_id: int) -> WorkerLink:
        """Return the link to the API process, after the first message."""
        if self.core_groups:
            bind_to_cores(self.core_groups[worker_id])  # before torch counts the cores
        try:
            link = WorkerLink.connect(self.socket_path)
        except OSError:
            os._exit(0)  # the API process left while this one was starting
        link.watch(self.leave)
        write_stacks_on_signal(stacks_file(self.socket_path, worker_id))
        link.send(*messages.encode(messages.Hello(worker_id, os.getpid())))
        report_progress(link)
        return link

    def _make_ready(self, link: WorkerLink, device: str) -> None:
        """Make the engine, and send `Ready`. Raises the error that prevents this."""
        self.config = replace(
            self.config,
            folder=Path(self.socket_path).parent,
            start_logging=partial(configure_logging, self.log_level, self.log_format),
        )
        if self.config.device == "cuda":
            self.config = replace(self.config, device=device)  # this worker's GPU
        report = partial(report_loading, link)
        self._engine = load_engine(self.config, self.model_files, report, self.engine_factory)
        memory_room = limit_memory(
            self.config.worker_memory, self.config.memory_share, self.config.tensor_parallel, self._engine.info.device
        )
        freeze_garbage()
        self._link = link
        self._engine.prepare_grammars()
        release = Timer(3.0, let_go_of_libraries)  # after the first answers and the grammars' vocabulary
        release.daemon = True
        release.start()
        link.send(*messages.encode(messages.Ready(replace(self._engine.info, memory_room=memory_room))))

    def run(self, worker_id: int) -> None:
        """Serve requests until the API process leaves or the engine fails; then end this process."""
        try:
            run_engine(self._engine, self._link)
        except ConnectionError:
            self.leave()  # the API process is gone, and every client too
        except BaseException:
            logger.exception("worker %d ends: its engine failed", worker_id)
            logging.shutdown()
            os._exit(1)

    def leave(self) -> None:
        """End this process after the link's end. If the API process was killed, this process removes its socket."""
        if not is_listened_to(self.socket_path):
            shutil.rmtree(os.path.dirname(self.socket_path), ignore_errors=True)
        os._exit(0)


def load_engine(
    config: EngineConfig, model_files: Fingerprint, progress: Callable[[int, int], None], factory: str = ENGINE_FACTORY
) -> "Engine":
    """Return the engine of a model with this fingerprint of its files. Raises ValueError for a model or settings that
    cannot be served, and for files that have changed.
    """
    engine = cast("Engine", pkgutil.resolve_name(factory)(config, progress))
    # Afterwards, so that a file that changes while it is read is noticed.
    changed = difference(model_files, config.model)
    if changed is not None:
        raise ValueError(changed)
    return engine


def report_loading(link: WorkerLink, done: int, total: int) -> None:
    """Tell the API process how many of the weights are loaded."""
    link.send(*messages.encode(messages.Loading(done, total)))
