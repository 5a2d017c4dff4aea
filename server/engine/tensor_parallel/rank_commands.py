"""The loop of a rank other than 0: it runs commands from a pipe, one after another, until the pipe ends."""

import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from lightwell.model.checkpoint.folder import one_line
from lightwell.model.ranks.commands import Follower, Load
from lightwell.model.sharding.group import Group
from lightwell.server.engine.execution.threads import use_threads
from lightwell.server.engine.memory.process_memory import freeze_garbage, give_back_memory, limit_memory
from lightwell.server.engine.tensor_parallel.device_steps import DeviceFollower
from lightwell.server.engine.tensor_parallel.ranks import Settle, Setup


def follow(pipe: Connection) -> None:
    """Run commands until the pipe ends. If one raises, the process is unusable."""
    setup: Setup = pipe.recv()
    if setup.start_logging is not None:
        setup.start_logging(f"worker-0-rank-{setup.rank}")
    use_threads(setup.threads, 0)
    group = Group.join(setup.store, setup.rank, setup.size, setup.device)
    pipe.send(None)  # this rank no longer needs the file in which all meet
    follower = DeviceFollower(group, setup.device)
    while True:
        try:
            command = pipe.recv()
        except (EOFError, ConnectionError):
            os._exit(0)  # rank 0 has ended
        if isinstance(command, Settle):
            pipe.send(_problem(partial(_settle, command, str(setup.device))))
        elif isinstance(command, Load):
            pipe.send(_problem(partial(_load, follower, command)))
        else:
            follower.do(command)


def _problem(work: Callable[[], None]) -> str | None:
    """Do the work, and return None or its error, in one line."""
    try:
        work()
    except Exception as error:
        return one_line(error)
    return None


def _load(follower: Follower, command: Load) -> None:
    follower.do(command)
    give_back_memory()  # rank 0 measures the free memory next


def _settle(command: Settle, device: str) -> None:
    freeze_garbage()
    limit_memory(command.memory, num_processes=command.num_processes, device=device)
