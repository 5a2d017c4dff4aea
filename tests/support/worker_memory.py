"""A limit on the memory of a running server's worker, unknown to the server."""

import resource

from lightwell.server.engine.memory.process_memory import data_bytes
from tests.support.processes import worker_pid


def leave_room(pid: int, room: int) -> None:
    """Let the worker of the server with process id `pid` allocate only `room` more bytes.

    Unlike with `--worker-memory`, the server does not know the limit: it accepts requests that cannot fit.
    """
    worker = worker_pid(pid)
    assert worker is not None
    _, hard = resource.prlimit(worker, resource.RLIMIT_DATA)
    resource.prlimit(worker, resource.RLIMIT_DATA, (data_bytes(worker) + room, hard))
