"""Finds which tokens several grammars forbid next, in a thread of its own, while the network computes."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from model.sampling.grammar.matcher import GrammarMatcher

Mask = NDArray[np.bool_]
"""Whether each token may not come next, [V]."""


Masks = dict[int, Mask]
"""Masks by what their matchers were named."""


class MaskFiller:
    """Fills the masks of a vocabulary of `vocab_size` tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, "grammar-masks")

    def start(self, matchers: Mapping[int, GrammarMatcher]) -> Callable[[], Masks]:
        """Begin to fill the mask of each matcher, and return what waits for all of them. Until then, and until a later
        call is waited for, the matchers may not be used.
        """
        return self._thread.submit(self._fill, matchers).result

    def _fill(self, matchers: Mapping[int, GrammarMatcher]) -> Masks:
        masks: Masks = {}
        asked: list[int] = []
        for key, matcher in matchers.items():
            token_id = matcher.must_follow
            if token_id is None:
                asked.append(key)
            else:
                masks[key] = np.ones(self._vocab_size, np.bool_)
                masks[key][token_id] = False
        if asked:
            words = np.zeros((len(asked), (self._vocab_size + 31) // 32), np.uint32)
            for key, row in zip(asked, words, strict=True):
                matchers[key].matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            bits = np.unpackbits(np.invert(words).view(np.uint8), axis=1, count=self._vocab_size, bitorder="little")
            masks |= zip(asked, bits.view(np.bool_), strict=True)
        return masks
