"""Input of a batch job: files of JSON lines, Parquet or plain lines, split into the same shards every time.

Rows are numbered through all files, in the given order; files of a folder are ordered by name. An empty line is a row
too. A shard has a bounded number of consecutive rows of one file, in Parquet of one row group, so that it is found
without reading earlier shards. Independent of Ray and the model.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".jsonl", ".parquet", ".txt")
_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 26
"""Maximum bytes of one line: a binary file must not be read into memory as one line."""


class InputError(ValueError):
    """The input as a whole cannot be used; the message names it and the accepted formats. Not raised for a bad row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which fields of JSON lines and of Parquet are read; lines of plain text have none."""

    text: str = "text"
    key: str | None = None
    """The field that names the row for the user; it is copied to the output as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the input. One of `text` and `problem` is None."""

    id: int
    """The row's number among all rows of all files, from 0."""
    text: str | None = None
    problem: str | None = None
    """Why the row has no text."""
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Neighbouring rows of one file that are read together: a shard of a text file, a row group of Parquet."""

    place: int
    """The byte at which it begins, or in Parquet the number of the row group."""
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """The rows and pieces of one file."""

    sha256: str
    pieces: tuple[Piece, ...]

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of the whole input, with the numbers of its shards and rows there."""

    path: str
    piece: Piece
    first_row: int
    first_shard: int
    rows_per_shard: int

    @property
    def shard_sizes(self) -> dict[int, int]:
        """Return the number of rows of each shard, by the shard's number."""
        starts = range(0, self.piece.num_rows, self.rows_per_shard)
        sizes = [min(self.rows_per_shard, self.piece.num_rows - start) for start in starts]
        return {self.first_shard + i: size for i, size in enumerate(sizes)}


def find_files(given: Sequence[str]) -> list[Path]:
    """Return the files that are named, and those in the folders that are named, by name. Raises InputError."""
    files: list[Path] = []
    for name in given:
        path = Path(name).resolve()
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not found:
                raise InputError(f"--input {name!r}: the folder holds none of {', '.join(SUFFIXES)}")
            files += found
        elif path.suffix not in SUFFIXES:
            raise InputError(f"--input {name!r}: the name's end says no format; {', '.join(SUFFIXES)} are accepted")
        elif not path.is_file():
            raise InputError(f"--input {name!r}: there is no such file or folder")
        else:
            files.append(path)
    twice = next((path for i, path in enumerate(files) if path in files[:i]), None)
    if twice is not None:
        raise InputError(f"--input: {str(twice)!r} is given twice; once is accepted")
    return files


def scan(path: Path, rows_per_shard: int, columns: Columns) -> FileScan:
    """Read a whole file once, in bounded memory. Raises InputError if the format differs from the name's suffix."""
    try:
        with path.open("rb") as file:
            if path.suffix != ".parquet":
                return _scan_lines(file, path, rows_per_shard)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileScan(sha256=sha256, pieces=_row_groups(path, columns))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"--input {str(path)!r}: {error}") from None


def _scan_lines(file: BinaryIO, path: Path, rows_per_shard: int) -> FileScan:
    digest = hashlib.sha256()
    pieces: list[Piece] = []
    start, position, num_rows = 0, 0, 0
    while line := file.readline(_MAX_LINE_BYTES):
        if len(line) == _MAX_LINE_BYTES:
            raise InputError(f"--input {str(path)!r}: a line at byte {position} has {_MAX_LINE_BYTES} bytes or more")
        digest.update(line)
        position += len(line)
        num_rows += 1
        if num_rows == rows_per_shard:
            pieces.append(Piece(place=start, num_rows=num_rows))
            start, num_rows = position, 0
    if num_rows:
        pieces.append(Piece(place=start, num_rows=num_rows))
    return FileScan(sha256=digest.hexdigest(), pieces=tuple(pieces))


