"""One worker of a batch job: an engine in this process, kept full with the rows of a shard, and the shard they fill.

Rows enter the engine in order and are written in order, so that a shard's bytes do not depend on who finished first;
what is held between is bounded. Knows no Ray: `deploy.ray.batch` puts it into an actor.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.ray.batch_input import Row
from deploy.ray.batch_tasks import ApiError, Planned, Planner, TaskName
from deploy.ray.batch_writers import open_shard
from deploy.ray.shards import FileFormat, RowAnswer, ShardSummary, read_summary, shard_path
from server.app import ModelFiles, load_model_files
from server.engine.engine import Engine
from server.engine.outputs import Array, RequestOutput
from server.model_fingerprint import Fingerprint
from server.routes.tasks import Result
from server.settings import Settings

_ROWS_AHEAD = 4
"""Rows that are held for each that may run: so many are not written yet because one before them takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every worker of a job does. Plain data, sent to each."""

    settings: Settings
    task: TaskName
    options: Mapping[str, Any]
    """Fields of the route's body, without the input."""
    file_format: FileFormat
    folder: str
    """Where the shards are written: one that all machines see."""
    model: Mapping[str, str]
    """`portable_fingerprint` of the model's files."""


class BatchFailed(RuntimeError):
    """The job cannot go on; the message is one line that says why."""


def portable_fingerprint(files: Fingerprint) -> dict[str, str]:
    """The same on every machine that holds the same files: of large ones without times and file numbers."""
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


class BatchEngine:
    """Raises BatchFailed when this machine's model is another than the job's, ValueError when it cannot be loaded."""

    def __init__(self, job: Job) -> None:
        self._job = job
        files = load_model_files(job.settings)
        _check_model(job, files)
        config = job.settings.engine_config(files.folder)
        self._engine = Engine.from_folder(config)
        self._planner = Planner(job.settings, files, job.task, job.options, self._engine.info)
        self._max_held = _ROWS_AHEAD * config.max_num_seqs
        self._max_bytes = job.settings.max_capture_bytes
        self._num_requests = 0

    def make_shard(self, number: int, rows: Iterable[Row]) -> ShardSummary:
        """Answer the rows and write the shard, unless it is there already. Raises what `Engine.step` raises."""
        path = shard_path(Path(self._job.folder), number, self._job.file_format)
        if path.exists():  # made by whoever ran this task before and was lost before it could say so
            return read_summary(path)
        writer = open_shard(path, width=self._planner.vector_width)
        try:
            for answer in self.answers(rows):
                writer.add(answer)
            return writer.finish()
        finally:
            writer.discard()

    def answers(self, rows: Iterable[Row]) -> Iterator[RowAnswer]:
        """The answers in the order of the rows. Raises BatchFailed when memory runs out."""
        coming = iter(rows)
        held: deque[_Held] = deque()  # in the order of the rows
        running: dict[int, _Held] = {}
        num_bytes = 0
        next_one = self._read(coming)
        while next_one is not None or held:
            # In order: the first of `held` is always in the engine or done, so that room does come.
            while next_one is not None and len(held) < self._max_held:
                if held and num_bytes + next_one.num_bytes > self._max_bytes:
                    break
                self._begin(next_one, running)
                held.append(next_one)
                num_bytes += next_one.num_bytes
                next_one = self._read(coming)
            if running:
                self._step(running)
            while held and held[0].answer is not None:
                done = held.popleft()
                num_bytes -= done.num_bytes
                assert done.answer is not None
                yield done.answer

    def _read(self, rows: Iterator[Row]) -> _Held | None:
        """The next row, with what it asks or why it asks nothing; None at the end."""
        row = next(rows, None)
        if row is None:
            return None
        held = _Held(row)
        if row.text is None:
            held.answer = _error(row, row.problem or "there is no text")
            return held
        try:
            held.planned = self._planner.plan(row.text)
        except ApiError as error:
            held.answer = _error(row, error.message)
        return held

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
    """Raises BatchFailed where a row had no memory: its answer would depend on the machine."""
    row, planned = held.row, held.planned
    assert planned is not None
    if output.finish_reason == "memory":
        raise BatchFailed(
            f"row {row.id} found no memory ({output.error}): a smaller --max-capture-bytes, a smaller "
            "--max-response-bytes (which makes large rows errors) or fewer workers on a machine help"
        )
    if output.finish_reason != "done":
        return _error(row, output.error or f"the engine ended it: {output.finish_reason}")
    answered = planned.describe(Result(held.tensors))
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
