"""Turns the hidden states of one sequence into embedding vectors: pooled, through dense layers if there are any, cut
and scaled.

It knows one sequence at a time, so a vector cannot depend on what else was in the batch; it knows no layers, requests
or wire formats.

Axes: T tokens, D numbers of a hidden state, n numbers kept.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from model.layers.linear import Linear

Pooling = Literal["mean", "last", "cls", "none"]
"""How hidden states become vectors: the mean of all tokens, the last token, the first token, or one vector a token."""

_TOKENS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A dense layer of pooled vectors."""

    linear: Linear
    dtype: torch.dtype
    """The dtype of its weight, in which it computes."""
    is_tanh: bool
    """Whether a hyperbolic tangent follows."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the layer's output: x [rows, in] -> [rows, out]."""
        x = self.linear(x.to(self.dtype))
        return x.tanh() if self.is_tanh else x


def pool(
    hidden: Tensor,
    pooling: Pooling,
    normalize: bool,
    dimensions: int | None = None,
    dense: Sequence[DenseLayer] = (),
) -> Tensor:
    """Return the embedding [n] of hidden states [T, D], or [T, n] when pooling is "none"; float32, float64 if the input
    is.

    `dense` is applied to what is pooled. `dimensions` keeps the first n numbers, before normalisation (Kusupati et al.,
    "Matryoshka representation learning", arXiv 2205.13147). `normalize` scales to length 1; a vector of zeros stays
    zero. The result owns its memory. Raises ValueError for an unknown pooling, an empty sequence, a tensor that is not
    [T, D], or dimensions that the vector does not have.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling is {pooling!r}; expected one of {', '.join(get_args(Pooling))}")
    if hidden.dim() != 2 or hidden.shape[0] == 0:
        raise ValueError(f"hidden has shape {tuple(hidden.shape)}; expected [tokens, d] with at least one token")
    width = dense[-1].linear.out_features if dense else hidden.shape[1]
    if dimensions is not None and not 1 <= dimensions <= width:
        raise ValueError(f"dimensions is {dimensions}; expected 1 to {width}")
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    vectors = hidden.contiguous() if dense else hidden[:, :dimensions].contiguous()  # T n
    if pooling == "mean" and len(vectors) > 1:
        vectors = _mean(vectors)
    elif pooling == "last":
        vectors = vectors[-1:]
    elif pooling == "cls":
        vectors = vectors[:1]
    for layer in dense:
        vectors = layer(vectors)
    vectors = vectors[:, :dimensions]
    if normalize:
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
        vectors = vectors / length.clamp_min(torch.finfo(torch.float64).tiny)
    vectors = vectors.to(dtype, copy=True)
    return vectors if pooling == "none" else vectors[0]


class RunningMean:
    """The mean over tokens that come in pieces; it is the same number however they were cut.

    It is summed in float64, `_TOKENS_AT_ONCE` at a time, counted from the first token; fewer than that are kept as they
    are.
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
        """Return the mean so far, to be continued on its own; the tokens themselves are shared."""
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


def _mean(x: Tensor) -> Tensor:
    """Return the mean [1, n] over the tokens of x [T, n] in float64, a few tokens at a time: no float64 copy of all of
    x.
    """
    mean = RunningMean()
    mean.add(x)
    return mean.mean()
