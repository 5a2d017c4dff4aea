"""Traced points: any named tensor of the forward pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import PrivateAttr

from lightwell_client._arrays import require_numpy
from lightwell_client._inspection import Inspection
from lightwell_client._inspection_result import InspectionResult
from lightwell_client._mapping import NamedArray
from lightwell_client._options import InspectionOptions, Selection
from lightwell_client._places import own_number, places_of, total_of
from lightwell_client._plots import heat_map, many_maps
from lightwell_client._signatures import Argument

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


class Written(NamedTuple):
    """A point's name, taken apart."""

    stack: str
    """The stack, or "" if the name has none."""
    layer: int | None
    point: str

    @classmethod
    def read(cls, name: str) -> Self:
        """Take apart a name of any spelling: "decoder.blocks.0.attn.hook_q", "attn.q.hook_out", "resid_post.10"."""
        match = _NAME.fullmatch(name)
        if match is None:
            return cls("", None, name)
        stack, layer, in_block, point, last = match.groups()
        number = layer or last
        return cls(stack or "", None if number is None else int(number), in_block or point)


_NAME = re.compile(r"(?:(encoder|decoder)\.)?(?:blocks\.(-?\d{1,9})\.(.+)|(.+?)(?:\.(-?\d{1,9}))?)")


def _bare(point: str) -> str:
    """Drop the optional parts of a TransformerLens name: "attn.hook_q", "attn.q" and "hook_q" are "q"."""
    return point.replace("hook_", "").removeprefix("attn.")


_HEAD_AXES = ("head", "kv_head", "key_head", "value_head")


class TraceOptions(InspectionOptions, total=False):
    """The options of `trace`."""

    layers: Annotated[Selection, Argument("Of names without a layer; negative counts from the end.", "all")]
    heads: Annotated[
        Selection, Argument("Of points with heads (of k and v the key heads); negative from the end.", "all")
    ]
    positions: Annotated[
        Selection, Argument("Of each point's own sequence; of scores and patterns the queries.", "all")
    ]
    key_positions: Annotated[Selection, Argument("The keys of scores and patterns.", "all")]
    dtype: Annotated[Literal["float32", "float16"], Argument("Number format.", "float32")]


