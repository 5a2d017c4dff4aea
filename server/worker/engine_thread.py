"""The engine and its loop in a thread of this process, connected to the engine's client as a worker process is."""

import os
import threading
from concurrent.futures import Future
from functools import partial

from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.memory.process_memory import give_back_memory
from lightwell.server.ipc import messages
from lightwell.server.ipc.link import WorkerLink
from lightwell.server.worker.engine_worker import load_engine, report_loading
from lightwell.server.worker.loop import run_engine
from lightwell.server.worker.model_fingerprint import Fingerprint
from lightwell.server.worker.progress_reports import report_progress


class EngineThread(threading.Thread):
    """A worker without a process of its own. It ends with the link to the engine's client.

    It changes nothing of the process that belongs to the caller: no logging, no limit of memory, no signals.
    """

    def __init__(self, config: EngineConfig, socket_path: str, model_files: Fingerprint) -> None:
        super().__init__(name="lightwell-engine", daemon=True)
        self.loaded: Future[None] = Future()
        """Done once the engine is loaded; its exception is the error of the loading."""
        self._config = config
        self._socket_path = socket_path
        self._model_files = model_files

    def run(self) -> None:
        link = WorkerLink.connect(self._socket_path)
        try:
            link.send(*messages.encode(messages.Hello(0, os.getpid())))
            report_progress(link)
            self._serve(link)
        except ConnectionError:
            pass  # the client was closed
        finally:
            link.close()
            give_back_memory()

    def _serve(self, link: WorkerLink) -> None:
        try:
            engine = load_engine(self._config, self._model_files, partial(report_loading, link))
        except BaseException as error:
            self.loaded.set_exception(error)
            return
        try:
            engine.prepare_grammars()
            link.send(*messages.encode(messages.Ready(engine.info)))
            self.loaded.set_result(None)
            run_engine(engine, link)
        finally:
            engine.close()
