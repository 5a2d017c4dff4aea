"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864) and their variants for longer contexts.

A row is rotated by its own position, with precomputed tables, so its bits do not depend on the batch.

Tables of float64 networks are computed in float64, all others in float32 with the operations and the order of
`transformers`, since a different rounding of the frequencies is visible at position 10000. Powers, cosines and sines
are correctly rounded, so tables have the same bits on every machine.

`dynamic` depends on the current length of the text, which would invalidate the cached keys of a growing text. As in
vLLM, its frequencies are computed once from the served context: the plain ones within the trained length, else those of
the full context. `longrope` has two sets of factors, for texts within the trained length and for longer ones. As in
`transformers`, a text uses the set for its length, and is computed again from the beginning when it exceeds the trained
length.

Axes: T rows, H heads, D head_dim, R <= D rotated dimensions (the first ones; all in most families).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import RopeConfig, RopeType
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kernels.rows import cos_sin
from lightwell.model.layers.attention_arithmetic import at_least_float32


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Radians per position of each pair of dimensions, [R / 2], and the factor of cos and sin."""

    inverse: Tensor
    scaling: float = 1.0


def _plain(theta: float, dims: int, dtype: torch.dtype) -> Tensor:
    """Return theta^(-2i / R): section 3.4.3 of the paper."""
    return 1.0 / _powers(theta, dims, dtype)


def _powers(theta: float, dims: int, dtype: torch.dtype) -> Tensor:
    """Return theta^(2i / R), computed in float64, since the last bits of float32 powers depend on the machine."""
    exponents = torch.arange(0, dims, 2, dtype=dtype) / dims
    return (theta ** exponents.double()).to(dtype)


def _linear(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies for positions divided by a factor: Chen et al. 2023, arXiv:2306.15595."""
    return Frequencies(_plain(rope.theta, dims, dtype) / _factor(rope))


