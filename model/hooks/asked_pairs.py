"""Holds the pairs (layer, head) of a capture as steps need them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class AskedPairs:
    """The pairs (layer, head) of a capture in the forms that a step needs: made once for a request, which may have
    hundreds of pairs at every token.
    """

    heads: dict[int, list[int]]
    """The heads of each layer."""
    places: dict[int, list[int]]
    """The places among the pairs of each layer's heads."""
    numbers: np.ndarray
    """[pair] int64: layer * H + head."""
    slots: np.ndarray
    """[layers * H] int32: the place of each pair in the order of layers and heads, each once; -1 for the others."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]], num_layers: int, num_heads: int) -> Self:
        """Return those of pairs in any order."""
        layers, heads = np.array(pairs, np.int64).reshape(-1, 2).T
        is_asked = np.zeros(num_layers * num_heads, bool)
        is_asked[layers * num_heads + heads] = True
        return cls(*group_by_layer(pairs), layers * num_heads + heads, slots_of(is_asked))


def slots_of(is_asked: np.ndarray) -> np.ndarray:
    """Return the place of each element among those that are asked for, int32, or -1."""
    return np.where(is_asked, is_asked.cumsum() - 1, -1).astype(np.int32)


def group_by_layer(pairs: Sequence[tuple[int, int]]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the heads of each layer of pairs (layer, head), and their places among the pairs."""
    heads: dict[int, list[int]] = {}
    places: dict[int, list[int]] = {}
    for place, (layer, head) in enumerate(pairs):
        heads.setdefault(layer, []).append(head)
        places.setdefault(layer, []).append(place)
    return heads, places
