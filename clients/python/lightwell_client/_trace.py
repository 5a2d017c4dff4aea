"""Traced points: any named tensor of the forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._looks import Look, NamedArray
from lightwell_client._plots import heat_map

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


class TraceResult(Look):
    """The points of one input by their full names: `trace["blocks.0.attn.hook_q"]` is an array."""

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

    def stacked(self, name: str) -> Array:
        """A point of the blocks over all layers of this answer, [layer, ...], in their order.

        Raises:
            KeyError: not in this answer. ValueError: its layers differ in shape.
        """
        np = require_numpy("stacked()")
        found = [array.array for full, array in self.arrays.items() if full.endswith(f".{name}")]
        if not found:
            raise KeyError(f"no point {name!r} in this answer; it has {', '.join(self.arrays) or 'none'}")
        stacked: Array = np.stack(found)
        return stacked

    def plot(self, name: str, layer: int | None = None, head: int | None = None, ax: Any = None) -> Any:
        """Draw a point as a heat map: its first axis down, its last across; `head` is a place on the head axis.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: the point has several heads and none was named.
        """
        point = self.point(name, layer)
        matrix, axes = point.array, list(point.axes)
        for place, axis in enumerate(axes):
            if axis in ("head", "kv_head"):
                if head is None and matrix.shape[place] > 1:
                    raise ValueError(f"{name} has {matrix.shape[place]} heads: say which head")
                matrix = matrix.take(head or 0, axis=place)
                axes.pop(place)
                break
        rows = self._names(point, axes[0], int(matrix.shape[0]))
        columns = self._names(point, axes[1], int(matrix.shape[1]))
        return heat_map(matrix, rows, columns, names=(axes[0], axes[1]), label=name, ax=ax)

    def _names(self, point: NamedArray, axis: str, length: int) -> list[str]:
        """Tokens along an axis of positions, else numbers."""
        positions = point.about.get("key_positions" if axis == "key" else "positions")
        if axis in ("position", "query", "key") and positions is not None and not self.encoder_tokens:
            return [self.tokens[position] for position in positions]
        return [str(i) for i in range(length)]
