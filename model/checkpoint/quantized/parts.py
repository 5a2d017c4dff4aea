"""Holds the tensors that one quantised matrix is made of, and names what is wrong with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.quantized.scheme import WHOLE_ROW, Scheme
from model.checkpoint.stored_tensor import StoredTensor, checked_rows
from model.quantized import GroupedRows

SCALE_DTYPES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one matrix, by the last part of their names."""

    name: str
    """What their names begin with, such as model.layers.0.mlp.up_proj."""
    tensors: Mapping[str, StoredTensor]
    scheme: Scheme

    def tensor(self, part: str, dtypes: tuple[str, ...], *shape: int | None) -> StoredTensor:
        """Return a tensor that the matrix needs. shape: its lengths, of which those that are None may be any.

        Raises ModelLoadError if there is none, or one of another kind or shape.
        """
        found = self.tensors.get(part)
        lengths = ", ".join("any" if length is None else str(length) for length in shape)
        wanted = f"{' or '.join(dtypes)} [{lengths}] is expected for {self.scheme.method}"
        if found is None:
            raise ModelLoadError(f"weights: {self.name}.{part} is missing; {wanted}")
        fits = (
            len(found.shape) == len(shape)
            and 0 not in found.shape
            and all(wanted in (None, length) for length, wanted in zip(found.shape, shape, strict=True))
        )
        if found.dtype not in dtypes or not fits:
            raise ModelLoadError(f"weights: {self.name}.{part} is {found.dtype} {list(found.shape)}; {wanted}")
        return found

    def scales(
        self, part: str, dtypes: tuple[str, ...], grids: Sequence[tuple[int, int]]
    ) -> tuple[StoredTensor, tuple[int, int]]:
        """Return a tensor that the matrix needs, and which of some shapes it has; lengths of 1 may be left out, unless
        it has another of the shapes as it is.

        Raises ModelLoadError if there is none, or one of another kind or shape.
        """
        found = self.tensors.get(part)
        shapes = " or ".join(str(list(grid)) for grid in grids)
        wanted = f"{' or '.join(dtypes)} {shapes} is expected for {self.scheme.method}"
        if found is None:
            raise ModelLoadError(f"weights: {self.name}.{part} is missing; {wanted}")
        for grid in sorted(grids, key=lambda grid: grid != found.shape):
            if found.dtype in dtypes and _longer(found.shape) == _longer(grid):
                return found, grid
        raise ModelLoadError(f"weights: {self.name}.{part} is {found.dtype} {list(found.shape)}; {wanted}")

    def group_counts(self, num_inputs: int, sizes: Sequence[int] | None = None) -> list[int]:
        """Return how many groups so many inputs may have. sizes: of a group, by default the sizes in config.json.

        Raises ModelLoadError if the inputs cannot be cut so.
        """
        sizes = [num_inputs if size == WHOLE_ROW else size for size in sizes or self.scheme.group_sizes]
        found = [num_inputs // size for size in sizes if num_inputs % size == 0]
        if sizes and not found:
            wanted = " or ".join(map(str, sizes))
            raise ModelLoadError(f"weights: {self.name} has {num_inputs} inputs; a multiple of {wanted} is expected")
        return found

    def groups_of_inputs(self, part: str, num_inputs: int, num_groups: int) -> Tensor | None:
        """Return the group of each input [K] int64, or None if neighbours share one, as they do unless a format orders
        inputs by how much they matter.

        Raises ModelLoadError for a group that there is not.
        """
        if part not in self.tensors:
            return None
        groups = self.tensor(part, ("I32",), num_inputs).read().long()
        if torch.equal(groups, torch.arange(num_inputs) * num_groups // num_inputs) or (groups == -1).all():
            return None
        if groups.min() < 0 or groups.max() >= num_groups:
            raise ModelLoadError(
                f"weights: {self.name}.{part} has groups from {groups.min()} to {groups.max()}; 0 to "
                f"{num_groups - 1} are expected"
            )
        return groups

    def stored(
        self, shape: tuple[int, int], read: Callable[[], Tensor], read_grouped: Callable[[], GroupedRows] | None
    ) -> StoredTensor:
        """Return the matrix [out, in] as one tensor."""
        num_bytes = sum(tensor.num_bytes for tensor in self.tensors.values())
        return StoredTensor(shape, self.scheme.method, num_bytes, read, read_grouped)

    def grouped(self, shape: tuple[int, int], read: Callable[[], GroupedRows]) -> StoredTensor:
        """Return a matrix that grouped rows hold as one tensor."""
        rows = checked_rows(self.name, shape, read)
        return self.stored(shape, lambda: rows().to_dense(), rows)


def _longer(shape: Sequence[int]) -> list[int]:
    """Return the lengths of a shape that are not 1."""
    return [length for length in shape if length != 1]
