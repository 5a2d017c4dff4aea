"""Stacks of a worker's threads, read from outside with a signal, also in the middle of a step."""

import asyncio
import faulthandler
import os
import signal
from pathlib import Path

_SIGNAL = signal.SIGUSR2
_PATIENCE = 0.5
"""Seconds in which a process that runs has written its stacks; one that is stopped never does."""
_LOOK_INTERVAL = 0.05


def stacks_file(socket_path: str, worker_id: int) -> Path:
    """Return the file that a worker writes to, next to the socket, in the folder that no other user may enter."""
    return Path(socket_path).with_name(f"worker-{worker_id}.stacks")


def write_stacks_on_signal(path: Path) -> None:
    """Make this process answer `read_stacks`. Raises OSError where the file cannot be made."""
    faulthandler.register(_SIGNAL, path.open("wb"), all_threads=True)  # faulthandler keeps the file open


async def read_stacks(pid: int, path: Path) -> str | None:
    """Return the Python stacks of a process that writes to `path`, innermost calls first; None without an answer."""
    try:
        before = path.stat().st_size
        os.kill(pid, _SIGNAL)
        written = before
        for _ in range(round(_PATIENCE / _LOOK_INTERVAL)):
            await asyncio.sleep(_LOOK_INTERVAL)
            size = path.stat().st_size
            if size == written > before:  # it began to write, and has finished
                break
            written = size
        return path.read_bytes()[before:].decode("utf-8", "replace") or None
    except OSError:
        return None
