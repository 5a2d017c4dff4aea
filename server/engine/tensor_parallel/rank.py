"""Runs one of the processes that share a model: `python -m server.engine.tensor_parallel.rank FD PARENT`, started by
`server.engine.tensor_parallel.ranks`. It follows the commands that rank 0, the process PARENT, sends through the pipe
FD.

It knows only how it ends with rank 0, and sets that up before anything that takes time.
"""

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, even during a pass (Linux). Ctrl-C is left to the
    parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it ended before this call


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    from server.engine.tensor_parallel.rank_commands import (
        follow,  # only now: torch takes seconds, or for ever on a broken disk
    )

    follow(Connection(int(sys.argv[1])))
