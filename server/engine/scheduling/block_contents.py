"""Knows the tokens that published blocks hold, to find a block that begins as a sequence goes on.

It knows digests, numbers of blocks and tokens; it knows no sequences. Standard library only.
"""

from collections.abc import Sequence, Set
from itertools import islice
from typing import NamedTuple

_MOST_COMPARED = 64
"""Most blocks that one search looks at, the newest first: a beginning that thousands of prompts share has thousands of
blocks after it.
"""


class Part(NamedTuple):
    """A block, and how many of its leading tokens are wanted."""

    block: int
    num_tokens: int


class BlockContents:
    """The tokens of published blocks, by the digest of what is before them."""

    def __init__(self) -> None:
        self._followers: dict[bytes, dict[int, tuple[int, ...]]] = {}
        """By the digest of what is before: the tokens of each block, the newest last."""
        self._parent_of: dict[int, bytes] = {}

    @property
    def blocks(self) -> Set[int]:
        return self._parent_of.keys()

    def add(self, block: int, parent: bytes, tokens: Sequence[int]) -> None:
        """Note the tokens of a block and what is before them."""
        self._followers.setdefault(parent, {})[block] = tuple(tokens)
        self._parent_of[block] = parent

    def remove(self, block: int) -> None:
        """Forget a block, which is about to hold something else."""
        parent = self._parent_of.pop(block)
        followers = self._followers[parent]
        del followers[block]
        if not followers:
            del self._followers[parent]

    def longest_match(self, parent: bytes, tokens: Sequence[int]) -> Part | None:
        """Return the block after `parent` that begins with the most of these tokens, or None if none begins with any;
        of equals the newest.
        """
        best = None
        followers = self._followers.get(parent, {})
        for block, held in islice(reversed(followers.items()), _MOST_COMPARED):
            num_tokens = _num_equal(held, tokens)
            if num_tokens > (0 if best is None else best.num_tokens):
                best = Part(block, num_tokens)
        return best


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens are equal."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
