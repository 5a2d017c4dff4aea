"""The engine and its loop in a thread of this process, connected to the engine's client as a worker process is."""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
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

logger = logging.getLogger(__name__)


class EngineThread(threading.Thread):
    """A worker without a process of its own. It ends with the link to the engine's client.

    Of the caller's process it changes the number of torch's threads. It sets up no logging, limits no memory and
    handles no signals.
    """

    def __init__(
        self,
        config: EngineConfig,
        connected: socket.socket,
        model_files: Fingerprint,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare the thread. connected: the connection to the engine's client; the thread closes it at its end.
        `on_failure` is called with the error that ends a loaded engine.
        """
        super().__init__(name="lightwell-engine", daemon=True)
        self.loaded: Future[None] = Future()
        """Done once the engine is loaded; its exception is the error of the loading."""
        self._config = config
        self._connected = connected
        self._model_files = model_files
        self._on_failure = on_failure

    def run(self) -> None:
        with contextlib.ExitStack() as link_end:
            try:
                link = WorkerLink(self._connected)
                link_end.callback(link.close)
                self._serve(link)
            except BaseException as error:  # reported before the link ends: a request that is refused then says why
                if not self.loaded.done():
                    self.loaded.set_exception(error)
                elif not isinstance(error, ConnectionError):  # else the client was closed
                    logger.exception("the engine failed")
                    self._on_failure(error)
        give_back_memory()

    def _serve(self, link: WorkerLink) -> None:
        link.send(*messages.encode(messages.Hello(0, os.getpid())))
        report_progress(link)
        engine = load_engine(self._config, self._model_files, partial(report_loading, link))
        try:
            engine.prepare_grammars()
            link.send(*messages.encode(messages.Ready(engine.info)))
            self.loaded.set_result(None)
            run_engine(engine, link)
        finally:
            engine.close()
