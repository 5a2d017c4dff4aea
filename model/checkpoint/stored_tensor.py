"""Describes a tensor of a weight file that is not yet read, whatever the file's format."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from model.checkpoint.folder import ModelLoadError, one_line
from model.quantized import GroupedRows

ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The bytes of a number, by the names that safetensors files have for dtypes."""
CODE_SIZES = {"I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
"""Those of what quantised matrices are made of, besides."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the files."""

    shape: tuple[int, ...]
    dtype: str
    """The dtype, by the file format's name."""
    num_bytes: int
    """The bytes that it takes in the file."""
    read: Callable[[], torch.Tensor]
    """Reads the whole tensor."""
    read_grouped: Callable[[], GroupedRows] | None = None
    """Reads the rows [out, in] of a quantised matrix, or None if it is not stored quantised."""
    read_entry: Callable[[int], torch.Tensor] | None = None
    """Reads one entry of the first axis alone, or None if that takes the whole tensor."""

    def entry(self, index: int, *, transposed: bool = False) -> "StoredTensor":
        """Return one entry of the first axis as a tensor of its own."""

        def read() -> torch.Tensor:
            found = self.read()[index] if self.read_entry is None else self.read_entry(index)
            return found.T if transposed else found

        shape = self.shape[:0:-1] if transposed else self.shape[1:]
        return StoredTensor(shape, self.dtype, self.num_bytes // self.shape[0], read)


def checked_rows(name: str, shape: tuple[int, ...], read: Callable[[], GroupedRows]) -> Callable[[], GroupedRows]:
    """Return a reader of the rows of a tensor that raises ModelLoadError, with its name, for rows that do not fit each
    other or the shape [out, in].
    """

    def read_checked() -> GroupedRows:
        try:
            rows = read()
            if rows.shape != shape:
                raise ValueError(f"its rows are {list(rows.shape)}; {list(shape)} is expected")
        except ModelLoadError:
            raise
        except (ValueError, RuntimeError) as error:  # RuntimeError: torch cannot view or broadcast a part
            raise ModelLoadError(f"weights: {name}: {one_line(error)}") from error
        return rows

    return read_checked
