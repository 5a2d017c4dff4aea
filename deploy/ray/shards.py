"""Output format of a batch job: the content of a shard, its path, and the functions that read it.

A shard is one file, Parquet or safetensors, that holds each of its rows once, in order: the row's numbers, or the error
if it has none. Reading needs numpy, pyarrow and safetensors. Independent of Ray, the engine and the writing of shards
(`deploy.ray.batch_writers`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import safe_open

FileFormat = Literal["parquet", "safetensors"]
MANIFEST = "manifest.json"
SUMMARY_KEY = "lightwell"
"""The key of a shard's summary in the file's own metadata."""

NumpyArray = np.ndarray[Any, np.dtype[Any]]


class ShardError(ValueError):
    """A shard cannot be written or read; the message names it and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """Result of one row. With `error`, only `id` and `key` are set."""

    id: int
    """The row's number in the input."""
    key: str | None = None
    error: str | None = None
    num_tokens: int = 0
    tokens: list[str] | None = None
    """The tokens, or None if the route reports none, as for pooled embeddings."""
    token_ids: list[int] | None = None
    described: dict[str, Any] = field(default_factory=dict)
    """Further fields of the route's JSON: layers, heads, positions, axes; for a trace, per point."""
    tensors: Mapping[str, NumpyArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSummary:
    rows: int = 0
    errors: int = 0
    """The number of rows without an answer."""
    tokens: int = 0

    def __add__(self, other: "ShardSummary") -> "ShardSummary":
        return ShardSummary(
            rows=self.rows + other.rows, errors=self.errors + other.errors, tokens=self.tokens + other.tokens
        )


def shard_path(folder: Path, number: int, file_format: FileFormat) -> Path:
    return folder / f"shard-{number:06d}.{file_format}"


def read_summary(path: Path) -> ShardSummary:
    """Return the summary of a finished shard; reads only its header. Raises ShardError."""
    try:
        if path.suffix == ".parquet":
            told = pq.read_metadata(path).metadata[SUMMARY_KEY.encode()]
        else:
            with safe_open(path, "np") as file:
                told = file.metadata()[SUMMARY_KEY]
        return ShardSummary(**json.loads(told))
    except Exception as error:  # each library has errors of its own
        raise ShardError(
            f"{str(path)!r} is no shard of a batch job ({error}); delete it to have it made again"
        ) from error


def read_shards(folder: Path | str, *, partial: bool = False) -> Iterator[RowAnswer]:
    """Yield all rows of a job's output, in the order of the input, with a few megabytes in memory at a time.

    Raises ShardError for a folder without a manifest, and, unless `partial`, for a job that is not finished.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise ShardError(f"{str(folder)!r} holds no batch job: {error}") from None
    paths = [shard_path(folder, number, manifest["format"]) for number in range(manifest["num_shards"])]
    there = [path for path in paths if path.exists()]
    if len(there) < len(paths) and not partial:
        raise ShardError(
            f"{str(folder)!r} has {len(there)} of {len(paths)} shards: the job is not finished; run it again, or read "
            "with partial=True"
        )
    for path in there:
        yield from _read_parquet(path) if path.suffix == ".parquet" else _read_safetensors(path)


def _read_parquet(path: Path) -> Iterator[RowAnswer]:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            for row in table.to_batches(max_chunksize=16):
                yield from (_from_parquet(fields) for fields in _rows_of(row))


def _rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as Python values; vectors stay arrays."""
    names = [name for name in batch.schema.names if name != "embedding"]
    rows: list[dict[str, Any]] = batch.select(names).to_pylist()
    for i, fields in enumerate(rows):
        if "embedding" in batch.schema.names:
            vector = batch["embedding"][i]
            fields["embedding"] = np.asarray(vector.values, np.float32) if vector.is_valid else None
        yield fields


def _from_parquet(fields: dict[str, Any]) -> RowAnswer:
    tensors = {
        each["name"]: np.frombuffer(each["data"], each["dtype"]).reshape(each["shape"])
        for each in fields.pop("tensors", None) or ()
    }
    vector = fields.pop("embedding", None)
    if vector is not None:
        tensors["embedding"] = vector
    return RowAnswer(**{**fields, "described": json.loads(fields["described"])}, tensors=tensors)


def _read_safetensors(path: Path) -> Iterator[RowAnswer]:
    with safe_open(path, "np") as file:
        rows: list[dict[str, Any]] = json.loads(file.metadata()["rows"])
        names: dict[int, list[str]] = {}
        for full in file.keys():  # noqa: SIM118 (no dict)
            number, _, name = full.partition("/")
            names.setdefault(int(number), []).append(name)
        for fields in rows:
            tensors = {name: file.get_tensor(f"{fields['id']}/{name}") for name in names.get(fields["id"], ())}
            yield RowAnswer(**fields, tensors=tensors)
