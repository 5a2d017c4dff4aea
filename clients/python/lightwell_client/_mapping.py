"""Results that are mappings from names to numpy arrays, and their other forms: one numpy array, a data frame.

It knows axes and labels. The meaning of the numbers is documented by each result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._exceptions import MissingDependency
from lightwell_client._notebook import NotebookView, described

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

    _Mapping = Mapping[str, Array]
else:
    _Mapping = Mapping

_NUMBERS = {
    "layer": ("layers",),
    "head": ("heads",),
    "kv_head": ("heads",),
    "measure": ("measures",),
    "position": ("positions",),
    "query": ("query_positions", "positions"),
    "key": ("key_positions",),
}
"""The fields with the indices along an axis of an array, from the array or from the whole answer."""


@dataclass(frozen=True, eq=False)
class NamedArray:
    """Numbers and the names of their axes."""

    array: Array = field(repr=False)
    axes: tuple[str, ...]
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    """Other fields that the server reports, such as layer, heads and positions of a traced point."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return as_asked(self.array, dtype, copy)

    def __repr__(self) -> str:
        return f"NamedArray({described(self.axes, self.shape, self.array.dtype)})"


class ArrayMapping(NotebookView, _Mapping):
    """A mapping from names to arrays. `arrays` has them with the names of their axes."""

    __slots__ = ()
    __eq__ = object.__eq__  # a mapping's would compare arrays as truth values
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        @property
        def arrays(self) -> dict[str, NamedArray]: ...

    def __getitem__(self, name: str) -> Array:
        """Return the array of that name.

        Raises:
            KeyError: this answer has no such array; the message lists those it has.
        """
        if name not in self.arrays:
            raise KeyError(f"no array {name!r} in this answer; it has {', '.join(self.arrays) or 'none'}")
        return self.arrays[name].array

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __bool__(self) -> bool:
        return True  # an answer without arrays is an answer

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the only array of this answer, for `np.asarray`.

        Raises:
            ValueError: this answer has several arrays, or none.
        """
        return as_asked(self.arrays[self._only()].array, dtype, copy)

    def to_pandas(self, name: str | None = None) -> Any:
        """Return an array as a data frame with a row for each number: its axes are the index, with the model's own
        numbers of layers, heads and positions, and the tokens of positions are columns.

        Args:
            name: The name of the array; it may be left out if this answer has one only.

        Raises:
            KeyError: this answer has no such array.
            MissingDependency: pandas is not installed.
            ValueError: `name` is left out, and this answer has several arrays, or none.
        """
        np, pandas = require_numpy("to_pandas()"), require_pandas()
        name = self._only() if name is None else name
        array, named = self[name], self._named(name)
        numbers = [self._numbers(named, *pair) for pair in zip(named.axes, array.shape, strict=True)]
        index = pandas.MultiIndex.from_product(numbers, names=named.axes)
        columns: dict[str, Any] = {}
        for place, (axis, length) in enumerate(zip(named.axes, array.shape, strict=True)):
            names = self._names(named, axis, length)
            if axis in ("position", "query", "key") and names != [str(number) for number in numbers[place]]:
                along = np.array(names, dtype=object).reshape([-1 if i == place else 1 for i in range(array.ndim)])
                columns[f"{axis}_token"] = np.broadcast_to(along, array.shape).ravel()
        return pandas.DataFrame(columns | {name: array.ravel()}, index=index)

    def _named(self, name: str) -> NamedArray:
        return self.arrays[name]

    def _only(self) -> str:
        """Return the name of the only array. Raises ValueError."""
        if len(self.arrays) != 1:
            names = ", ".join(map(repr, self.arrays))
            advice = f"{names}: name one, as in result[{next(iter(self.arrays))!r}]" if names else "none"
            raise ValueError(f"this answer has {len(self.arrays)} arrays, {advice}")
        return next(iter(self.arrays))

    def _numbers(self, named: NamedArray, axis: str, length: int) -> Sequence[Any]:
        """Return the model's own numbers along an axis."""
        told = (named.about.get(holder) or getattr(self, holder, None) for holder in _NUMBERS.get(axis, ()))
        found = next((numbers for numbers in told if numbers is not None and len(numbers) == length), None)
        return range(length) if found is None else found

    def _names(self, named: NamedArray, axis: str, length: int) -> list[str]:
        """Return the labels along an axis, such as tokens."""
        return [str(number) for number in self._numbers(named, axis, length)]


def as_asked(array: Array, dtype: Any, copy: bool | None) -> Array:
    """Return the array as numpy's protocol `__array__` wants it."""
    asked: Array = require_numpy("an array").array(array, dtype=dtype, copy=copy)
    return asked


def require_pandas() -> Any:
    """Return pandas.

    Raises:
        MissingDependency: pandas is not installed.
    """
    try:
        import pandas  # optional, and slow to import
    except ImportError as error:
        raise MissingDependency("to_pandas() needs pandas: pip install 'lightwell-client[pandas]'") from error
    return pandas
