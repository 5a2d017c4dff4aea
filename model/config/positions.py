"""Configuration of positions: rotary embeddings and position biases."""

from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """A rotary embedding: its frequencies, and their stretching for positions beyond the trained length."""

    rope_type: RopeType = "default"
    dims: int | None = None
    """Leading dimensions of each head that are rotated, or None for all (GPT-NeoX and Phi rotate a part). With the type
    proportional, they are the first `dims` / 2 of each half of the head.
    """
    theta: float = 10000.0
    max_position: int
    """The checkpoint's max_position_embeddings."""
    original_max_position: int
    """Positions of the first training, before stretching; `max_position` if the files have no such number."""
    factor: float | None = None
    attention_factor: float | None = None
    """The factor of cosines and sines (yarn, longrope), or None to compute it from `factor`."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    """longrope: divisors of the frequencies, [dims / 2]."""
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBiasConfig:
    """Position biases: a number for each bucket of distances and head, added to the scaled scores of every layer
    (Raffel et al. 2020, arXiv:1910.10683, section 2.1).
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    """Whether half of the buckets are for keys after the query."""
