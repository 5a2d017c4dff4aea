"""How long one step of an engine takes, as a straight line in what the step computes.

It knows seconds and counts. It does not know where the numbers come from: `benchmarks.simulation.fit` measures them.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step: `base`, and seconds for each thing that it computes.

    Each must be finite and at least 0 (ValueError), so that no step goes back in time.
    """

    base: float  # seconds of a step whatever it computes
    per_prompt_token: float = 0.0  # seconds for each token of a prompt's chunk, the keys it looks at included
    per_sequence: float = 0.0  # seconds for each sequence that decodes one token
    per_context_key: float = 0.0  # seconds for each key that those sequences look at: their lengths, summed

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value!r}; it must be a finite number of seconds, at least 0")

    def seconds(self, prompt_tokens: int, sequences: int, context_keys: int) -> float:
        """Return the seconds of a step that computes `prompt_tokens` of prompts and one token for each of `sequences`.

        `context_keys` is the sum of the lengths of those sequences, the token that is computed included.
        """
        return (
            self.base
            + self.per_prompt_token * prompt_tokens
            + self.per_sequence * sequences
            + self.per_context_key * context_keys
        )

    def to_json(self) -> str:
        """Return one line of JSON: an object with the four names."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises ValueError where a name is unknown, `base` is missing or a value is
        unfit.
        """
        fields = json.loads(text)
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, dict) or "base" not in fields or not set(fields) <= set(names):
            raise ValueError(f"step times are {text!r}; they must be an object with base and any of {names[1:]}")
        return cls(**fields)

    def save(self, path: Path) -> None:
        """Write the step times to `path` as JSON."""
        path.write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises OSError, or ValueError where the file is not such JSON."""
        return cls.from_json(path.read_text(encoding="utf-8"))
