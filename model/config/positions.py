"""Defines how a network knows positions: rotary embeddings and biases."""

from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary embedding: its frequencies, and how they are stretched past the trained length."""

    rope_type: RopeType = "default"
    dims: int | None = None
    """Leading dimensions of each head that are rotated, or None for all of them (GPT-NeoX and Phi rotate a part).
    Proportional ones are half of them at the head of its first half, and half at the head of its second.
    """
    theta: float = 10000.0
    max_position: int
    """Positions the checkpoint declares (max_position_embeddings)."""
    original_max_position: int
    """Positions it was first trained on, before it was stretched; equal to max_position if the files don't say."""
    factor: float | None = None
    attention_factor: float | None = None
    """The factor of cos and sin (yarn, longrope); None derives it from the factor."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    """Longrope's divisor of each frequency, [dims / 2]."""
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBiasConfig:
    """Position biases: a number for each (distance bucket, head), added to the scaled scores of every layer (Raffel et
    al. 2020, arXiv:1910.10683, section 2.1).
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    """Whether half of the buckets are for keys after the query."""
