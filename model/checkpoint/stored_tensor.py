"""Describes a tensor of a weight file that is not yet read, whatever the file's format."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from model.quantized import GroupedRows


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
