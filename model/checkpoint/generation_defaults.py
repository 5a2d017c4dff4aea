"""Reads the sampling settings in generation_config.json, the same as vLLM. They are the defaults of requests."""

from dataclasses import dataclass
from pathlib import Path

from lightwell.model.checkpoint.families.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Default sampling settings of requests."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """The number of most likely tokens that may be sampled; 0 for all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


_BOUNDS = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """Read generation_config.json, if it exists. Absent and null fields have the defaults of `SamplingDefaults`.

    Raises ModelLoadError for a value that is not accepted in requests.
    """
    fields = Fields.of_file(folder / "generation_config.json")
    found = {name: fields.values[name] for name in _BOUNDS if fields.values.get(name) is not None}
    for name, value in found.items():
        low, high = _BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise fields.refuse(name, f"a number from {low:g} to {high:g} is expected")
    found["top_k"] = max(int(found.get("top_k", 0)), 0)
    return SamplingDefaults(**found)
