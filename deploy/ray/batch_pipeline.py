"""The Ray part of a batch job: scans of the files, then tasks that read, and actors that answer and write.

Texts and counts go through Ray's object store. Answers do not: each engine writes its shard's file. Independent of the
command line and the manifest.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from deploy.ray.batch_engine import BatchEngine, BatchFailed, Job
from deploy.ray.batch_input import Columns, FileScan, InputError, Part, Piece, Row, read_part, scan
from deploy.ray.shards import ShardError, ShardSummary

_MAX_BLOCKS = 10_000
"""Most blocks of the list of parts: one task reads several parts if there are more."""
_READS_AHEAD = 2
"""Reading tasks for each worker."""
_BLOCK_BYTES = 1
"""Fewer bytes than any row, so that Ray makes each row a block. One actor answers a whole block; with Ray's default of
128 MiB all shards of a Parquet row group would be one block.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Number of actors, and the resources that Ray reserves for each."""

    number: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A job and its progress."""

    job: Job
    columns: Columns
    parts: list[Part]
    done: dict[int, ShardSummary]
    """Summaries of the finished shards, by their numbers."""

    @property
    def num_rows(self) -> int:
        return sum(part.piece.num_rows for part in self.parts)

    @property
    def missing(self) -> list[tuple[Part, list[int]]]:
        """Return the parts that are not done, with the numbers of their missing shards."""
        each = ((part, [number for number in part.shard_sizes if number not in self.done]) for part in self.parts)
        return [(part, numbers) for part, numbers in each if numbers]


@contextmanager
def cluster(address: str | None, object_store_memory: int | None) -> Iterator[None]:
    """Connect to Ray for the duration of a `with`: to the cluster at an address, or to a new local one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:  # Ray's word for: listen on the loopback interface, on any system
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    if address:
        ray.init(address)
    else:
        memory = object_store_memory
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=memory)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False  # the job's own counts rows
        context.print_on_execution_start = False
        context.target_max_block_size = _BLOCK_BYTES
        yield
    finally:
        ray.shutdown()


def scan_all(files: list[Path], rows_per_shard: int, columns: Columns) -> list[FileScan]:
    """Scan the files in parallel, on the cluster. Raises InputError."""
    import ray

    task = ray.remote(num_cpus=0.5)(_try_scan)
    found: list[FileScan | str] = ray.get([task.remote(path, rows_per_shard, columns) for path in files])
    problem = next((each for each in found if isinstance(each, str)), None)
    if problem is not None:
        raise InputError(problem)
    return [each for each in found if isinstance(each, FileScan)]


def _try_scan(path: Path, rows_per_shard: int, columns: Columns) -> FileScan | str:
    """Return the scan, or the error as text: Ray would report an exception with its own stack."""
    try:
        return scan(path, rows_per_shard, columns)
    except InputError as error:
        return str(error)


def made_shards(plan: Plan, workers: Workers) -> Iterator[ShardSummary]:
    """Yield each shard when it is finished. Raises BatchFailed with a worker's exception."""
    import ray

    missing = plan.missing
    if not missing:
        return
    items = [{"part": _as_json(part), "shards": numbers} for part, numbers in missing]
    made = (
        ray.data.from_items(items, override_num_blocks=min(len(items), _MAX_BLOCKS))
        .flat_map(
            _Reader(plan.columns),
            num_cpus=0,  # or readers would wait for the processors that the workers have
            compute=ray.data.TaskPoolStrategy(_READS_AHEAD * workers.number),
        )
        .map_batches(
            _Worker,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=workers.number, max_tasks_in_flight_per_actor=2),
            fn_constructor_args=(plan.job,),
            num_cpus=workers.cpus,
            num_gpus=workers.gpus,
        )
    )
    try:
        for row in made.iter_rows():
            if row["failure"]:
                raise BatchFailed(row["failure"])
            yield ShardSummary(rows=row["rows"], errors=row["errors"], tokens=row["tokens"])
    except ray.exceptions.RayError as error:
        raise BatchFailed(f"Ray: {error}") from error


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a part; one row of its output is one shard, and a block (`_BLOCK_BYTES`)."""

    columns: Columns

    def __call__(self, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        part = _part_of(item["part"])
        for number, rows in read_part(part, frozenset(item["shards"]), self.columns):
            yield {
                "shard": number,
                "first_row": rows[0].id,
                "texts": [row.text for row in rows],
                "problems": [row.problem for row in rows],
                "keys": [row.key for row in rows],
            }


class _Worker:
    """The actor: it holds an engine for as long as the job runs."""

    def __init__(self, job: Job) -> None:
        self._engine = BatchEngine.load(job)

    def __call__(self, batch: pa.Table) -> dict[str, list[Any]]:
        (item,) = batch.to_pylist()
        try:
            made = self._engine.make_shard(item["shard"], _rows(item))
        except (BatchFailed, ShardError) as error:
            return {"failure": [str(error)], "rows": [0], "errors": [0], "tokens": [0]}
        return {"failure": [""], "rows": [made.rows], "errors": [made.errors], "tokens": [made.tokens]}


def _rows(item: Mapping[str, Any]) -> Iterator[Row]:
    each = zip(item["texts"], item["problems"], item["keys"], strict=True)
    for number, (text, problem, key) in enumerate(each, item["first_row"]):
        yield Row(id=number, text=text, problem=problem, key=key)


def _as_json(part: Part) -> str:
    """Return the part as JSON: one column of text is the same for every shape that Arrow could guess."""
    return json.dumps(asdict(part))


def _part_of(text: str) -> Part:
    fields = json.loads(text)
    return Part(**{**fields, "piece": Piece(**fields["piece"])})