def _dynamic(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies of an NTK-aware base, which grows with the length: u/bloc97 and u/emozilla, in appendix
    B.2 of YaRN (arXiv:2309.00071).
    """
    length, factor = max(max_len, rope.max_position), _factor(rope)
    stretch = factor * length / rope.max_position - (factor - 1)
    return Frequencies(_plain(rope.theta * stretch ** (dims / (dims - 2)), dims, dtype))


def _llama3(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies of Llama 3.1: slowed for waves longer than the trained context, unchanged for short ones,
    and blended between (apply_scaling in meta-llama/llama-models, models/llama3/model.py).
    """
    factor, low, high = _factor(rope), rope.low_freq_factor, rope.high_freq_factor
    plain = _plain(rope.theta, dims, dtype)
    wavelength = 2 * math.pi / plain
    slowed = torch.where(wavelength > rope.original_max_position / low, plain / factor, plain)
    blend = (rope.original_max_position / wavelength - low) / (high - low)
    blended = (1 - blend) * slowed / factor + blend * slowed
    between = (wavelength >= rope.original_max_position / high) & (wavelength <= rope.original_max_position / low)
    return Frequencies(torch.where(between, blended, slowed))


def _yarn(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies of YaRN: Peng et al. 2023, arXiv:2309.00071, section 3; `mscale` as in DeepSeek-V2."""
    factor = rope.factor or rope.max_position / rope.original_max_position

    def temperature(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    scaling = rope.attention_factor
    if scaling is None:
        scaling = temperature(1.0)
        if rope.mscale and rope.mscale_all_dim:
            scaling = temperature(rope.mscale) / temperature(rope.mscale_all_dim)

    def dimension(rotations: float) -> float:
        """Return the dimension with this number of full rotations within the original context."""
        return dims * math.log(rope.original_max_position / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = high - low if high != low else 0.001
    keep = 1 - ((torch.arange(dims // 2, dtype=dtype) - low) / width).clamp(0, 1)
    powers = _powers(rope.theta, dims, dtype)
    return Frequencies(1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep, scaling)


def _longrope(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies of LongRoPE: Ding et al. 2024, arXiv:2402.13753; scaling of cos and sin as in Phi-3."""
    factor = rope.factor or rope.max_position / rope.original_max_position
    scaling = rope.attention_factor
    if scaling is None:
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(rope.original_max_position))
    chosen = rope.long_factor if max_len > rope.original_max_position else rope.short_factor
    powers = _powers(rope.theta, dims, dtype)
    return Frequencies(1.0 / (torch.tensor(chosen, dtype=dtype) * powers), scaling)


def _proportional(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies of whole heads with only the fastest pairs rotated, as in Gemma 4's code."""
    rotated = torch.arange(dims // 2) < (rope.dims or dims) // 2
    return Frequencies(_plain(rope.theta, dims, dtype).where(rotated, 0.0) / (rope.factor or 1.0))


_FREQUENCIES: dict[RopeType, Callable[[RopeConfig, int, int, torch.dtype], Frequencies]] = {
    "default": lambda rope, dims, max_len, dtype: Frequencies(_plain(rope.theta, dims, dtype)),
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def _factor(rope: RopeConfig) -> float:
    assert rope.factor is not None  # required by the reader of config.json
    return rope.factor


def frequencies(rope: RopeConfig, head_dim: int, max_len: int, dtype: torch.dtype) -> Frequencies:
    """Return the frequencies for a context of `max_len` tokens, computed in `dtype` (float32 or float64) on the CPU."""
    dims = head_dim if rope.rope_type == "proportional" else rope.dims or head_dim
    return _FREQUENCIES[rope.rope_type](rope, dims, max_len, dtype)


def rotary_rows(batch: Batch) -> np.ndarray:
    """Return the row of `Rope`'s tables for each row of a batch: [T] int64."""
    starts = np.array([span.rotary_start for span in batch.spans] if batch.num_row_layers is None else [])
    rows: np.ndarray = batch.positions_array + starts[batch.owners] if starts.any() else batch.positions_array
    return rows


class Rope:
    """Tables of cos and sin for positions 0 .. max_len - 1. If texts longer than `switch` tokens use other frequencies,
    their rows follow after `switch` rows for shorter texts.
    """

    def __init__(
        self,
        rope: RopeConfig,
        head_dim: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        kernels: KernelConfig = AUTO,
        switch: int | None = None,
    ) -> None:
        """Compute the tables, in float32, or in float64 for a model of dtype float64."""
        wide = at_least_float32(dtype)
        self.switch = switch
        """Largest length of a short text, or None if all texts have the same frequencies."""
        lengths = (max_len,) if switch is None else (switch, max_len)
        found = frequencies(rope, head_dim, lengths[0], wide)
        self.frequencies = found.inverse
        """Radians per position of each pair of dimensions i and i + R / 2: [R / 2]; of two sets the one for short
        texts.
        """
        inverses = [(length, frequencies(rope, head_dim, length, wide).inverse) for length in lengths]
        angles = torch.cat([torch.arange(length, dtype=wide)[:, None] * each for length, each in inverses])
        is_native = kernels.why_not_native(wide, torch.device("cpu")) is None
        cos, sin = cos_sin(angles) if is_native else (angles.cos(), angles.sin())
        cos, sin = cos * found.scaling, sin * found.scaling
        # The sign of the first half of a head is part of the table.
        self.cos = torch.cat((cos, cos), -1).to(device)  # [rows, R]
        self.sin = torch.cat((-sin, sin), -1).to(device)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and signed sin of rows [T] of the tables, both [T, 1, R], once per step for all layers."""
        return self.cos[rows].unsqueeze(1), self.sin[rows].unsqueeze(1)

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x [T, H, D] with its first R dimensions rotated by cos and sin of `at`.

        It computes in the tables' dtype and rounds to x's dtype once. Two products and a sum are separate operators: a
        fused multiply-add could round differently in vectors and in their remainder, so that the bits of a row would
        depend on its place in the batch.
        """
        dims = cos.shape[-1]
        if dims < x.shape[-1]:
            return torch.cat((Rope.rotate(x[..., :dims], cos, sin), x[..., dims:]), -1)
        turned = x * cos
        turned += x.roll(dims // 2, -1) * sin
        return turned.to(x.dtype)
