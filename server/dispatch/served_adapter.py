"""A LoRA adapter that is served."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A LoRA adapter that requests may name as their model."""

    name: str
    number: int
    """Its number in the messages to the workers; another one each time that a name is loaded."""
    folder: Path
    created: int
    """Seconds since 1970 at which it was first served."""
