"""Random numbers as functions of a seed and a position, without a state. Standard library and numpy only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_WORD = 0xFFFFFFFFFFFFFFFF
_MULTIPLIER, _WEYL = 0xD2B74407B1CE6E93, 0x9E3779B97F4A7C15
_ROUNDS = 10

_FEWEST_AT_ONCE = 48
"""Numbers from which numpy is faster: it takes some 200 calls, independent of their number."""


def random_uniform(seed: int, position: int) -> float:
    """Draw a uniform number in [0, 1), a multiple of 2**-53, that depends only on (seed, position).

    It is the first word of Philox2x64-10 with key = low 64 bits of the seed, and counter = (position, next 64 bits of
    the seed). Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return (philox2x64(position, seed >> 64, seed)[0] >> 11) * 2.0**-53


def random_uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """Draw the number of each seed and position, as `random_uniform` does."""
    if len(seeds) < _FEWEST_AT_ONCE:
        return np.array([random_uniform(*each) for each in zip(seeds, positions, strict=True)], np.float64)
    keys = np.array([seed & _WORD for seed in seeds], np.uint64)
    high = np.array([seed >> 64 & _WORD for seed in seeds], np.uint64)
    low = np.array([position & _WORD for position in positions], np.uint64)
    words = _philox2x64_words(low, high, keys)
    drawn: npt.NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def philox2x64(counter_low: int, counter_high: int, key: int) -> tuple[int, int]:
    """Return two 64-bit words of a 128-bit counter and a 64-bit key (Philox2x64-10). Arguments are cut to 64 bits."""
    low, high, key = counter_low & _WORD, counter_high & _WORD, key & _WORD
    for _ in range(_ROUNDS):
        product = _MULTIPLIER * low
        low, high = (product >> 64) ^ key ^ high, product & _WORD
        key = (key + _WEYL) & _WORD
    return low, high


def _philox2x64_words(low: UInt64, high: UInt64, keys: UInt64) -> UInt64:
    """Return the first words of `philox2x64` for many counters and keys."""
    multiplier, weyl = np.uint64(_MULTIPLIER), np.uint64(_WEYL)
    for _ in range(_ROUNDS):
        low, high = _high_words(low) ^ keys ^ high, low * multiplier
        keys = keys + weyl
    return low


def _high_words(x: UInt64) -> UInt64:
    """Return the upper 64 bits of the multiplier's product with each of x, from products of 32-bit halves."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    top, bottom = np.uint64(_MULTIPLIER >> 32), np.uint64(_MULTIPLIER & 0xFFFFFFFF)
    x_top, x_bottom = x >> half, x & mask
    middle = x_top * bottom
    carried = (x_bottom * bottom >> half) + (middle & mask) + x_bottom * top  # at most 2**64 - 1
    words: UInt64 = x_top * top + (middle >> half) + (carried >> half)
    return words
