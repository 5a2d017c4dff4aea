"""SPLADE: weights of the vocabulary's words from the logits of a masked language model (Formal et al. 2021,
arXiv:2109.10086), as in sentence-transformers' SpladePooling.

It processes one text at a time, so a weight does not depend on its batch.

Axes: T tokens, V words.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_TOKENS_AT_ONCE = 64
"""Largest number of tokens with logits in memory: 8 MB for a vocabulary of 32,000. Pieces are counted from the first
token, so that the parts of a sum do not depend on the batch.
"""


def splade(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], *, is_sum: bool = False, is_log_twice: bool = False
) -> Tensor:
    """Return the weights [V], float32, of hidden states [T, d]: the maximum over tokens of log(1 + relu(logit)), or the
    sum.

    is_log_twice: whether log(1 + x) is applied again. Raises ValueError when there is no token.
    """
    if not len(hidden):
        raise ValueError("the words of no tokens; expected at least one")
    found: Tensor | None = None
    for first in range(0, len(hidden), _TOKENS_AT_ONCE):
        logits = logits_of(hidden[first : first + _TOKENS_AT_ONCE]).float()
        if is_sum:
            weights = _saturated(logits, is_log_twice).sum(0, dtype=torch.float64)
            found = weights if found is None else found + weights
        else:  # the functions are monotonic, so the maximum can be taken first
            largest = logits.amax(0)
            found = largest if found is None else torch.maximum(found, largest)
    assert found is not None
    return found.float() if is_sum else _saturated(found, is_log_twice)


def _saturated(logits: Tensor, is_log_twice: bool) -> Tensor:
    weights = logits.relu().log1p()
    return weights.log1p() if is_log_twice else weights
