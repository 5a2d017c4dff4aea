"""Traced points: any named tensor of the forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._looks import Look, NamedArray
from lightwell_client._places import own_number, place_of, total_of
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
        return self.point(name).array

    def point(self, name: str, layer: int | None = None) -> NamedArray:
        """A point by its full name, or by its short one and a layer, negative from the model's end:
        `point("attn.hook_q", 0)`. The layer may be left out where this answer has one only.

        Raises:
            KeyError: not in this answer, or in several layers and none was named.
            ValueError: the layer counts from an end that the server did not tell.
        """
        return self.arrays[self._full_name(name, layer)]

    def _full_name(self, name: str, layer: int | None) -> str:
        """Of a short name and a layer that both stacks have, the decoder's is meant, as in a request."""
        if layer is None:
            found = [name] if name in self.arrays else list(self._blocks(name))
            if len(found) > 1:
                raise KeyError(f"{name!r} is in this answer {len(found)} times, as {', '.join(found)}: say which layer")
            if found:
                return found[0]
        for prefix, stack in (("", "decoder"), ("decoder.", "decoder"), ("encoder.", "encoder")):
            if layer is not None and any(full.startswith(f"{prefix}blocks.") for full in self._blocks(name)):
                number = own_number("layer", layer, total_of(self.stacks, stack, "layer"))
                if (full := f"{prefix}blocks.{number}.{name}") in self.arrays:
                    return full
        where = "" if layer is None else f" of layer {layer}"
        raise KeyError(f"no point {name!r}{where} in this answer; it has {', '.join(self.arrays) or 'none'}")

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
        """Draw a point as a heat map: its first axis down, its last across; `layer` and `head` are the model's own
        numbers, negative from its end; either may be left out where there is one only.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: the point has several heads and none was named, or this answer does not have that one.
        """
        full = self._full_name(name, layer)
        point = self.arrays[full]
        matrix, axes = point.array, list(point.axes)
        for place, axis in enumerate(axes):
            if axis in ("head", "kv_head"):
                heads = point.about.get("heads") or range(int(matrix.shape[place]))
                total = total_of(self.stacks, "encoder" if full.startswith("encoder.") else "decoder", axis)
                matrix = matrix.take(place_of(axis, head, heads, total), axis=place)
                axes.pop(place)
                break
        rows = self._names(point, axes[0], int(matrix.shape[0]))
        columns = self._names(point, axes[1], int(matrix.shape[1]))
        return heat_map(matrix, rows, columns, names=(axes[0], axes[1]), label=name, ax=ax)
