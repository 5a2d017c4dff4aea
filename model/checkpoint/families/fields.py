"""Typed values from config.json and similar files, independent of families.

Every error is a ModelLoadError of one line with the field, its value and the accepted values.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lightwell.model.checkpoint.files import read_json
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.config import Activation

ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
}
_MOST_LAYERS = 10_000
_MOST_OBJECTS = 100
_MOST_SHOWN = 200
_MOST_POSITIONS = 1 << 24
"""Most positions, in tokens. The longest published context has ten million."""
_MOST = (1 << 31) - 1
"""The largest value of any other size."""
_LARGEST = 1e30
"""The largest other number. Its products with a few others fit in float32."""
_T = TypeVar("_T")
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises ModelLoadError for unreadable files and other values."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path}: contains a {type(values).__name__}; a JSON object is expected")
    return values


def read_array(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON file's array. Raises ModelLoadError for other files, and for too many objects."""
    values = read_json(path)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ModelLoadError(f"{path}: a JSON array of objects is expected")
    if len(values) > _MOST_OBJECTS:
        raise ModelLoadError(f"{path}: has {len(values)} objects; at most {_MOST_OBJECTS} are accepted")
    return values


class Fields:
    """Fields of one JSON object. A null field counts as an absent one, except in the methods named `nullable_`."""

    def __init__(
        self,
        values: Mapping[str, Any],
        file: str = "config.json",
        defaults: Mapping[str, Any] | None = None,
        spellings: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.values = values
        """The object as the file has it."""
        self.file = file
        self.defaults = defaults or {}
        """The family's values of absent fields."""
        self.spellings = spellings or {}
        """The names of a field in the family's files, by its usual name; the first name in a file applies."""

    @classmethod
    def of_file(cls, path: Path) -> "Fields":
        """Return the fields of a JSON file, or none if there is no such file."""
        return cls(read_object(path) if path.exists() else {}, path.name)

    def with_defaults(self, **defaults: Any) -> "Fields":
        """Return the fields with the family's values of absent ones; earlier defaults are kept."""
        return Fields(self.values, self.file, {**defaults, **self.defaults}, self.spellings)

    def with_spellings(self, **spellings: str | Sequence[str]) -> "Fields":
        """Return the fields under their usual names. spellings: the name of each, or several, in the family's files."""
        named = {name: (own,) if isinstance(own, str) else own for name, own in spellings.items()}
        return Fields(self.values, self.file, self.defaults, {**self.spellings, **named})

    def with_values(self, **values: Any) -> "Fields":
        """Return the fields with other values."""
        return Fields({**self.values, **values}, self.file, self.defaults, self.spellings)

    def text_network(self) -> "Fields":
        """Return the fields of the text network in a file that also describes networks for images or sounds."""
        return Fields(self.nested("text_config").values, self.file)

    def spelling(self, name: str) -> str:
        """Return the name of a field in this file."""
        names = self.spellings.get(name, (name,))
        return next((each for each in names if self.values.get(each) is not None), names[-1])

    def get(self, name: str) -> Any:
        """Return a value of any type, or the family's default if the field is absent, or None without a default."""
        value = self.values.get(self.spelling(name))
        return self.defaults.get(name) if value is None else value

    def refuse(self, name: str, accepted: str) -> ModelLoadError:
        """Return the error for a field's value. accepted: the accepted values."""
        name = self.spelling(name)
        return ModelLoadError(f"{self.file}: {name} is {repr(self.values.get(name))[:_MOST_SHOWN]}; {accepted}")

    def _value(self, name: str, kind: type[_T], accepted: str) -> _T | None:
        value = self.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.refuse(name, accepted)
        return value

    def nested(self, name: str) -> "Fields":
        """Return the fields of an object inside this one, without fields if it is absent."""
        return Fields(self._value(name, dict, "an object is expected") or {}, self.file)

    def optional_int(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "an integer is expected")
        return value

    def integer(self, name: str, default: int) -> int:
        value = self.optional_int(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.optional_int(name)
        value = default if value is None else value
        if value is None or value <= 0:
            raise self.refuse(name, "a positive integer is expected")
        # Configuration objects of this size must fit in memory: they are built before the tensors' shapes are checked.
        most = (
            _MOST_LAYERS
            if "layer" in name and "per_layer" not in name
            else _MOST_POSITIONS
            if "position" in name
            else _MOST
        )
        if value > most:
            raise self.refuse(name, f"at most {most} is accepted")
        return value

    def nullable_size(self, name: str, default: int | None) -> int | None:
        """Return a size, or None if it is null; an absent field has the family's default, else `default`."""
        if name not in self.values:
            usual: int | None = self.defaults.get(name, default)
            return usual
        return None if self.values[name] is None else self.size(name)

    def number(self, name: str, default: float) -> float:
        value = self.optional_number(name)
        return default if value is None else value

    def optional_number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.refuse(name, "a positive number is expected")
        if value > _LARGEST:
            raise self.refuse(name, f"at most {_LARGEST:g} is accepted")
        return float(value)

    def nullable_number(self, name: str, default: float) -> float | None:
        """Return a number, or None if it is null; `default` is the value of an absent field."""
        return self.optional_number(name) if name in self.values else default

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        value = self.values.get(name)
        found = value if isinstance(value, list) else []
        if len(found) != count or not all(isinstance(x, int | float) and abs(x) <= _LARGEST for x in found):
            raise self.refuse(name, f"a list of {count} numbers (one for each pair of dimensions) is expected")
        return tuple(map(float, found))

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, bool, "true or false is expected")
        return default if value is None else value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, str, "a text is expected")
        return default if value is None else value

    def folder(self, name: str) -> str:
        """Return a folder inside the model's. Raises ModelLoadError for any other path."""
        path = Path(self.text(name, ""))
        if path.is_absolute() or ".." in path.parts or not str(path).isprintable():
            raise self.refuse(name, "the name of a folder inside the model's folder is expected")
        return str(path)

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(x, int) and not isinstance(x, bool) for x in found):
            raise self.refuse(name, "a token id or a list of them is expected")
        return tuple(found)

    def activation(self, name: str, default: str | None = None) -> Activation:
        value = self.values.get(self.spelling(name)) or self.defaults.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.refuse(name, f"supported are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def dtype(self) -> str:
        name = "dtype" if "dtype" in self.values else "torch_dtype"  # the spelling before transformers 5
        value = str(self.values.get(name) or "float32").removeprefix("torch.")
        if value not in ("float32", "bfloat16", "float16", "float64"):
            raise self.refuse(name, "supported are float32, bfloat16, float16 and float64")
        return value

    def layer_kinds(self, kinds: Sequence[str], usual: Sequence[str], accepted: str | None = None) -> list[str]:
        """Return the kind of each layer: one of `kinds`, by `layer_types`. usual: the kinds if that field is absent.
        accepted: the kinds in the words of the error.
        """
        value, num_layers = self.values.get("layer_types"), len(usual)
        if value is None:
            return list(usual)
        if not isinstance(value, list) or len(value) != num_layers or not all(kind in kinds for kind in value):
            accepted = accepted or f"one of {', '.join(kinds)}"
            raise self.refuse("layer_types", f"a list of {num_layers}, each {accepted}, is expected")
        return value

    def layers_without_attention(
        self, kinds: Sequence[str], usual: Sequence[str], accepted: str | None = None
    ) -> tuple[int, ...]:
        """Return the layers of other kinds than full_attention. For the arguments see `layer_kinds`.

        Raises ModelLoadError if no layer has attention.
        """
        found = self.layer_kinds(kinds, usual, accepted)
        if "full_attention" not in found:
            raise self.refuse("layer_types", "at least one layer with full_attention is expected")
        return tuple(layer for layer, kind in enumerate(found) if kind != "full_attention")

    def windowed_layers(self, usual: Sequence[bool]) -> list[bool]:
        """Return for each layer whether it has a window, by `layer_types`. usual: the same if that field is absent."""
        found = self.layer_kinds(_LAYER_TYPES, [_LAYER_TYPES[has_window] for has_window in usual])
        return [kind == "sliding_attention" for kind in found]

    def windows(self, usual: Sequence[bool], size: int | None) -> tuple[int | None, ...]:
        """Return the window of each layer, None for a layer without one. `sliding_window` is the size, or `size` if
        that field is absent. usual: the same as in `windowed_layers`.

        Raises ModelLoadError if a layer has a window and `sliding_window` is null.
        """
        has_window, window = self.windowed_layers(usual), self.nullable_size("sliding_window", size)
        if window is None and any(has_window):
            raise self.refuse(
                "sliding_window", "a positive integer is expected, the window of the sliding_attention layers"
            )
        return tuple(window if windowed else None for windowed in has_window)

    def equal_windows(self, size: int | None = None) -> tuple[int | None, ...]:
        """Return the window of each layer if all have the same, or () without windows. size: as in `windows`."""
        window = self.nullable_size("sliding_window", size)
        return () if window is None else (window,) * self.size("num_hidden_layers")

    def only(self, name: str, accepted: Any) -> None:
        """Raise ModelLoadError for an unsupported value of an option."""
        if self.values.get(name, accepted) not in (accepted, None):
            raise self.refuse(name, f"only {accepted!r} is supported")
