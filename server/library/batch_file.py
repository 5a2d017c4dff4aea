"""`lightwell batch`: answers a batch file with a model in this process, and continues a job that ended early."""

import asyncio
import contextlib
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from lightwell.server.batches.job import Job, Progress, Reply, exchange_with
from lightwell.server.batches.lines import BatchError, find_answers, read_lines
from lightwell.server.config.settings import Settings
from lightwell.server.lifecycle.in_process import Application

_PAUSE = 0.05
"""Seconds until a request is sent again that found no room."""


def run_file(settings: Settings, source: Path, target: Path, report: Callable[[Progress], None]) -> Progress:
    """Load the model, and answer the requests that have no answer yet. `report` is called after each write.

    Raises BatchError for files that cannot be used, and for an output of another input, and ValueErrors of one line
    for a model that cannot be served.
    """
    with contextlib.ExitStack() as until_end:
        with _named_errors(source):
            if not source.is_file():
                raise BatchError(f"{source}: a regular file is accepted, because it is read twice")
            lines = until_end.enter_context(source.open("rb"))
            progress = Progress(sum(1 for _ in read_lines(lines)))
        with _named_errors(target):
            output = until_end.enter_context(target.open("ab+"))
            if source.samefile(target):
                raise BatchError(f"{target} is the input; another file is accepted as the output")
            try:
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BatchError(f"{target}: another job is writing to this file") from None
            lines.seek(0)
            progress.num_done = _continue(output, read_lines(lines), source)
        application = until_end.enter_context(contextlib.closing(Application(settings)))
        report(progress)

        async def send(path: str, body: bytes) -> Reply:
            while (reply := await exchange_with(application.begin, path, body)).status == HTTPStatus.TOO_MANY_REQUESTS:
                await asyncio.sleep(_PAUSE)  # other lines of this job are in its way
            if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:
                reason = reply.content[:200].decode(errors="replace")
                raise BatchError(f"the engine has ended: {reason}")
            return reply

        async def write(answers: bytes) -> None:
            output.write(answers)
            output.flush()

        with _named_errors(target):
            lines.seek(0)
            rest = itertools.islice(read_lines(lines), progress.num_done, None)
            application.result(Job(send, write, progress, report).run(rest, lambda: 4 * settings.max_num_seqs))
    return progress


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BatchError(f"{error.filename or path}: {error.strerror or error}") from error


def _continue(output: BinaryIO, asked: Iterator[bytes], source: Path) -> int:
    """Return the number of answers in the output, after removing one that an interrupted write left incomplete. Raises
    BatchError for an output that holds anything but the answers of this input.
    """
    output.seek(0)
    found = find_answers(output, asked)
    if found.is_foreign:
        raise BatchError(
            f"{output.name}: line {found.num_lines + 1} is not the answer to that line of {source}; an output of the "
            "same input, or a new file, is accepted"
        )
    output.truncate(found.size)
    output.seek(0, os.SEEK_END)
    return found.num_lines
