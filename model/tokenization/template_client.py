"""The parent's end of the process that renders chat templates (`model.tokenization.template_process`): starts it, asks
it, and starts another one when a template has ended it. It knows no jinja, and no conversation.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_SECONDS = 2.0
"""Seconds on the processor for one answer."""
MAX_MEMORY = 256 << 20
"""Bytes of the process's private memory, some 11 MiB of which Python and jinja take. macOS does not bound it."""
MAX_CHARACTERS = 8_000_000
"""Characters of a rendered text."""
_MAX_LINE = 12 * MAX_CHARACTERS
"""Bytes of an answer's first line, which may hold an error in the template's own words."""
_MAX_SILENCE = 10.0
"""Seconds without an answer after which the process is given up and killed: it may be stopped, or swapped out."""
_MOMENT = 5
"""Milliseconds that an event loop waits for an answer: nearly all come in a fraction of one, before it could turn."""
_SHORT = 1 << 16
"""Bytes of a question that the socket takes at once."""
_ROOT = Path(__file__).resolve().parents[2]


class ChatTemplateError(ValueError):
    """The template is broken, or it refused or could not render these messages. The message is one line."""


class TemplateClient:
    """A process that renders chat templates, one at a time. Any thread may ask."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._lock = threading.Lock()  # held from a question to its answer
        # Threads of its own, so that waiting for a template that hangs takes no thread from other work. One waits for
        # the lock, and one for the answer.
        self._asking, self._receiving = (ThreadPoolExecutor(1, "template") for _ in range(2))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process's id, or None if none was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs, and do not wait the tenth of a second that it needs. Asking starts it too.

        Raises OSError where none can be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        ours, theirs = socket.socketpair()
        # It finds modules where this process does, but for the working directory, which may hold any model.py.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(_ROOT)])}
        command = [sys.executable, "-P", "-S", "-m", "model.tokenization.template_process"]
        command += map(str, (self._max_seconds, MAX_MEMORY, MAX_CHARACTERS))
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            end = theirs.fileno()
            self._process = subprocess.Popen(command, env=environment, stdin=end, stdout=end, stderr=subprocess.DEVNULL)
            unless_started.pop_all()
        ours.settimeout(_MAX_SILENCE)
        self._socket = ours
        self._answers = ours.makefile("rb")
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._end = weakref.finalize(self, _end, self._process, ours)

    def stop(self) -> None:
        """End the process if one runs. Asking starts another."""
        if self._process is not None:
            self._end()

    def ask(self, source: bytes, variables: bytes) -> str:
        """Render a template; both are one line of JSON. Null variables only compile it. Raises ChatTemplateError."""
        self._lock.acquire()
        self._send(source + variables)
        return self._receive()

    async def ask_async(self, source: bytes, variables: bytes) -> str:
        """Ask as `ask` does; a thread waits for an answer that takes more than a moment."""
        if len(source) + len(variables) > _SHORT or not self._lock.acquire(blocking=False):
            return await self.in_thread(lambda: self.ask(source, variables))
        self._send(source + variables)
        if self._poll.poll(_MOMENT):
            return self._receive()
        answer = asyncio.get_running_loop().run_in_executor(self._receiving, self._receive)
        return await asyncio.shield(answer)  # which frees the lock, even if the caller is cancelled

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return the result of work that asks, done in the thread in which questions wait for each other."""
        return await asyncio.get_running_loop().run_in_executor(self._asking, work)

    def _send(self, question: bytes) -> None:
        try:
            self.start()
        except OSError as error:
            self._lock.release()
            raise ChatTemplateError("chat template: no process can be started to render it") from error
        with contextlib.suppress(OSError):  # it ended just now: there will be no answer
            self._socket.sendall(question)

    def _receive(self) -> str:
        try:
            error, detail, num_bytes = json.loads(self._answers.readline(_MAX_LINE))
            text = self._answers.read(num_bytes)
            if len(text) < num_bytes:
                raise EOFError
        except (OSError, EOFError, ValueError):  # it ended, or is silent
            raise ChatTemplateError(f"chat template: {self._why_ended()}") from None
        finally:
            self._lock.release()
        if detail:
            logger.warning("%s", detail)
        if error is not None:
            raise ChatTemplateError(error)
        return text.decode("utf-8", "surrogatepass")

    def _why_ended(self) -> str:
        self._end()
        assert self._process is not None
        if self._process.returncode == -signal.SIGPROF:
            return f"the template takes more than {self._max_seconds:g} s"
        return f"the process that renders it ended with status {self._process.returncode}"


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


@functools.cache
def shared_client() -> TemplateClient:
    """Return the client of the process that all templates of this process share."""
    return TemplateClient()
