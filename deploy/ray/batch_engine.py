"""One worker of a batch job: an engine in this process, kept full with the rows of a shard, and the shard they fill.

Rows enter the engine in order and are written in order, so that a shard's bytes do not depend on which row finishes
first. The number of rows held in between is bounded. Independent of Ray: `deploy.ray.batch` puts it into an actor.
"""

import asyncio
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.ray.batch_input import Row
from deploy.ray.batch_tasks import Planned, Planner, TaskName, context_of
from deploy.ray.batch_writers import open_shard
from deploy.ray.shards import FileFormat, RowAnswer, ShardSummary, read_summary, shard_path
from server.config.settings import Settings
from server.engine.engine import Engine
from server.engine.outputs import Array, RequestOutput
from server.generation.tasks import TaskResult
from server.http.errors import ApiError
from server.lifecycle.app import ModelFiles, load_model_files
from server.worker.model_fingerprint import Fingerprint

_ROWS_AHEAD = 4
"""Rows held per running row: they cannot be written while an earlier row is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job description for all workers. It is plain data, sent to each worker."""

    settings: Settings
    task: TaskName
    options: Mapping[str, Any]
    """Fields of the route's body, without the input."""
    file_format: FileFormat
    folder: str
    """The folder in which the shards are written, one that all machines can read."""
    model: Mapping[str, str]
    """The `portable_fingerprint` of the model's files."""


class BatchFailed(RuntimeError):
    """The job cannot continue; the message gives the reason in one line."""


def portable_fingerprint(files: Fingerprint) -> dict[str, str]:
    """Return a fingerprint that is the same on every machine that holds the same files: without the times and file
    numbers of large ones.
    """
    return {name: re.sub(r"^(\d+) \S+ \S+ ", r"\1 ", told) for name, told in files.items()}


@dataclass(slots=True)
class _Held:
    """A row between its reading and its writing."""

    row: Row
    planned: Planned | None = None
    answer: RowAnswer | None = None
    tensors: dict[str, Array] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return 0 if self.planned is None else self.planned.work.num_bytes


@dataclass(frozen=True, slots=True)
class _Coming:
    """Rows that are not in the engine yet."""

    rows: Iterator[Row]
    planner: Planner
    runner: asyncio.Runner

    def take(self) -> _Held | None:
        """Return the next row, with its request or the error of its input, or None at the end."""
        row = next(self.rows, None)
        if row is None:
            return None
        if row.text is None:
            return _Held(row, answer=_error(row, row.problem or "there is no text"))
        try:
            return _Held(row, self.runner.run(self.planner.plan(row.text)))
        except ApiError as error:
            return _Held(row, answer=_error(row, error.message))


