"""The tensors of one quantised matrix, checked against the shapes and dtypes of its format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.quantized.scheme import WHOLE_ROW, Scheme
from lightwell.model.checkpoint.stored_tensor import StoredTensor, checked_rows
from lightwell.model.quantized import GroupedRows

SCALE_DTYPES = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one matrix, by the last parts of their names."""

    name: str
    """The beginning of their names, such as model.layers.0.mlp.up_proj."""
    tensors: Mapping[str, StoredTensor]
    scheme: Scheme

    def tensor(self, part: str, dtypes: tuple[str, ...], *shape: int | None) -> StoredTensor:
        """Return a tensor that the matrix needs. shape: its lengths, None for any.

        Raises ModelLoadError if it is missing, or of another dtype or shape.
        """
        lengths = ", ".join("any" if length is None else str(length) for length in shape)
        return self._found(part, dtypes, f"[{lengths}]", lambda found: _fits(found, shape))

    def scales(
        self, part: str, dtypes: tuple[str, ...], grids: Sequence[tuple[int, int]]
    ) -> tuple[StoredTensor, tuple[int, int]]:
        """Return a tensor that the matrix needs, and its shape, one of `grids`. Its file may leave out lengths of 1.

        Raises ModelLoadError if it is missing, or of another dtype or shape.
        """

        def fitting(found: tuple[int, ...]) -> list[tuple[int, int]]:
            alike = [grid for grid in grids if _longer(found) == _longer(grid)]
            return sorted(alike, key=lambda grid: grid != found)

        tensor = self._found(part, dtypes, " or ".join(str(list(grid)) for grid in grids), fitting)
        return tensor, fitting(tensor.shape)[0]

    def _found(
        self, part: str, dtypes: tuple[str, ...], shapes: str, fits: Callable[[tuple[int, ...]], object]
    ) -> StoredTensor:
        """Return a tensor of one of these dtypes whose shape fits. shapes: the accepted ones, for the error."""
        found, wanted = self.tensors.get(part), f"{' or '.join(dtypes)} {shapes} is expected for {self.scheme.method}"
        if found is None:
            raise ModelLoadError(f"weights: {self.name}.{part} is missing; {wanted}")
        if found.dtype not in dtypes or not fits(found.shape):
            raise ModelLoadError(f"weights: {self.name}.{part} is {found.dtype} {list(found.shape)}; {wanted}")
        return found

    def group_counts(self, num_inputs: int, sizes: Sequence[int] | None = None) -> list[int]:
        """Return the possible numbers of groups. sizes: the inputs of a group, by default the sizes in config.json.

        Raises ModelLoadError if no size divides the number of inputs.
        """
        sizes = [num_inputs if size == WHOLE_ROW else size for size in sizes or self.scheme.group_sizes]
        found = [num_inputs // size for size in sizes if num_inputs % size == 0]
        if sizes and not found:
            wanted = " or ".join(map(str, sizes))
            raise ModelLoadError(f"weights: {self.name} has {num_inputs} inputs; a multiple of {wanted} is expected")
        return found

    def groups_of_inputs(self, part: str, num_inputs: int, num_groups: int) -> Tensor | None:
        """Return the group of each input [K] int64, or None if neighbours share one. They do not if the quantiser
        ordered the inputs by importance.

        Raises ModelLoadError for a number that is no group.
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
        """Return the matrix [out, in] as one tensor. read: returns its grouped rows."""
        rows = checked_rows(self.name, shape, read)
        return self.stored(shape, lambda: rows().to_dense(), rows)


def _fits(found: Sequence[int], shape: Sequence[int | None]) -> bool:
    """Return whether a shape without zeros has these lengths, None for any."""
    has_lengths = len(found) == len(shape) and all(
        wanted in (None, length) for length, wanted in zip(found, shape, strict=True)
    )
    return has_lengths and 0 not in found


def _longer(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]
