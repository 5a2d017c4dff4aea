"""Pairs (layer, head) of a capture, indexed by layer and by number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class HeadPairs:
    """The pairs (layer, head) of one capture, indexed once for all steps of its request: it may have hundreds of pairs
    at every token.
    """

    heads: dict[int, list[int]]
    """The heads of each layer."""
    places: dict[int, list[int]]
    """Indices of each layer's heads among the pairs."""
    numbers: np.ndarray
    """[pair] int64: layer * H + head."""
    slots: np.ndarray
    """[layers * H] int32: the index of each pair in the order of layers and heads, without repeats; -1 for heads that
    are not captured.
    """

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]], num_layers: int, num_heads: int) -> Self:
        """Index pairs (layer, head), which may have any order and repeats."""
        heads: dict[int, list[int]] = {}
        places: dict[int, list[int]] = {}
        for place, (layer, head) in enumerate(pairs):
            heads.setdefault(layer, []).append(head)
            places.setdefault(layer, []).append(place)
        numbers = np.array([layer * num_heads + head for layer, head in pairs], np.int64)
        is_captured = np.zeros(num_layers * num_heads, bool)
        is_captured[numbers] = True
        return cls(heads, places, numbers, slots_of(is_captured))


def slots_of(is_captured: np.ndarray) -> np.ndarray:
    """Return the index of each element among the True ones, int32; -1 for the others."""
    return np.where(is_captured, is_captured.cumsum() - 1, -1).astype(np.int32)
