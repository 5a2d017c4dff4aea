"""Atomic writing of a batch job's shards to disk, as Parquet or safetensors.

A shard is written under a temporary name and renamed when it is complete, so that a file with the final name is always
a finished shard, even if it is made twice. Independent of Ray and the engine.
"""

import json
import os
import shutil
import struct
import uuid
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.ray.shards import SUMMARY_KEY, RowAnswer, ShardError, ShardSummary

_FLUSH_BYTES = 8 << 20
"""Approximate bytes of one row group, which a reader holds in memory."""
_MAX_HEADER_BYTES = 100_000_000
"""Most bytes of a header: the safetensors library opens no file with a longer one."""
_DTYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int32": "I32"}


class ShardWriter(Protocol):
    """Takes rows in order. `finish` makes the shard appear; `discard`, also after it, leaves nothing unfinished."""

    def add(self, answer: RowAnswer) -> None: ...
    def finish(self) -> ShardSummary: ...
    def discard(self) -> None: ...


def open_shard(path: Path, *, width: int | None) -> ShardWriter:
    """Return a writer of the format of the path's suffix.

    With `width`, every row is one float32 vector of this length: Parquet then has a column `embedding` of lists.
    """
    return _Parquet(path, width) if path.suffix == ".parquet" else _Safetensors(path)


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of killed writers. No other process may write to the folder."""
    for path in folder.glob(".shard-*.tmp*"):
        path.unlink()


class _Counts:
    """The counts that a summary is made of."""

    def __init__(self) -> None:
        self.rows = self.errors = self.tokens = 0

    def add(self, answer: RowAnswer) -> None:
        self.rows += 1
        self.errors += answer.error is not None
        self.tokens += answer.num_tokens

    def summary(self) -> ShardSummary:
        return ShardSummary(rows=self.rows, errors=self.errors, tokens=self.tokens)

    def as_json(self) -> str:
        return json.dumps({"rows": self.rows, "errors": self.errors, "tokens": self.tokens})


def _temporary(path: Path) -> Path:
    """Return a path next to the final name, so that a rename is one step; no other writer has it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _publish(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())  # or a machine that stops now could leave an empty file under the final name
    temporary.replace(path)


# ---- Parquet

_TENSOR = pa.struct(
    [("name", pa.string()), ("shape", pa.list_(pa.int32())), ("dtype", pa.string()), ("data", pa.large_binary())]
)


def _schema(width: int | None) -> pa.Schema:
    numbers = ("tensors", pa.list_(_TENSOR)) if width is None else ("embedding", pa.list_(pa.float32(), width))
    return pa.schema(
        [
            ("id", pa.int64()),
            ("key", pa.string()),
            ("error", pa.string()),
            ("num_tokens", pa.int32()),
            ("tokens", pa.list_(pa.string())),
            ("token_ids", pa.list_(pa.int32())),
            ("described", pa.string()),
            numbers,
        ]
    )


class _Parquet:
    """Writes row groups of some megabytes each."""

    def __init__(self, path: Path, width: int | None) -> None:
        self._path, self._temporary, self._width = path, _temporary(path), width
        self._schema = _schema(width)
        self._writer = pq.ParquetWriter(self._temporary, self._schema, use_dictionary=False, write_statistics=["id"])
        self._waiting: list[dict[str, Any]] = []
        self._waiting_bytes = 0
        self._counts = _Counts()

    def add(self, answer: RowAnswer) -> None:
        self._counts.add(answer)
        self._waiting.append(self._fields(answer))
        self._waiting_bytes += sum(value.nbytes for value in answer.tensors.values())
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def _fields(self, answer: RowAnswer) -> dict[str, Any]:
        fields: dict[str, Any] = {name: getattr(answer, name) for name in self._schema.names[:6]}
        fields["described"] = json.dumps(answer.described)
        if self._width is not None:
            fields["embedding"] = None if answer.error is not None else answer.tensors["embedding"]
            return fields
        fields["tensors"] = [
            {
                "name": name,
                "shape": value.shape,
                "dtype": value.dtype.name,
                "data": np.ascontiguousarray(value).tobytes(),
            }
            for name, value in answer.tensors.items()
        ]
        return fields

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_pylist(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> ShardSummary:
        self._flush()
        self._writer.add_key_value_metadata({SUMMARY_KEY: self._counts.as_json()})
        self._writer.close()
        _publish(self._temporary, self._path)
        return self._counts.summary()

    def discard(self) -> None:
        self._writer.close()
        self._temporary.unlink(missing_ok=True)


# ---- safetensors


class _Safetensors:
    """Writes the numbers to a separate file first. At the end the header, which lists all arrays, is written before
    them.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._temporary = path, _temporary(path)
        self._data = self._temporary.with_name(f"{self._temporary.name}.data")
        self._file = self._data.open("w+b")
        self._tensors: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self._position = 0
        self._counts = _Counts()

    def add(self, answer: RowAnswer) -> None:
        self._counts.add(answer)
        told = {name: getattr(answer, name) for name in ("id", "key", "error", "num_tokens", "tokens", "token_ids")}
        self._rows.append({**told, "described": answer.described})
        for name, value in answer.tensors.items():
            end = self._position + value.nbytes
            self._tensors[f"{answer.id}/{name}"] = {
                "dtype": _DTYPES[value.dtype.name],
                "shape": value.shape,
                "data_offsets": [self._position, end],
            }
            self._file.write(np.ascontiguousarray(value).data)
            self._position = end

    def finish(self) -> ShardSummary:
        metadata = {SUMMARY_KEY: self._counts.as_json(), "rows": json.dumps(self._rows)}
        header = json.dumps({"__metadata__": metadata, **self._tensors}).encode()
        header += b" " * (-len(header) % 8)
        if len(header) > _MAX_HEADER_BYTES:
            raise ShardError(
                f"{self._path.name} would have a header of {len(header)} bytes, and safetensors files have at most "
                f"{_MAX_HEADER_BYTES}: fewer --rows-per-shard than {self._counts.rows}, or parquet, are accepted"
            )
        self._file.seek(0)
        with self._temporary.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            shutil.copyfileobj(self._file, file, 1 << 20)
        _publish(self._temporary, self._path)
        self.discard()
        return self._counts.summary()

    def discard(self) -> None:
        self._file.close()
        self._data.unlink(missing_ok=True)
        self._temporary.unlink(missing_ok=True)
