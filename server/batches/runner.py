"""Runner of batches: checks each input, answers its lines by the routes of this process, and writes the output files.

A batch is a task, which continues after a restart from the state in its record. The answers are collected in one file,
in the order of the input, and divided into output and errors at the end. Batches of one owner run one after another.
"""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from io import BufferedWriter
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import orjson
from starlette.types import ASGIApp

from lightwell.server.batches.folder import MAX_FILES, BatchFolder, disk_full, new_id
from lightwell.server.batches.job import Job, Progress, Reply, exchange_with
from lightwell.server.batches.lines import (
    Answered,
    answer_line,
    checked,
    custom_id_of,
    find_answers,
    is_failure,
    parse,
    read_lines,
)
from lightwell.server.batches.records import Batch, LineError, Status, StoredFile
from lightwell.server.config.settings import Settings
from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.errors import Conflict, InsufficientStorage, RateLimited, WorkerLost
from lightwell.server.http.exchange import Exchange

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

WINDOW = 24 * 3600
"""Seconds until an unfinished batch expires."""
MAX_BATCHES = 16
"""Most unfinished batches of an owner."""
OWNER_IN_SCOPE = "lightwell.batch_owner"
"""Key of the owner of a batch in the ASGI scope of its rows."""
_MAX_ERRORS = 100
_MAX_CUSTOM_ID = 512
_MAX_LOSSES = 5
"""Times that a row may be sent again after the worker that ran it ended: the row may be the reason."""
_LOST = ("worker_lost", "worker_hung", "no_memory")
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_BROKEN_OFF = WorkerLost("The answer broke off.", code="worker_lost")
_LONGEST_PAUSE = 5.0
_DISK_PAUSE = 5.0
"""Seconds between two tries to write to a full disk."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SWEEP_INTERVAL = 60.0
_UNFINISHED: dict[str, tuple[Status, str, str]] = {
    "cancelling": ("cancelled", "batch_cancelled", "The batch was cancelled before this request was answered."),
    "finalizing": ("expired", "batch_expired", "The batch expired before this request was answered."),
}
"""The end of a batch with lines that are not answered: its last state, and the error of these lines."""


class BatchRunner:
    """The batches of a server. All methods run in the event loop of the routes."""

    def __init__(self, folder: BatchFolder, num_rows: int) -> None:
        """num_rows: the most rows that are given to the engine at a time."""
        self.folder = folder
        self.app: ASGIApp | None = None
        """The routes. The application sets it."""
        self._num_rows = num_rows
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._num_running = 0

    @classmethod
    def of(cls, settings: Settings, num_workers: int) -> "BatchRunner | None":
        """Return the runner of a server, or None without --batch-dir. Raises SettingsError."""
        if settings.batch_dir is None:
            return None
        return cls(BatchFolder(settings), 4 * max(1, num_workers) * settings.max_num_seqs)  # 0: none is loaded yet

    @contextlib.asynccontextmanager
    async def around(
        self, lifespan: Callable[[object], AbstractAsyncContextManager[None]], app: object
    ) -> AsyncIterator[None]:
        """Run the lifespan of the application, and the unfinished batches meanwhile."""
        async with lifespan(app):
            for batch in sorted(self.folder.batches.values(), key=lambda each: each.order):
                if not batch.is_over:
                    self._start(batch)
            sweep = asyncio.create_task(self._sweep(), name="batch-sweep")
            try:
                yield
            finally:
                tasks = [sweep, *self._tasks.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self.folder.close()

    # ---- for the routes

    async def create(self, owner: str, file_id: str, **fields: Any) -> Batch:
        """Begin a batch over an owner's file. Raises NotFound, RateLimited or InsufficientStorage."""
        file = self.folder.file(owner, file_id)
        own = [batch for batch in self.folder.batches.values() if batch.owner == owner]
        unfinished = sum(not batch.is_over for batch in own)
        if unfinished >= MAX_BATCHES:
            raise RateLimited(
                f"This key has {unfinished} unfinished batches; at most {MAX_BATCHES} are accepted.",
                code="too_many_batches",
                retry_after=60,
            )
        self.folder.check_disk(file.bytes)
        now = time.time_ns()
        batch = Batch(
            id=new_id("batch_"),
            owner=owner,
            order=now,
            input_file_id=file.id,
            expires_at=now // 10**9 + WINDOW,
            **fields,
        )
        self.folder.batches[batch.id] = batch  # at once: the file is in use from now on
        try:
            await self.folder.save(batch)
        except OSError as error:
            del self.folder.batches[batch.id]
            raise disk_full(error.strerror or str(error)) from error
        self._start(batch)
        if len(own) >= MAX_FILES:
            await self.folder.delete(min((each for each in own if each.is_over), key=lambda each: each.order).id)
        return batch

    async def cancel(self, batch: Batch) -> None:
        """End a batch early; its answers so far are kept. Raises Conflict for a batch that has ended."""
        task = self._tasks.get(batch.id)
        if batch.status in ("validating", "in_progress") and task is not None:
            task.cancel()
            await asyncio.wait([task])
            if batch.status in ("validating", "in_progress"):  # else its end was about to be written
                self._enter(batch, "cancelling")
                await self._save(batch)
            self._start(batch)
        if "cancelling" not in batch.times:
            raise Conflict(
                f"The batch is {batch.status}; a batch that is validating or in_progress can be cancelled.",
                param="batch_id",
                code="batch_not_cancellable",
            )

    # ---- the life of a batch

    def _start(self, batch: Batch) -> None:
        task = self._tasks[batch.id] = asyncio.create_task(self._run(batch), name=batch.id)
        task.add_done_callback(lambda ended: self._forget(batch, ended))

    def _forget(self, batch: Batch, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(batch.id) is task:
            del self._tasks[batch.id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("batch %s stops until the next start", batch.id, exc_info=error)

    async def _run(self, batch: Batch) -> None:
        try:
            if batch.status == "validating":
                batch.num_lines, batch.errors = await self.folder.do(self._problems, batch)
                self._enter(batch, "failed" if batch.errors else "in_progress")
                await self._save(batch)
            if batch.status == "in_progress":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(batch.expires_at - time.time()), self._turns[batch.owner]:
                        await self._answer_lines(batch)
                self._enter(batch, "finalizing")
                await self._save(batch)
            if not batch.is_over:
                await self._finish(batch)
        except OSError as error:  # a file of the folder was removed
            logger.exception("batch %s failed", batch.id)
            batch.errors = [LineError("file_unreadable", f"A file of the batch is lost: {error.strerror}.")]
            self._enter(batch, "failed")
            await self._save(batch)

    def _problems(self, batch: Batch) -> tuple[int, list[LineError]]:
        """Return the number of lines of an input, and its first problems."""
        limit, number = self.folder.settings.max_batch_lines, 0
        errors: list[LineError] = []
        known: set[str] = set()
        with self.folder.open(batch.input_file_id) as source:
            for number, line in enumerate(read_lines(source), 1):
                if number > limit:
                    message = f"The file has more than {limit} lines; at most {limit} are accepted (--max-batch-lines)."
                    return 0, [LineError("too_many_lines", message)]
                if (problem := _problem(line, batch.endpoint, known)) is not None:
                    problem.line = number
                    errors.append(problem)
                if len(errors) == _MAX_ERRORS:
                    break
        if not number:
            errors.append(LineError("empty_file", "The file has no lines; a request on each line is accepted."))
        return (0 if errors else number), errors

    async def _answer_lines(self, batch: Batch) -> None:
        """Answer the lines that have no answer yet."""
        folder, progress = self.folder, Progress(batch.num_lines)
        with folder.create(f"{batch.id}.data", 0) as output, folder.open(batch.input_file_id) as source:
            found = await folder.do(self._answered, batch)
            progress.num_done, progress.num_errors, end = found[:3]
            output.truncate(end)

            async def send(path: str, body: bytes) -> Reply:
                return await self._send(batch.owner, path, body)

            async def write(answers: bytes) -> None:
                nonlocal end
                await self._with_room(_write_at, output.fileno(), end, answers)
                end += len(answers)

            def report(progress: Progress) -> None:
                batch.num_done, batch.num_failed = progress.num_done, progress.num_errors

            report(progress)
            self._num_running += 1
            try:
                rest = islice(read_lines(source), progress.num_done, None)
                job = Job(send, write, progress, report)
                await job.run(rest, lambda: max(1, self._num_rows // self._num_running))
            finally:
                self._num_running -= 1
            await folder.do(os.fsync, output.fileno())

    def _answered(self, batch: Batch) -> Answered:
        with self.folder.open(batch.id) as answers, self.folder.open(batch.input_file_id) as source:
            return find_answers(answers, read_lines(source))

    async def _send(self, owner: str, path: str, body: bytes) -> Reply:
        """Return a route's answer to a row, after waiting while the key's quota or the server has no room for it."""
        num_losses = 0
        while True:
            try:
                reply = await exchange_with(self._begin, path, body, **{OWNER_IN_SCOPE: owner})
            except ConnectionError:  # the answer broke off
                reply = Reply(HTTPStatus.SERVICE_UNAVAILABLE, {}, error_json(_BROKEN_OFF))
            if reply.status not in _BUSY:
                return reply
            error = orjson.loads(reply.content).get("error")
            num_losses += isinstance(error, dict) and error.get("code") in _LOST
            if num_losses > _MAX_LOSSES:
                return reply
            await asyncio.sleep(min(_LONGEST_PAUSE, float(reply.headers.get(b"retry-after", b"1"))))

    async def _begin(self, exchange: Exchange) -> None:
        assert self.app is not None, "the application sets it"
        await exchange.begin(self.app)

    async def _finish(self, batch: Batch) -> None:
        """Divide the answers into the output and the errors, and end the batch."""
        ids = batch.output_file_id or new_id("file-"), batch.error_file_id or new_id("file-")
        batch.output_file_id, batch.error_file_id = ids
        await self._save(batch)  # after an interruption the same files are written again
        end, code, message = _UNFINISHED[batch.status]
        sizes = await self._with_room(self._divide, batch, ids, code, message)
        now = time.time_ns()
        for file_id, size, kind in zip(ids, sizes, ("output", "error"), strict=True):
            if size:
                file = StoredFile(
                    id=file_id,
                    owner=batch.owner,
                    order=now,
                    bytes=size,
                    expires_at=now // 10**9 + batch.output_seconds,
                    filename=f"{batch.id}_{kind}.jsonl",
                    purpose="batch_output",
                )
                await self._save(file)
        batch.output_file_id, batch.error_file_id = (
            file_id if size else None for file_id, size in zip(ids, sizes, strict=True)
        )
        is_complete = batch.status == "finalizing" and batch.num_done == batch.num_lines
        self._enter(batch, "completed" if is_complete else end)
        await self._save(batch)
        empty = [file_id for file_id, size in zip(ids, sizes, strict=True) if not size]
        await self.folder.do(self.folder.unlink, *(f"{each}.data" for each in (batch.id, *empty)))

    def _divide(self, batch: Batch, ids: tuple[str, str], code: str, message: str) -> tuple[int, int]:
        """Write each answer to the output or to the errors, and an error for each line without an answer. Returns the
        sizes of both files in bytes. Raises OSError, after removing both.
        """
        folder = self.folder
        folder.create(f"{batch.id}.data", 0).close()  # a batch that was cancelled early has none
        found = self._answered(batch)
        batch.num_done, batch.num_failed = found.num_lines, found.num_failures
        folder.check_disk(found.size)
        names = [f"{each}.data" for each in ids]
        try:
            with contextlib.ExitStack() as opened:
                answers = opened.enter_context(folder.open(batch.id))
                lines = read_lines(opened.enter_context(folder.open(batch.input_file_id)))
                targets = [opened.enter_context(BufferedWriter(folder.create(name), 1 << 20)) for name in names]
                for answer, _ in zip(islice(answers, found.num_lines), lines, strict=False):
                    targets[is_failure(answer)].write(answer)
                if batch.num_lines:  # else the input was not checked yet
                    targets[1].writelines(answer_line(custom_id_of(line), None, code, message) for line in lines)
                for target in targets:
                    target.flush()
                    os.fsync(target.fileno())
                return targets[0].tell(), targets[1].tell()
        except OSError:
            folder.unlink(*names)
            raise

    # ---- records

    def _enter(self, batch: Batch, status: Status) -> None:
        batch.status = status
        batch.times[status] = int(time.time())

    async def _save(self, record: Batch | StoredFile) -> None:
        """Write a record; while the disk is full, wait."""
        while True:
            try:
                await self.folder.save(record)
                return
            except OSError as error:
                await self._wait_for_room(error)

    async def _with_room(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function that writes. While the disk is full, wait and call it again."""
        while True:
            try:
                self.folder.check_disk(0)
                return await self.folder.do(write, *args, **kwargs)
            except (OSError, InsufficientStorage) as error:
                await self._wait_for_room(error)

    async def _wait_for_room(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno not in _FULL:
            raise error
        logger.warning("batches wait, as their folder is full: %s", error)
        await asyncio.sleep(_DISK_PAUSE)

    async def _sweep(self) -> None:
        while True:
            try:
                await self.folder.sweep()
            except OSError as error:
                logger.warning("expired files of --batch-dir cannot be removed: %s", error)
            await asyncio.sleep(_SWEEP_INTERVAL)


def _problem(line: bytes, endpoint: str, known: set[str]) -> LineError | None:
    """Return the reason why a line cannot be run, or None. known: the custom ids of the lines before."""
    try:
        request = parse(line)
    except (ValueError, TypeError) as error:
        return LineError("invalid_json_line", f"{error}.")
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _MAX_CUSTOM_ID:
        message = f"custom_id: {custom_id!r:.100}; a text of 1 to {_MAX_CUSTOM_ID} characters is accepted."
        return LineError("missing_required_parameter", message, param="custom_id")
    if custom_id in known:
        message = f"custom_id: {custom_id!r:.100} is in an earlier line; each is accepted once."
        return LineError("duplicate_custom_id", message, param="custom_id")
    known.add(custom_id)
    try:
        path, _ = checked(request)
    except ValueError as error:
        return LineError("invalid_request", f"{error}.", param=str(error).partition(":")[0])
    if path != endpoint:
        message = f"url: {path!r} is not the endpoint of the batch; {endpoint!r} is accepted."
        return LineError("invalid_url", message, param="url")
    return None


def _write_at(file: int, offset: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        num_written = os.pwrite(file, rest, offset)
        offset, rest = offset + num_written, rest[num_written:]
