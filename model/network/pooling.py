"""Pooling: computes embedding vectors from the hidden states of one sequence, optionally by dense layers, cut and
scaled.

It processes one sequence at a time, so a vector does not depend on its batch.

Axes: T tokens, D width of a hidden state, n width of the result.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightwell.model.layers.linear import Linear
from lightwell.model.network.sentence_transformers import PoolingMode as DeclaredPooling

Pooling = Literal["mean", "last", "cls", "none"]
"""The mean of all tokens, the last token, the first token, or a vector of each token."""
PoolingMode = DeclaredPooling | Literal["none"]

_TOKENS_AT_ONCE = 64
"""Number of tokens that are summed, or have logits in memory, together: 8 MB of logits for a vocabulary of 32,000.
Tokens are counted from the first one, so that the parts of a sum do not depend on the batch.
"""


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A dense layer of pooled vectors."""

    linear: Linear
    dtype: torch.dtype
    """The dtype of its weight and its arithmetic."""
    is_tanh: bool
    """Whether a hyperbolic tangent follows."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the layer's output: x [rows, in] -> [rows, out]."""
        x = self.linear(x.to(self.dtype))
        return x.tanh() if self.is_tanh else x


def finished(
    vectors: Tensor, normalize: bool, dimensions: int | None = None, dense: Sequence[DenseLayer] = ()
) -> Tensor:
    """Return pooled vectors [rows, D] after the dense layers, cut to `dimensions` and scaled: [rows, n]."""
    for layer in dense:
        vectors = layer(vectors)
    vectors = vectors[:, :dimensions]
    if normalize:
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
        vectors = vectors / length.clamp_min(torch.finfo(torch.float64).tiny)
    return vectors


class RunningPooling:
    """Pools states that arrive in pieces; the result does not depend on the division into pieces."""

    def __init__(self, mode: PoolingMode) -> None:
        self._mode = mode
        self._mean = RunningMean()
        self._kept: list[Tensor] = []
        self._num_tokens = 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes held between two pieces."""
        return sum(piece.nbytes for piece in self._kept) + self._mean.num_bytes

    def copy(self) -> "RunningPooling":
        """Return an independent copy of the state."""
        other = copy.copy(self)
        other._mean, other._kept = self._mean.copy(), list(self._kept)
        return other

    def add(self, hidden: Tensor) -> None:
        """Add the next tokens [T, D]; the tensor may be kept, and must not change."""
        first, self._num_tokens = self._num_tokens + 1, self._num_tokens + len(hidden)
        match self._mode:
            case "mean" | "mean_sqrt_len_tokens":
                self._mean.add(hidden)
            case "weightedmean":
                places = torch.arange(first, self._num_tokens + 1, dtype=torch.float64, device=hidden.device)
                self._mean.add(hidden * places[:, None])
            case "max":
                self._kept = [torch.cat((*self._kept, hidden)).amax(0, keepdim=True)]
            case "last":
                self._kept = [hidden[-1:].clone()]
            case "cls":
                self._kept = self._kept or [hidden[:1].clone()]
            case "none":
                self._kept.append(hidden)

    def vectors(self) -> Tensor:
        """Return the vector [1, D], or one for each token [T, D], after the last piece; means are float64.

        Raises ValueError when there was no token.
        """
        if self._kept:
            return torch.cat(self._kept)
        mean = self._mean.mean()
        if self._mode == "weightedmean":
            return mean * (2 / (self._num_tokens + 1))
        return mean if self._mode == "mean" else mean * math.sqrt(self._num_tokens)


class RunningMean:
    """The mean over tokens that arrive in pieces; it does not depend on the division into pieces.

    Sums are float64, of `_TOKENS_AT_ONCE` tokens each, counted from the first token; the remaining tokens are kept.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None  # [D]
        self._rest: list[Tensor] = []
        self._num_rest = 0
        self._num_tokens = 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes held between two pieces."""
        return sum(piece.nbytes for piece in self._rest) + (0 if self._total is None else self._total.nbytes)

    def copy(self) -> "RunningMean":
        """Return an independent copy of the state, which shares the tokens."""
        other = copy.copy(self)
        other._rest = list(self._rest)
        return other

    def add(self, hidden: Tensor) -> None:
        """Add the next tokens [T, D]; the tensor may be kept, and must not change."""
        self._num_tokens += len(hidden)
        self._num_rest += len(hidden)
        self._rest.append(hidden)
        if self._num_rest < _TOKENS_AT_ONCE:
            return
        tokens = self._take_rest()
        whole = len(tokens) - len(tokens) % _TOKENS_AT_ONCE
        for start in range(0, whole, _TOKENS_AT_ONCE):
            self._sum(tokens[start : start + _TOKENS_AT_ONCE])
        self._rest, self._num_rest = [tokens[whole:].clone()], len(tokens) - whole

    def mean(self) -> Tensor:
        """Return the mean [1, D] in float64, after the last piece. Raises ValueError when there was no token."""
        if not self._num_tokens:
            raise ValueError("the mean of no tokens; expected at least one")
        if self._num_rest:
            self._sum(self._take_rest())
            self._rest, self._num_rest = [], 0
        assert self._total is not None
        return (self._total / self._num_tokens)[None]

    def _take_rest(self) -> Tensor:
        return self._rest[0] if len(self._rest) == 1 else torch.cat(self._rest)

    def _sum(self, tokens: Tensor) -> None:
        part = tokens.sum(0, dtype=torch.float64)
        self._total = part if self._total is None else self._total + part


def splade(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], *, is_sum: bool = False, is_log_twice: bool = False
) -> Tensor:
    """Return the weights [V], float32, of hidden states [T, D]: the maximum over tokens of log(1 + relu(logit)), or the
    sum (SPLADE, Formal et al. 2021, arXiv:2109.10086, as in sentence-transformers' SpladePooling).

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
