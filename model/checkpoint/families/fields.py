"""Reads typed values from config.json. It knows JSON and the values that occur everywhere; it knows no family's
options.

Every error is a ModelLoadError of one line that names the field, its value and what is accepted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from model.checkpoint.files import read_json
from model.checkpoint.folder import ModelLoadError
from model.config import Activation

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
"""The largest number that is no size. Its products with a few others fit in float32."""
_T = TypeVar("_T")
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises ModelLoadError when it cannot be read or holds something else."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path}: holds a {type(values).__name__}; a JSON object is expected")
    return values


def read_array(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON file's array. Raises ModelLoadError when it cannot be read, has more objects than
    any list of modules, or holds something else.
    """
    values = read_json(path)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ModelLoadError(f"{path}: a JSON array of objects is expected")
    if len(values) > _MOST_OBJECTS:
        raise ModelLoadError(f"{path}: has {len(values)} objects; at most {_MOST_OBJECTS} are accepted")
    return values


class Fields:
    """The fields of one JSON object. A field that is null counts as one that is absent, unless a method says
    otherwise.
    """

    def __init__(self, values: Mapping[str, Any], file: str = "config.json") -> None:
        self.values = values
        self.file = file

    @classmethod
    def of_file(cls, path: Path) -> "Fields":
        """Return the fields of a JSON file, or none if there is no such file."""
        return cls(read_object(path) if path.exists() else {}, path.name)

    def refuse(self, name: str, accepted: str) -> ModelLoadError:
        return ModelLoadError(f"{self.file}: {name} is {repr(self.values.get(name))[:_MOST_SHOWN]}; {accepted}")

    def _value(self, name: str, kind: type[_T], accepted: str) -> _T | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.refuse(name, accepted)
        return value

    def nested(self, name: str) -> "Fields":
        """Return the object under a name, or an empty one if there is none."""
        return Fields(self._value(name, dict, "an object is expected") or {}, self.file)

    def optional_int(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "an integer is expected")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.optional_int(name)
        value = default if value is None else value
        if value is None or value <= 0:
            raise self.refuse(name, "a positive integer is expected")
        # What is built of a size, before a tensor of the files shows that it is wrong, must not fill the memory.
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
        """Return a size, or None if null switches it off; `default` is for files that do not write it at all."""
        if name not in self.values:
            return default
        return None if self.values[name] is None else self.size(name)

    def number(self, name: str, default: float) -> float:
        value = self.optional_number(name)
        return default if value is None else value

    def optional_number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.refuse(name, "a positive number is expected")
        if value > _LARGEST:
            raise self.refuse(name, f"at most {_LARGEST:g} is accepted")
        return float(value)

    def nullable_number(self, name: str, default: float) -> float | None:
        """Return a number, or None if null switches it off; `default` is for files that do not write it at all."""
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
        """Return a folder inside the model's. Raises ModelLoadError for one that is elsewhere."""
        path = Path(self.text(name, ""))
        if path.is_absolute() or ".." in path.parts or not str(path).isprintable():
            raise self.refuse(name, "a folder inside the model's is expected")
        return str(path)

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(x, int) and not isinstance(x, bool) for x in found):
            raise self.refuse(name, "a token id or a list of them is expected")
        return tuple(found)

    def activation(self, name: str, default: str) -> Activation:
        value = self.values.get(name) or default
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.refuse(name, f"supported are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def dtype(self) -> str:
        name = "dtype" if "dtype" in self.values else "torch_dtype"  # the spelling before transformers 5
        value = str(self.values.get(name) or "float32").removeprefix("torch.")
        if value not in ("float32", "bfloat16", "float16", "float64"):
            raise self.refuse(name, "supported are float32, bfloat16, float16 and float64")
        return value

    def windowed_layers(self, usual: Sequence[bool]) -> Sequence[bool]:
        """Return whether each layer has a window, by `layer_types`; `usual` is for files that do not have it."""
        value, num_layers = self.values.get("layer_types"), len(usual)
        if value is None:
            return usual
        if not isinstance(value, list) or len(value) != num_layers or not all(kind in _LAYER_TYPES for kind in value):
            raise self.refuse(
                "layer_types", f"a list of {num_layers}, each one of {', '.join(_LAYER_TYPES)}, is expected"
            )
        return [kind == "sliding_attention" for kind in value]

    def windows(self, usual: Sequence[bool], size: int | None) -> tuple[int | None, ...]:
        """Return the window of each layer: `sliding_window`, or `size` in files that do not write it, for those that
        have one. Raises ModelLoadError if some have one, and its size is null.
        """
        has_window, window = self.windowed_layers(usual), self.nullable_size("sliding_window", size)
        if window is None and any(has_window):
            raise self.refuse("sliding_window", "the size of the window of the sliding_attention layers is expected")
        return tuple(window if windowed else None for windowed in has_window)

    def only(self, name: str, accepted: Any) -> None:
        """Raise for an option that would change the network and is not built."""
        if self.values.get(name, accepted) not in (accepted, None):
            raise self.refuse(name, f"only {accepted!r} is supported")
