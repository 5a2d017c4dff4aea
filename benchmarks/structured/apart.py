"""Runs work in a separate process, because a grammar may never finish, or take all memory."""

import multiprocessing
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def result_apart(work: Callable[[], T], seconds: float) -> T | int | None:
    """Return the result of work in a process of its own; its exit status if it died, or None if it took too long."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(False)
    process = context.Process(target=lambda: theirs.send(work()))
    process.start()
    theirs.close()
    try:
        found: T | int | None = ours.recv() if ours.poll(seconds) else None
    except EOFError:
        process.join()
        found = process.exitcode
    process.kill()
    process.join()
    return found
