"""Unix socket that the workers connect to, in a folder of its own. If the folder disappears, a new one is created."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable

from server.ipc import link

logger = logging.getLogger(__name__)


class WorkerSocket:
    """A socket that listens at once, so that a worker may connect before the event loop runs. `path` may change."""

    def __init__(self, make_protocol: Callable[[], link.LinkProtocol]) -> None:
        self._make_protocol = make_protocol
        self._server: asyncio.AbstractServer | None = None
        self._listen()

    def _listen(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="lightwell-")
        self._listener = link.listen(self._folder)
        self.path: str = self._listener.getsockname()

    async def accept(self) -> None:
        """Accept connections; they may have been waiting in the listener's queue."""
        self._server = await asyncio.get_running_loop().create_unix_server(self._make_protocol, sock=self._listener)

    async def ensure_listening(self) -> None:
        """Listen in a new folder if the socket's is gone, for example when /tmp was cleaned: a worker that starts needs
        it. Open connections are not affected. Raises OSError.
        """
        if os.path.exists(self.path):
            return
        logger.warning("%s is gone: listening again", self.path)
        self.stop()
        self._listener.close()
        self._listen()
        await self.accept()

    def stop(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    def remove(self) -> None:
        """Close the listener and remove its folder. It needs no event loop, and may be called again."""
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)
