"""One more process of a model that several hold: `python -m server.engine.rank FD`, started by `server.engine.ranks`.

It does what rank 0 tells it through the pipe FD, and ends with it. Knows no requests.
"""

import ctypes
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection

from model.layers import kept_answers
from model.layers.arrays import use_compiler
from model.layers.compiler_cache import compile_once, do_without_blas, tolerate_full_disks
from model.parallel.commands import Follower, Load
from model.parallel.group import Group
from server.engine.memory_limit import give_back_memory, limit_memory
from server.engine.ranks import Setup
from server.engine.threads import use_threads

_PR_SET_PDEATHSIG = 1


def main(pipe: Connection) -> None:
    """Until the pipe ends. Raises what a command raises: the process is then of no more use."""
    end_with_parent()
    setup: Setup = pipe.recv()
    use_compiler(setup.compile)
    if setup.compile:
        tolerate_full_disks()
        compile_once()
        do_without_blas()
    kept_answers.keep_in(kept_answers.default_folder())
    use_threads(setup.threads, 0)
    group = Group.join(setup.store, setup.rank, setup.size, setup.device)
    follower = Follower(group, setup.device)
    while True:
        try:
            command = pipe.recv()
        except (EOFError, ConnectionError):
            os._exit(0)  # rank 0 has ended
        if isinstance(command, Load):
            pipe.send(_load(follower, command, setup))
        else:
            follower.do(command)


def _load(follower: Follower, command: Load, setup: Setup) -> str | None:
    """What is wrong, in one line."""
    try:
        follower.do(command)
        if setup.memory is not None:
            limit_memory(setup.memory)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    gc.collect()
    gc.freeze()  # as the worker does: looking through what stays would halt a pass
    give_back_memory()
    return None


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even within a pass; on Linux. Ctrl-C is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
