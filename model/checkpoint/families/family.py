"""Defines what a family is. It knows no family in particular."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model.checkpoint.families.fields import Fields
from model.checkpoint.families.output_heads import ReadClassifier, read_score
from model.checkpoint.families.weight_table import WeightMap
from model.config import ModelConfig

Common = dict[str, Any]
"""Fields of ModelConfig that every family reads alike: architecture, family, dtype and the ids of special tokens."""


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that differ only in numbers and options."""

    name: str
    architectures: tuple[str, ...]
    """The classes of `transformers` whose checkpoints it reads."""
    model_types: tuple[str, ...]
    """The model_type of a config.json that names no architecture; the first architecture is then meant."""
    read: Callable[[Fields, Common], ModelConfig]
    """The reader of config.json. It raises ModelLoadError, naming the field and the value, for an option that is not
    built.
    """
    weights: WeightMap = field(repr=False)
    own_head: str | None = None
    """The tensor that files hold where an untied head is a matrix of its own, if config.json does not say so (T5's)."""
    read_classifier: ReadClassifier = read_score
    """The reader of the head that scores or labels an input, in architectures that have one."""
