"""Client of the process that renders chat templates (`model.tokenization.template_process`): starts it, sends it
templates, and starts another one after a template has ended it. Independent of jinja and of conversations.
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
"""CPU seconds for one answer."""
MAX_MEMORY = 256 << 20
"""Bytes of the process's private memory; Python and jinja take some 11 MiB of it. macOS does not enforce this limit."""
MAX_CHARACTERS = 8_000_000
"""Characters of a rendered text."""
_MAX_LINE = 12 * MAX_CHARACTERS
"""Bytes of an answer's first line, which may contain an error message of the template."""
_MAX_SILENCE = 10.0
"""Seconds without an answer after which the process is killed: it may be stopped, or swapped out."""
_MOMENT = 5
"""Milliseconds that an event loop waits for an answer: nearly all answers take a fraction of one."""
_SHORT = 1 << 16
"""Bytes of a question that the socket accepts at once."""
_ROOT = Path(__file__).absolute().parents[3]


class ChatTemplateError(ValueError):
    """The template is broken, or it refused or could not render these messages. The message is one line."""


class TemplateClient:
    """A process that renders chat templates, one at a time. Any thread may use it."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._lock = threading.Lock()  # held from a question to its answer
        # Separate threads, so that a template that hangs occupies no thread of other work. One waits for the lock, and
        # one for the answer.
        self._asking, self._receiving = (ThreadPoolExecutor(1, "template") for _ in range(2))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process's id, or None if none was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs, without waiting the tenth of a second that it takes. `ask` starts it too.

        Raises OSError if no process can be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        ours, theirs = socket.socketpair()
        # Its module path is this process's, except for the working directory, which may contain any model.py.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(_ROOT)])}
        command = [sys.executable, "-P", "-S", "-m", "lightwell.model.tokenization.template_process"]
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
        """End the process if one runs. `ask` starts another."""
        if self._process is not None:
            self._end()

    def ask(self, source: bytes, variables: bytes) -> str:
        """Return a rendered template. Both arguments are one line of JSON; null variables only compile the template.
        Raises ChatTemplateError.
        """
        self._lock.acquire()
        self._send(source + variables)
        return self._receive()

    async def ask_async(self, source: bytes, variables: bytes) -> str:
        """Return the result of `ask`; a thread waits for an answer that takes longer."""
        if len(source) + len(variables) > _SHORT or not self._lock.acquire(blocking=False):
            return await self.in_thread(lambda: self.ask(source, variables))
        self._send(source + variables)
        if self._poll.poll(_MOMENT):
            return self._receive()
        answer = asyncio.get_running_loop().run_in_executor(self._receiving, self._receive)
        return await asyncio.shield(answer)  # which frees the lock, even if the caller is cancelled

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return the result of work that calls `ask`, done in the thread in which questions wait for each other."""
        return await asyncio.get_running_loop().run_in_executor(self._asking, work)

    def _send(self, question: bytes) -> None:
        try:
            self.start()
        except OSError as error:
            self._lock.release()
            raise ChatTemplateError("chat template: no process can be started to render it") from error
        with contextlib.suppress(OSError):  # the process has ended: `_receive` finds no answer
            self._socket.sendall(question)

    def _receive(self) -> str:
        try:
            error, detail, num_bytes = json.loads(self._answers.readline(_MAX_LINE))
            text = self._answers.read(num_bytes)
            if len(text) < num_bytes:
                raise EOFError
        except (OSError, EOFError, ValueError):  # the process has ended, or does not answer
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
    """Return the client that all templates of this process share."""
    return TemplateClient()
