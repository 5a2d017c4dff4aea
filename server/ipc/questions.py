"""Questions between the main process and an API process, over one connection. Each end answers the other's."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lightwell.server.ipc import messages
from lightwell.server.ipc.frames import Frame
from lightwell.server.ipc.link import LinkProtocol

logger = logging.getLogger(__name__)

Answers = Mapping[str, Callable[[Any], Awaitable[Any]]]
"""Functions that answer questions, by their names. Values are plain data that msgpack can hold."""


class Questions:
    """One end of the connection. Functions are called in the order of the questions."""

    def __init__(self, answers: Answers, on_lost: Callable[[], None]) -> None:
        """on_lost: called when the other end is gone."""
        self._answers = answers
        self._on_lost = on_lost
        self._protocol = LinkProtocol(self._take, self._end)
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_lost = False

    async def start(self, connected: socket.socket) -> None:
        """Begin to read."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._protocol, sock=connected)

    def stop(self) -> None:
        """End the connection."""
        self._protocol.abort("the process ends")

    def tell(self, name: str, value: Any = None) -> None:
        """Call a function of the other end, without its result."""
        self._send(messages.Question(0, name, value))

    async def ask(self, name: str, value: Any = None) -> Any:
        """Return the result of a function of the other end. Raises ConnectionError if that end is gone."""
        if self.is_lost:
            raise ConnectionResetError("the other process is gone")
        number = next(self._numbers)
        self._open[number] = reply = asyncio.get_running_loop().create_future()
        try:
            self._send(messages.Question(number, name, value))
            return await reply
        finally:
            del self._open[number]

    def _send(self, message: messages.BetweenProcesses) -> None:
        self._protocol.send(*messages.encode(message))

    def _take(self, protocol: LinkProtocol, frame: Frame) -> None:
        match messages.decode_between(frame.header):
            case messages.Question() as question:
                task = asyncio.create_task(self._answer(question))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case messages.Reply(number, value):
                if (reply := self._open.get(number)) is not None and not reply.done():
                    reply.set_result(value)

    async def _answer(self, question: messages.Question) -> None:
        try:
            value = await self._answers[question.name](question.value)
        except Exception:
            logger.exception("the question %r failed", question.name)
            self._protocol.abort("a question failed")
        else:
            if question.number:
                self._send(messages.Reply(question.number, value))

    def _end(self, protocol: LinkProtocol, reason: str) -> None:
        self.is_lost = True
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(ConnectionResetError("the other process is gone"))
        self._on_lost()
