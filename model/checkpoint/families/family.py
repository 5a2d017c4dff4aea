"""A family of networks: the reader of its config.json and its weight table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.output_heads import ReadClassifier, read_score
from lightwell.model.checkpoint.families.weight_table import WeightMap
from lightwell.model.config import ModelConfig

Common = dict[str, Any]
"""Fields of ModelConfig that are the same for all families: architecture, family, dtype and ids of special tokens."""


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that differ only in numbers and options."""

    name: str
    architectures: tuple[str, ...]
    """The classes of `transformers` with these networks."""
    read: Callable[[Fields, Common], ModelConfig]
    """The reader of config.json. It raises ModelLoadError, with the field and the value, for an unsupported option."""
    weights: WeightMap = field(repr=False)
    types: tuple[str, ...] | None = None
    """The model_types of files without an architecture, or None for the name. They mean the first architecture."""
    own_head: str | None = None
    """The tensor of an untied head, if config.json does not distinguish tied and untied heads (T5)."""
    read_classifier: ReadClassifier = read_score

    @property
    def model_types(self) -> tuple[str, ...]:
        return (self.name,) if self.types is None else self.types


def decoders(prefix: str) -> tuple[str, ...]:
    """Return the classes of a decoder: with a head for tokens, and with a classifier."""
    return f"{prefix}ForCausalLM", f"{prefix}ForSequenceClassification"
