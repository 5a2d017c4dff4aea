"""Reads the header of a GGUF file: its metadata and the places of its tensors.

The format is ggml's (github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3, little endian. The `gguf`
package's reader takes seconds for a large vocabulary, and does not check the lengths in a file.
"""

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from lightwell.model.checkpoint.files import open_file
from lightwell.model.checkpoint.folder import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
"""Bytes to which tensors are aligned without `general.alignment`."""
_MOST_DIMENSIONS = 4
_SMALL = 1 << 16
"""Most bytes of a tensor that is part of the configuration."""
_NUMBERS = {
    GGUFValueType.UINT8: "<u1", GGUFValueType.INT8: "<i1", GGUFValueType.UINT16: "<u2", GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4", GGUFValueType.FLOAT32: "<f4", GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8", GGUFValueType.FLOAT64: "<f8",
}  # fmt: skip
_LEAST_ENTRY = 8 + 4 + 8 + 4 + 8
_LEAST_FIELD = 8 + 4 + 1
_MOST_FIELDS, _MOST_TENSORS, _MOST_STRINGS = 1 << 12, 1 << 16, 1 << 22
"""Far more than in any file. The Python object of an empty string or a field takes several times its bytes."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    """As in torch: the last axis is contiguous."""
    type: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file: its metadata and the places of its tensors."""

    path: Path
    metadata: dict[str, Any]
    """Values: numbers, strings, booleans, lists of strings, and numpy arrays of numbers."""
    tensors: dict[str, TensorEntry]

    def floats(self, name: str) -> np.ndarray:
        """Read a small tensor of float32. Raises ModelLoadError for another format or a large tensor."""
        entry = self.tensors[name]
        if entry.type != GGMLQuantizationType.F32 or entry.num_bytes > _SMALL:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} is {entry.type.name} of {entry.num_bytes} bytes; F32 is expected"
            )
        return np.fromfile(self.path, np.float32, entry.num_bytes // 4, offset=entry.offset)


def read_header(path: Path, *, with_texts: bool = True) -> Header:
    """Read the header of a file. with_texts: whether to read lists of strings, such as the vocabulary.

    Raises ModelLoadError, in one line, for a file that cannot be read, is no GGUF file, or is inconsistent.
    """
    try:
        with open_file(path, most=None) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            return _Reader(path, memory, with_texts).read()
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        if isinstance(error, ModelLoadError):
            raise
        raise ModelLoadError(f"{path}: cannot be read as a GGUF file ({error})") from error


class _Reader:
    """A reader from the beginning of the file. It checks every length against the remaining bytes before using it."""

    def __init__(self, path: Path, memory: mmap.mmap, with_texts: bool) -> None:
        self._path, self._memory, self._with_texts = path, memory, with_texts
        self._size, self._at = len(memory), 0

    def read(self) -> Header:
        if self._take(4) != _MAGIC:
            raise self._fault(f"begins with {self._memory[:4]!r}; {_MAGIC!r} is expected")
        version = self._number("<I")
        if version not in _VERSIONS:
            is_big = version in (each << 24 for each in _VERSIONS)
            found = "is big endian" if is_big else f"has version {version}"
            raise self._fault(f"{found}; little-endian files of versions {', '.join(map(str, _VERSIONS))} are accepted")
        num_tensors, num_fields = self._number("<Q"), self._number("<Q")
        self._check_count("metadata fields", num_fields, _LEAST_FIELD, _MOST_FIELDS)
        self._check_count("tensors", num_tensors, _LEAST_ENTRY, _MOST_TENSORS)
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self._text()
            if key in metadata:
                raise self._fault(f"has the field {key!r} twice")
            metadata[key] = self._value(self._value_type(key), key)
        described = [self._entry() for _ in range(num_tensors)]
        return Header(self._path, metadata, self._placed(described, metadata.get("general.alignment", _ALIGNMENT)))

    def _value_type(self, key: str) -> GGUFValueType:
        number = self._number("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self._fault(f"field {key!r} has the unknown type {number}") from None

    def _value(self, kind: GGUFValueType, key: str) -> Any:
        if kind == GGUFValueType.STRING:
            return self._text()
        if kind != GGUFValueType.ARRAY:
            return self._numbers(kind, 1)[0].item()
        item, count = self._value_type(key), self._number("<Q")
        if item == GGUFValueType.ARRAY:
            raise self._fault(f"field {key!r} is an array of arrays; arrays of numbers or strings are accepted")
        if item != GGUFValueType.STRING:
            return self._numbers(item, count)
        self._check_count(f"strings in {key!r}", count, 8, _MOST_STRINGS)
        text: Callable[[], str] = self._text
        return [text() for _ in range(count)] if self._with_texts else self._skip_texts(count)

    def _numbers(self, kind: GGUFValueType, count: int) -> np.ndarray:
        dtype = np.dtype(_NUMBERS[kind])
        self._check_count("numbers", count, dtype.itemsize)
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _entry(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name, num_axes = self._text(), self._number("<I")
        if not 1 <= num_axes <= _MOST_DIMENSIONS:
            raise self._fault(f"tensor {name!r} has {num_axes} axes; 1 to {_MOST_DIMENSIONS} are accepted")
        lengths = [self._number("<Q") for _ in range(num_axes)]
        number, offset = self._number("<I"), self._number("<Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise self._fault(f"tensor {name!r} has the unknown format {number}") from None
        block_size, _ = GGML_QUANT_SIZES[kind]
        if 0 in lengths or lengths[0] % block_size:
            raise self._fault(
                f"tensor {name!r} has axes {lengths}; {kind.name} takes rows of multiples of {block_size}"
            )
        return name, tuple(reversed(lengths)), kind, offset

    def _placed(
        self, described: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]], alignment: object
    ) -> dict[str, TensorEntry]:
        """Return the tensors with their places in the file, by name."""
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
            raise self._fault(f"general.alignment is {alignment!r}; a multiple of 8 is accepted")
        begin = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        end, before = begin, ""
        for name, shape, kind, offset in sorted(described, key=lambda entry: entry[3]):
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            entry = TensorEntry(name, shape, kind, begin + offset, math.prod(shape) // block_size * block_bytes)
            if name in tensors:
                raise self._fault(f"has the tensor {name!r} twice")
            if offset % alignment:
                raise self._fault(f"has the tensor {name!r} at byte {offset}, which is not a multiple of {alignment}")
            if entry.offset < end:
                raise self._fault(f"has the overlapping tensors {before!r} and {name!r}")
            end, before = entry.offset + entry.num_bytes, name
            if end > self._size:
                raise self._fault(f"has {self._size} bytes; tensor {name!r} ends at byte {end}")
            tensors[name] = entry
        return tensors

    def _check_count(self, what: str, count: int, least_bytes: int, most: int | None = None) -> None:
        left = self._size - self._at
        if most is not None and count > most:
            raise self._fault(f"announces {count} {what} at byte {self._at}; at most {most} are accepted")
        if count * least_bytes > left:
            raise self._fault(f"announces {count} {what} at byte {self._at}, but has only {left} more bytes")

    def _text(self) -> str:
        # Called hundreds of thousands of times for some vocabularies, so it does not call the functions below.
        at = self._at + 8
        (length,) = _LENGTH.unpack_from(self._memory, self._at) if at <= self._size else (self._size,)
        end = at + length
        if end > self._size:
            raise self._fault(f"ends in the middle of a string of {length} bytes at byte {at}")
        self._at = end
        try:
            return self._memory[at:end].decode()
        except UnicodeDecodeError as error:
            raise self._fault(f"has a string at byte {at} that is not valid UTF-8 ({error.reason})") from None

    def _skip_texts(self, count: int) -> None:
        at, last = self._at, self._size - 8
        for _ in range(count):
            if at <= last:
                at += 8 + _LENGTH.unpack_from(self._memory, at)[0]
        if at > self._size:
            raise self._fault(f"ends in the middle of {count} strings at byte {self._at}")
        self._at = at

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _take(self, count: int) -> bytes:
        if count > self._size - self._at:
            raise self._fault(f"has {self._size} bytes, but its header is longer")
        self._at += count
        return self._memory[self._at - count : self._at]

    def _fault(self, fault: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path}: the file {fault}")


_LENGTH = struct.Struct("<Q")
