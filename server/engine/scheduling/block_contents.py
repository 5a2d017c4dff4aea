"""The tokens of published blocks: finds a block that begins with the next tokens of a sequence."""

from collections.abc import Sequence, Set
from itertools import islice
from typing import NamedTuple

_MOST_COMPARED = 64
"""Most blocks that one search compares, the newest first: a prefix of thousands of prompts has thousands of successors.
"""


class Part(NamedTuple):
    """A block and the number of its leading tokens that match."""

    block: int
    num_tokens: int


class BlockContents:
    """The tokens of published blocks, by the digest of the prefix before them."""

    def __init__(self) -> None:
        self._followers: dict[bytes, dict[int, tuple[int, ...]]] = {}
        """By the digest of the prefix: the tokens of each block after it, the newest block last."""
        self._parent_of: dict[int, bytes] = {}

    @property
    def blocks(self) -> Set[int]:
        return self._parent_of.keys()

    def add(self, block: int, parent: bytes, tokens: Sequence[int]) -> None:
        """Add a block. parent: digest of the prefix before it."""
        self._followers.setdefault(parent, {})[block] = tuple(tokens)
        self._parent_of[block] = parent

    def remove(self, block: int) -> None:
        """Remove a block before it gets other tokens."""
        parent = self._parent_of.pop(block)
        followers = self._followers[parent]
        del followers[block]
        if not followers:
            del self._followers[parent]

    def longest_match(self, parent: bytes, tokens: Sequence[int]) -> Part | None:
        """Return the newest of the blocks after `parent` with the longest common beginning, or None without one."""
        best = None
        followers = self._followers.get(parent, {})
        for block, held in islice(reversed(followers.items()), _MOST_COMPARED):
            num_tokens = _num_equal(held, tokens)
            if num_tokens > (0 if best is None else best.num_tokens):
                best = Part(block, num_tokens)
        return best


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
