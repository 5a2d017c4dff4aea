"""Computes how fast each pair of dimensions rotates under rotary embedding, and under its extensions to longer
contexts.

Every function is given `waves` [R/2] = theta^(2i/R): a full rotation takes 2 pi * waves positions. It returns radians
a position (Su et al. 2021, arXiv:2104.09864, section 3.4.3). L is the length that was trained first, s the factor.
"""

import math

import torch

from lightwell.model.config import RopeConfig


def turns(rope: RopeConfig, dims: int, max_len: int, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Return, for `dims` dimensions served to `max_len` positions, radians a position [dims/2], and the factor of cos
    and sin. float32 rounds as transformers does.
    """
    waves = _theta(rope, dims, max_len) ** (torch.arange(0, dims, 2, dtype=dtype) / dims)
    match rope.rope_type:
        case "default" | "dynamic":
            return 1 / waves, 1.0
        case "proportional":  # only the fastest pairs: Gemma 4's code
            stays = torch.arange(dims // 2) >= (rope.dims or dims) // 2
            return (1 / waves).masked_fill(stays, 0) / (rope.factor or 1), 1.0
        case "linear":  # as if positions were s times nearer: Chen et al. 2023, arXiv:2306.15595
            return 1 / waves / _given(rope.factor), 1.0
        case "llama3":
            return torch.stack([_llama3(rope, plain) for plain in 1 / waves]), 1.0
        case "yarn":
            return _yarn(rope, waves), _yarn_scaling(rope)
        case "longrope":
            return _longrope(rope, waves, max_len), _longrope_scaling(rope)


def _given(number: float | None) -> float:
    assert number is not None
    return number


def _stretch(rope: RopeConfig) -> float:
    """Return s, which the checkpoint may leave to be computed from its two lengths."""
    return rope.factor or rope.max_position / rope.original_max_position


def _theta(rope: RopeConfig, dims: int, max_len: int) -> float:
    """Return theta; for "dynamic" the slowest wave is stretched as much as the text is (YaRN, arXiv:2309.00071,
    appendix B.2).
    """
    if rope.rope_type != "dynamic":
        return rope.theta
    s, length = _given(rope.factor), max(max_len, rope.max_position)
    return rope.theta * math.pow(s * length / rope.max_position - (s - 1), dims / (dims - 2))


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Return one pair's frequency, by how often it rotates within L: seldom, s times slower; often, as before; between,
    a mixture.

    The source is Llama 3.1: apply_scaling in meta-llama/llama-models, models/llama3/model.py.
    """
    s, low, high = _given(rope.factor), rope.low_freq_factor, rope.high_freq_factor
    within = rope.original_max_position / (2 * math.pi / plain)
    if within < low:
        return plain / s
    if within > high:
        return plain
    kept = (within - low) / (high - low)
    return (1 - kept) * plain / s + kept * plain


def _yarn(rope: RopeConfig, waves: torch.Tensor) -> torch.Tensor:
    """Interpolate from the pair that rotates beta_fast times within L, unchanged, to the one that rotates beta_slow
    times, s times slower, in equal steps (Peng et al. 2023, arXiv:2309.00071, section 3.2; steps by pair as in its
    authors' code).
    """
    pairs, s = len(waves), _stretch(rope)
    low, high = (
        pairs * math.log(rope.original_max_position / (2 * math.pi * beta)) / math.log(rope.theta)
        for beta in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    step = torch.arange(pairs, dtype=waves.dtype) - low
    slowed = (step / (high - low if high != low else 0.001)).clamp(0, 1)
    kept = 1 - slowed
    return 1 / (s * waves) * (1 - kept) + 1 / waves * kept


def _yarn_scaling(rope: RopeConfig) -> float:
    """Return softmax's temperature, section 3.4: 0.1 ln s + 1; with a mscale for all dimensions, DeepSeek-V2's
    ratio.
    """

    def growth(mscale: float) -> float:
        return 0.1 * mscale * math.log(max(_stretch(rope), 1)) + 1

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return growth(rope.mscale) / growth(rope.mscale_all_dim)
    return growth(1)


def _longrope(rope: RopeConfig, waves: torch.Tensor, max_len: int) -> torch.Tensor:
    """Slow each pair by a factor of its own, found by search (Ding et al. 2024, arXiv:2402.13753)."""
    factors = rope.short_factor if max_len <= rope.original_max_position else rope.long_factor
    return 1 / (torch.tensor(factors, dtype=waves.dtype) * waves)


def _longrope_scaling(rope: RopeConfig) -> float:
    """Return sqrt(1 + ln s / ln L): section 3.3."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return math.sqrt(1 + math.log(max(_stretch(rope), 1)) / math.log(rope.original_max_position))
