"""Traced points: any named tensor of the forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._attention import place_of
from lightwell_client._looks import Look, NamedArray
from lightwell_client._plots import heat_map

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


class TraceResult(Look):
    """The points of one input by their full names: `trace["blocks.0.attn.hook_q"]` is an array."""

    def __getitem__(self, name: str) -> Array:
        """The array of a point by its full name, or by its short one where this answer has it in one layer only.

        Raises:
            KeyError: not in this answer, or in several layers; the message lists what there is.
        """
        if name in self.arrays:
            return self.arrays[name].array
        found = self._blocks(name)
        if len(found) > 1:
            raise KeyError(
                f"{name!r} is in this answer {len(found)} times, as {', '.join(found)}: say which, or stacked()"
            )
        return found.popitem()[1].array if found else super().__getitem__(name)

    def point(self, name: str, layer: int | None = None) -> NamedArray:
        """A point by its full name, or by its short one and a layer: `point("attn.hook_q", 0)`.

        Raises:
            KeyError: not in this answer.
        """
        wanted = (
            [name] if layer is None else [f"{stack}blocks.{layer}.{name}" for stack in ("", "decoder.", "encoder.")]
        )
        for full in wanted:
            if full in self.arrays:
                return self.arrays[full]
        raise KeyError(f"no point {wanted[0]!r} in this answer; it has {', '.join(self.arrays) or 'none'}")

    def stacked(self, name: str, stack: str | None = None) -> Array:
        """A point of the blocks over all layers of this answer, [layer, ...], in their order.

        stack: "encoder" or "decoder", where the answer has the point in both.

        Raises:
            KeyError: not in this answer. ValueError: its layers differ in shape, or both stacks have it.
        """
        np = require_numpy("stacked()")
        found = {
            full: point for full, point in self._blocks(name).items() if full.startswith(f"{stack}." if stack else "")
        }
        if not found:
            where = f" of the {stack}" if stack else ""
            raise KeyError(f"no point {name!r}{where} in this answer; it has {', '.join(self.arrays) or 'none'}")
        if len({full.partition("blocks.")[0] for full in found}) > 1:
            raise ValueError(f'{name!r} is in both stacks of this answer: say stack="encoder" or stack="decoder"')
        stacked: Array = np.stack([point.array for point in found.values()])
        return stacked

    def _blocks(self, name: str) -> dict[str, NamedArray]:
        """The arrays of a point of the blocks, by their full names."""
        return {full: point for full, point in self.arrays.items() if full.endswith(f".{name}")}

    def plot(self, name: str, layer: int | None = None, head: int | None = None, ax: Any = None) -> Any:
        """Draw a point as a heat map: its first axis down, its last across; `head` is the model's own number.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: the point has several heads and none was named, or this answer does not have that one.
        """
        point = self.point(name, layer)
        matrix, axes = point.array, list(point.axes)
        for place, axis in enumerate(axes):
            if axis in ("head", "kv_head"):
                heads = point.about.get("heads") or range(int(matrix.shape[place]))
                matrix = matrix.take(place_of(axis, head, tuple(heads)), axis=place)
                axes.pop(place)
                break
        rows = self._names(point, axes[0], int(matrix.shape[0]))
        columns = self._names(point, axes[1], int(matrix.shape[1]))
        return heat_map(matrix, rows, columns, names=(axes[0], axes[1]), label=name, ax=ax)
