"""The program of a rank other than 0: `python -m lightwell.server.engine.tensor_parallel.rank FD PARENT`.

`server.engine.tensor_parallel.ranks` starts it. It follows the commands of rank 0, the process PARENT, from the pipe
FD. First of all, it makes sure that it ends with rank 0.
"""

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, even during a pass (Linux). The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it ended before this call


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    # Imported last: torch takes seconds, or forever on a broken disk.
    from lightwell.server.engine.tensor_parallel.rank_commands import follow

    follow(Connection(int(sys.argv[1])))
