"""Atomic writing of a batch job's shards to disk, as Parquet or safetensors.

A shard is written under a temporary name and renamed when it is complete, so that a file with the final name is always
a finished shard, even if it is made twice. Independent of Ray and the engine.
"""

import json
import os
import shutil
import struct
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.ray.shards import SUMMARY_KEY, NumpyArray, RowAnswer, ShardError, ShardSummary

_FLUSH_BYTES = 8 << 20
"""Approximate bytes of one row group, which a reader holds in memory."""
_MAX_HEADER_BYTES = 100_000_000
"""Most bytes of a header: the safetensors library opens no file with a longer one."""
_DTYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int32": "I32"}


_FIELDS = ("id", "key", "error", "num_tokens", "tokens", "token_ids")
"""The parts of an answer that are stored as they are."""


class ShardWriter:
    """Takes rows in order. `finish` makes the shard appear; `discard`, also after it, leaves nothing unfinished."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Next to the final name, so that a rename is one step; no other writer has it.
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        self._summary = ShardSummary()

    def add(self, answer: RowAnswer) -> None:
        self._summary += ShardSummary(rows=1, errors=int(answer.error is not None), tokens=answer.num_tokens)
        self._write({name: getattr(answer, name) for name in _FIELDS}, answer)

    def finish(self) -> ShardSummary:
        self._close(json.dumps(asdict(self._summary)))
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())  # or a machine that stops now could leave an empty file under the final name
        self._temporary.replace(self._path)
        self.discard()
        return self._summary

    def discard(self) -> None:
        self._temporary.unlink(missing_ok=True)

    def _write(self, fields: dict[str, Any], answer: RowAnswer) -> None:
        raise NotImplementedError

    def _close(self, summary: str) -> None:
        """Complete the temporary file."""
        raise NotImplementedError


def open_shard(path: Path, *, width: int | None) -> ShardWriter:
    """Return a writer of the format of the path's suffix.

    With `width`, every row is one float32 vector of this length: Parquet then has a column `embedding` of lists.
    """
    return _Parquet(path, width) if path.suffix == ".parquet" else _Safetensors(path)


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of killed writers. No other process may write to the folder."""
    for path in folder.glob(".shard-*.tmp*"):
        path.unlink()


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


class _Parquet(ShardWriter):
    """Writes row groups of some megabytes each."""

    def __init__(self, path: Path, width: int | None) -> None:
        super().__init__(path)
        self._has_vectors, self._schema = width is not None, _schema(width)
        self._writer = pq.ParquetWriter(self._temporary, self._schema, use_dictionary=False, write_statistics=["id"])
        self._waiting: list[dict[str, Any]] = []
        self._waiting_bytes = 0

    def _write(self, fields: dict[str, Any], answer: RowAnswer) -> None:
        fields["described"] = json.dumps(answer.described)
        if self._has_vectors:
            fields["embedding"] = None if answer.error is not None else answer.tensors["embedding"]
        else:
            fields["tensors"] = [
                {"name": name, "shape": value.shape, "dtype": value.dtype.name, "data": _contiguous(value).tobytes()}
                for name, value in answer.tensors.items()
            ]
        self._waiting.append(fields)
        self._waiting_bytes += sum(value.nbytes for value in answer.tensors.values())
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_pylist(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0

    def _close(self, summary: str) -> None:
        self._flush()
        self._writer.add_key_value_metadata({SUMMARY_KEY: summary})
        self._writer.close()

    def discard(self) -> None:
        self._writer.close()
        super().discard()


# ---- safetensors


class _Safetensors(ShardWriter):
    """Writes the numbers to a separate file first. At the end the header, which lists all arrays, is written before
    them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._data = self._temporary.with_name(f"{self._temporary.name}.data")
        self._file = self._data.open("w+b")
        self._tensors: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []

    def _write(self, fields: dict[str, Any], answer: RowAnswer) -> None:
        self._rows.append({**fields, "described": answer.described})
        for name, value in answer.tensors.items():
            start = self._file.tell()
            self._file.write(_contiguous(value).data)
            self._tensors[f"{answer.id}/{name}"] = {
                "dtype": _DTYPES[value.dtype.name],
                "shape": value.shape,
                "data_offsets": [start, self._file.tell()],
            }

    def _close(self, summary: str) -> None:
        metadata = {SUMMARY_KEY: summary, "rows": json.dumps(self._rows)}
        header = json.dumps({"__metadata__": metadata, **self._tensors}).encode()
        header += b" " * (-len(header) % 8)
        if len(header) > _MAX_HEADER_BYTES:
            raise ShardError(
                f"{self._path.name} would have a header of {len(header)} bytes, and safetensors files have at most "
                f"{_MAX_HEADER_BYTES}: fewer --rows-per-shard than {self._summary.rows}, or parquet, are accepted"
            )
        self._file.seek(0)
        with self._temporary.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            shutil.copyfileobj(self._file, file, 1 << 20)

    def discard(self) -> None:
        self._file.close()
        self._data.unlink(missing_ok=True)
        super().discard()


def _contiguous(value: NumpyArray) -> NumpyArray:
    return np.ascontiguousarray(value)
