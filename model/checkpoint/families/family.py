"""What a family is. Knows no family in particular."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model.checkpoint.families.fields import Fields
from model.checkpoint.families.weight_table import WeightMap
from model.config import ModelConfig

Common = dict[str, Any]
"""Fields of ModelConfig that every family reads alike: architecture, family, dtype and the ids of special tokens."""


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that differ in numbers and options only."""

    name: str
    architectures: tuple[str, ...]
    """Classes of `transformers` whose checkpoints it reads."""
    model_types: tuple[str, ...]
    """What config.json calls it when it names no architecture; the first architecture is then meant."""
    read: Callable[[Fields, Common], ModelConfig]
    """Raises ModelLoadError, naming the field and the value, for an option that is not built."""
    weights: WeightMap = field(repr=False)
    own_head: str | None = None
    """The tensor that files hold where an untied head is a matrix of its own, if config.json does not tell (T5's)."""