def _row_groups(path: Path, columns: Columns) -> tuple[Piece, ...]:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        for flag, name in (("--text-column", columns.text), ("--key-column", columns.key)):
            if name is not None and name not in names:
                raise InputError(f"{flag} {name!r}: {str(path)!r} has no such column; it has {', '.join(names)}")
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return tuple(Piece(place=i, num_rows=num_rows) for i, num_rows in enumerate(groups) if num_rows)


def parts_of(files: Sequence[tuple[Path, FileScan]], rows_per_shard: int) -> list[Part]:
    """Return all pieces in their order, numbered."""
    parts: list[Part] = []
    first_row = first_shard = 0
    for path, found in files:
        for piece in found.pieces:
            part = Part(
                path=str(path), piece=piece, first_row=first_row, first_shard=first_shard, rows_per_shard=rows_per_shard
            )
            parts.append(part)
            first_row += piece.num_rows
            first_shard += len(part.shard_sizes)
    return parts


def read_part(part: Part, wanted: Collection[int], columns: Columns) -> Iterator[tuple[int, list[Row]]]:
    """Yield the rows of the wanted shards of a part, one shard at a time. Raises InputError."""
    rows = _rows(part, columns)
    for number, size in part.shard_sizes.items():
        taken = list(islice(rows, size))
        if len(taken) != size:
            raise InputError(f"{part.path!r} has changed while it was read: it has fewer rows now")
        if number in wanted:
            yield number, taken


def _rows(part: Part, columns: Columns) -> Iterator[Row]:
    path = Path(part.path)
    if path.suffix == ".parquet":
        return _parquet_rows(path, part, columns)
    return _line_rows(path, part, columns)


def _parquet_rows(path: Path, part: Part, columns: Columns) -> Iterator[Row]:
    names = [columns.text] if columns.key is None else [columns.text, columns.key]
    number = part.first_row
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024, row_groups=[part.piece.place], columns=names):
            for fields in batch.to_pylist():
                yield _row(number, fields, columns)
                number += 1


def _line_rows(path: Path, part: Part, columns: Columns) -> Iterator[Row]:
    with path.open("rb") as file:
        file.seek(part.piece.place)
        for number, line in enumerate(_lines(file, part.piece.num_rows), part.first_row):
            try:
                text = line.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                yield Row(id=number, problem=f"the line is no UTF-8: {error.reason} at byte {error.start}")
                continue
            if path.suffix == ".txt":
                yield _row(number, {columns.text: text}, Columns(text=columns.text))
                continue
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield Row(id=number, problem=f"the line is no JSON: {error}")
                continue
            yield _row(number, fields, columns)


def _lines(file: BinaryIO, count: int) -> Iterable[bytes]:
    return islice(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), count)


def _row(number: int, fields: Any, columns: Columns) -> Row:
    """Return the row of a line or a Parquet row, with its error if it is invalid."""
    if not isinstance(fields, dict):
        return Row(id=number, problem=f"the line is no JSON object but {_kind(fields)}")
    key = None if columns.key is None or fields.get(columns.key) is None else str(fields[columns.key])
    if key is not None and not _is_unicode(key):
        key = ascii(key)
    if columns.text not in fields:
        return Row(id=number, key=key, problem=f"there is no field {columns.text!r}")
    text = fields[columns.text]
    if not isinstance(text, str):
        return Row(id=number, key=key, problem=f"{columns.text!r} is no text but {_kind(text)}")
    if not _is_unicode(text):
        return Row(id=number, key=key, problem=f"{columns.text!r} holds a lone surrogate; Unicode text is accepted")
    return Row(id=number, key=key, text=text)


def _is_unicode(text: str) -> bool:
    """Return whether the text is valid Unicode. JSON can contain half a surrogate pair, which tokenizers and files
    reject.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Kind = Literal["null", "a boolean", "a number", "a text", "a list", "an object", "bytes"]


def _kind(value: object) -> str:
    kinds: dict[type, Kind] = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    kinds |= {dict: "an object", bytes: "bytes"}
    return "null" if value is None else kinds.get(type(value), "a number")