class BatchEngine:
    """An engine and its rows. At most `max_held` rows and `max_bytes` of captured numbers wait to be written (a larger
    row waits as the only one).
    """

    def __init__(
        self, engine: Engine, planner: Planner, folder: Path, file_format: FileFormat, *, max_held: int, max_bytes: int
    ) -> None:
        self._engine, self._planner = engine, planner
        self._folder, self._file_format = folder, file_format
        self._max_held, self._max_bytes = max_held, max_bytes
        self._num_requests = 0

    @classmethod
    def load(cls, job: Job) -> "BatchEngine":
        """Load the engine. Raises BatchFailed when this machine's model is not the job's, ValueError when it cannot
        be loaded.
        """
        files = load_model_files(job.settings)
        _check_model(job, files)
        config = job.settings.engine_config(files.folder)
        engine = Engine.from_folder(config)
        return cls(
            engine,
            Planner(context_of(job.settings, files, engine.info), job.task, job.options),
            Path(job.folder),
            job.file_format,
            max_held=_ROWS_AHEAD * config.max_num_seqs,
            max_bytes=job.settings.max_capture_bytes,
        )

    def make_shard(self, number: int, rows: Iterable[Row]) -> ShardSummary:
        """Answer the rows and write the shard, unless it exists. Raises the exceptions of `Engine.step`."""
        path = shard_path(self._folder, number, self._file_format)
        if path.exists():  # made by an earlier worker that was lost before it returned
            return read_summary(path)
        writer = open_shard(path, width=self._planner.vector_width)
        try:
            with closing(self.answers(rows)) as answers:
                for answer in answers:
                    writer.add(answer)
            return writer.finish()
        finally:
            writer.discard()

    def answers(self, rows: Iterable[Row]) -> Generator[RowAnswer, None, None]:
        """Yield the answers in the order of the rows. Raises BatchFailed when memory runs out."""
        with asyncio.Runner() as runner:  # the routes' code that reads a text may wait for a thread
            running: dict[int, _Held] = {}
            try:
                yield from self._answers(_Coming(iter(rows), self._planner, runner), running)
            finally:
                self._forget(running)

    def _forget(self, running: Iterable[int]) -> None:
        """Abort requests that are not awaited any more, so that the next shard starts with an idle engine."""
        for uid in running:
            self._engine.abort(uid)
        while self._engine.has_work:
            self._engine.step()

    def _answers(self, coming: _Coming, running: dict[int, _Held]) -> Iterator[RowAnswer]:
        held: deque[_Held] = deque()  # in the order of the rows
        num_bytes = 0
        next_one = coming.take()
        while next_one is not None or held:
            # In order: the first of `held` is always in the engine or done, so that room does come.
            while next_one is not None and len(held) < self._max_held:
                if held and num_bytes + next_one.num_bytes > self._max_bytes:
                    break
                self._begin(next_one, running)
                held.append(next_one)
                num_bytes += next_one.num_bytes
                next_one = coming.take()
            if running:
                self._step(running)
            while held and held[0].answer is not None:
                done = held.popleft()
                num_bytes -= done.num_bytes
                assert done.answer is not None
                yield done.answer

    def _begin(self, held: _Held, running: dict[int, _Held]) -> None:
        if held.planned is None:
            return
        self._num_requests += 1
        try:
            self._engine.add_request(held.planned.request(self._num_requests))
        except ValueError as error:
            held.answer = _error(held.row, str(error))
        else:
            running[self._num_requests] = held

    def _step(self, running: dict[int, _Held]) -> None:
        if not self._engine.has_work:
            raise BatchFailed(f"the engine ended {len(running)} rows without an answer")
        for output in self._engine.step().outputs:
            held = running[output.uid]
            held.tensors.update(output.tensors)
            if output.finish_reason is not None:
                held.answer = _answer(running.pop(output.uid), output)
                held.tensors = {}


def _answer(held: _Held, output: RequestOutput) -> RowAnswer:
    """Return a row's answer. Raises BatchFailed if it had no memory: its answer would depend on the machine."""
    row, planned = held.row, held.planned
    assert planned is not None
    if output.finish_reason == "memory":
        raise BatchFailed(
            f"row {row.id} found no memory ({output.error}): a smaller --max-capture-bytes, a smaller "
            "--max-response-bytes (which makes large rows errors) or fewer workers on a machine help"
        )
    if output.finish_reason != "done":
        return _error(row, output.error or f"the engine ended it: {output.finish_reason}")
    answered = planned.describe(TaskResult(held.tensors))
    return RowAnswer(
        id=row.id,
        key=row.key,
        num_tokens=planned.work.prompt.num_tokens,
        tokens=answered.tokens,
        token_ids=answered.token_ids,
        described=answered.described,
        tensors=answered.tensors,
    )


def _error(row: Row, message: str) -> RowAnswer:
    return RowAnswer(id=row.id, key=row.key, error=message)


def _check_model(job: Job, files: ModelFiles) -> None:
    found = portable_fingerprint(files.fingerprint)
    if found != dict(job.model):
        names = sorted(name for name in found.keys() | job.model.keys() if found.get(name) != job.model.get(name))
        raise BatchFailed(f"{files.folder}: this machine's model differs from the one the job began with in {names}")