class TraceResult(InspectionResult):
    """The points of one input by their full names: `trace["blocks.0.attn.hook_q"]` is an array.

    The requested names work too, with and without a layer, and so do "attn.q", "hook_q" and "q".
    """

    _asked: dict[tuple[str, str], str] = PrivateAttr(default_factory=dict)
    """Maps (stack as in this answer, point as in the request) to the point's name in this answer."""

    def asked_for(self, body: Mapping[str, Any]) -> Self:
        """Remember the names of a request. The meaning of some names depends on the model, and the answer has only its
        own names; but it has them in the requested order, for each name one array, or one for each of `layers`.
        """
        asked, layers = {}, body.get("layers")
        rest = [Written.read(full) for full in self.arrays]
        for name in body["points"]:
            written = Written.read(name)
            if not rest:
                return self
            stack, _, point = rest[0]
            asked[stack, written.point] = point
            count = sum((each.stack, each.point) == (stack, point) for each in rest)
            if written.layer is not None:
                count = 1
            elif isinstance(layers, int | list):
                count = min(count, len(layers) if isinstance(layers, list) else 1)
            del rest[:count]
        if not rest:  # else the order is another than we know
            self._asked.update(asked)
        return self

    def __getitem__(self, name: str) -> Array:
        """Return the array of a point by its full name, or by its short one if this answer has it in one layer only.

        Raises:
            KeyError: not in this answer, or in several layers; the message lists the available names.
        """
        return self.point(name).array

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._full_name(name, None) in self.arrays
        except (KeyError, ValueError):
            return False

    def point(self, name: str, layer: int | None = None) -> NamedArray:
        """Return a point by its full name, or by its short one and a layer, negative from the model's end:
        `point("attn.hook_q", 0)`. The layer may be left out if this answer has one only.

        Raises:
            KeyError: not in this answer, or in several layers and none was named.
            ValueError: the layer counts from an end that the server did not report.
        """
        return self.arrays[self._full_name(name, layer)]

    def _named(self, name: str) -> NamedArray:
        return self.point(name)

    def _full_name(self, name: str, layer: int | None) -> str:
        """Return the full name. A name that both stacks have means the decoder's, as in a request."""
        found = self._meant(name, layer)
        found = [full for full in found if not full.startswith("encoder.")] or found
        if len(found) > 1:
            raise KeyError(f"{name!r} is in this answer {len(found)} times, as {', '.join(found)}: name a layer")
        if not found:
            where = "" if layer is None else f" of layer {layer}"
            raise KeyError(f"no point {name!r}{where} in this answer; it has {', '.join(self.arrays) or 'none'}")
        return found[0]

    def _meant(self, name: str, layer: int | None = None) -> list[str]:
        """Return the full names of all that a name may mean: of both stacks, or of several layers, if it leaves them
        open.
        """
        wanted = Written.read(name)
        layers = [number for number in (wanted.layer, layer) if number is not None]
        found = []
        for full in self.arrays:
            stack, own, point = Written.read(full)
            if point != self._asked.get((stack, wanted.point)) and _bare(point) != _bare(wanted.point):
                continue
            if wanted.stack and stack and wanted.stack != stack:
                continue
            total = total_of(self.stacks, stack or "decoder", "layer")
            if all(own is not None and own == own_number("layer", number, total) for number in layers):
                found.append(full)
        return found

    def stacked(self, name: str, stack: str | None = None) -> Array:
        """Return a point of the blocks over all layers of this answer, [layer, ...], in their order.

        stack: "encoder" or "decoder", if the answer has the point in both.

        Raises:
            KeyError: not in this answer. ValueError: its layers differ in shape, or both stacks have it.
        """
        np = require_numpy("stacked()")
        found = [
            full for full in self._meant(name) if "blocks." in full and full.startswith(f"{stack}." if stack else "")
        ]
        if not found:
            where = f" of the {stack}" if stack else ""
            raise KeyError(f"no point {name!r}{where} in this answer; it has {', '.join(self.arrays) or 'none'}")
        if len({full.partition("blocks.")[0] for full in found}) > 1:
            raise ValueError(f'{name!r} is in both stacks of this answer: say stack="encoder" or stack="decoder"')
        stacked: Array = np.stack([self.arrays[full].array for full in found])
        return stacked

    def plot(self, name: str | None = None, layer: int | None = None, head: int | None = None, ax: Any = None) -> Any:
        """Draw a point: of one layer and head as a heat map, its first axis down, its last across; of several side by
        side, layers down and heads across. `layer` and `head` choose some by the model's own numbers, negative from its
        end. `name` may be left out if this answer has one point only.

        Raises:
            KeyError: not in this answer.
            MissingDependency: matplotlib is not installed.
            ValueError: this answer does not have that head, or has several points and none was named, or the layers
                of the point differ in shape.
        """
        found = self._meant(self._only_point() if name is None else name, layer)
        found = (
            [full for full in found if not full.startswith("encoder.")] or found or [self._full_name(name or "", layer)]
        )
        shown = [self._by_head(full, head) for full in found]
        heads, maps, axes = shown[0]
        if any(each.shape != maps.shape or numbers != heads for numbers, each, _ in shown):
            raise ValueError(f"{found[0]} and the other layers differ in shape: name a layer")
        layers = ["" if (own := Written.read(full).layer) is None else str(own) for full in found]
        title = found[0] + (f", head {heads[0]}" if heads[0] else "")
        if len(found) == len(maps) == 1:
            rows, columns = (
                self._names(self.arrays[found[0]], *pair) for pair in zip(axes, maps[0].shape, strict=True)
            )
            return heat_map(maps[0], rows, columns, names=axes, label=name or title, title=title, ax=ax)
        title = f"{Written.read(found[0]).point}: {len(found) * len(maps)} maps"
        every = require_numpy("plot()").stack([each for _, each, _ in shown])
        return many_maps(
            every, layers, heads, names=("layer", "head" * bool(heads[0])), label=name or "", title=title, ax=ax
        )

    def _only_point(self) -> str:
        """Return the name of the only point, in one layer or in several. Raises ValueError."""
        names = {full: Written.read(full) for full in self.arrays}
        if len({(written.stack, written.point) for written in names.values()}) == 1:
            return next(iter(names.values())).point
        raise ValueError(f"this answer has {len(names)} points; plot() draws one of them: {', '.join(names) or 'none'}")

    def _by_head(self, full: str, head: int | None) -> tuple[list[str], Array, list[str]]:
        """Return the numbers of heads, the maps [head, y, x] of a point, and the names of their axes."""
        point = self.arrays[full]
        axes = list(point.axes)
        axis = next((axis for axis in axes if axis in _HEAD_AXES), None)
        if axis is None:
            return [""], point.array[None], axes
        place = axes.index(axis)
        numbers = list(point.about.get("heads") or range(int(point.array.shape[place])))
        total = total_of(self.stacks, "encoder" if full.startswith("encoder.") else "decoder", axis)
        chosen = places_of(axis, head, numbers, total)
        maps = require_numpy("plot()").moveaxis(point.array, place, 0)[chosen]
        return [str(numbers[each]) for each in chosen], maps, [each for each in axes if each != axis]


TRACE = Inspection("trace", TraceResult, TraceOptions)
