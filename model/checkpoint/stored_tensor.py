"""A tensor of a weight file in any format, not yet read."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lightwell.model.checkpoint.folder import ModelLoadError, one_line
from lightwell.model.quantized import GroupedRows

ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number, by the names of dtypes in safetensors files."""
CODE_SIZES = {"I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
"""Bytes of a number, for the dtypes of quantised matrices."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the files."""

    shape: tuple[int, ...]
    dtype: str
    """The name of the dtype in the file format."""
    num_bytes: int
    read: Callable[[], torch.Tensor]
    """Function that reads the whole tensor."""
    read_grouped: Callable[[], GroupedRows] | None = None
    """Function that reads the rows [out, in] of a quantised matrix, or None for any other tensor."""
    read_entry: Callable[[int], torch.Tensor] | None = None
    """Function that reads one entry of the first axis, or None if only the whole tensor can be read."""

    def entry(self, index: int, *, transposed: bool = False) -> "StoredTensor":
        """Return one entry of the first axis as a tensor of its own."""

        def read() -> torch.Tensor:
            found = self.read()[index] if self.read_entry is None else self.read_entry(index)
            return found.T if transposed else found

        shape = self.shape[:0:-1] if transposed else self.shape[1:]
        return StoredTensor(shape, self.dtype, self.num_bytes // self.shape[0], read)


def checked_rows(name: str, shape: tuple[int, ...], read: Callable[[], GroupedRows]) -> Callable[[], GroupedRows]:
    """Return a reader that raises ModelLoadError, with the tensor's name, for rows of another shape than [out, in]."""

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
