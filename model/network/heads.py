"""Heads of encoders: the transform before a masked-word head, and the classification head.

Axes: rows, d.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.config import ClassifierConfig
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.norm import LayerNorm


@dataclass(frozen=True, slots=True, eq=False)
class HeadTransform:
    """The transform of a masked-word head: LayerNorm(activation(x W^T + b)) (Devlin et al. 2018, arXiv:1810.04805)."""

    dense: Linear
    """[d, d], with the activation."""
    norm: LayerNorm

    def __call__(self, x: Tensor) -> Tensor:
        """Return the head's input: x [rows, d] -> [rows, d]."""
        return self.norm(self.dense(x))


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A classification head: W norm(activation(D x + c)) + b."""

    config: ClassifierConfig
    dense: Linear | None
    """[d, d], with its activation unless that is tanh."""
    norm: LayerNorm | None
    out: Linear
    """[label, d]"""
    dtype: torch.dtype
    """The dtype of the layers."""

    def __call__(self, state: Tensor) -> Tensor:
        """Return the logit of each label for one input: its bits are independent of others. state [d] -> [label]."""
        x = state.to(self.dtype)[None]
        if self.dense is not None:
            x = self.dense(x)
        if self.config.dense == "tanh":
            x = x.tanh()
        if self.norm is not None:
            x = self.norm(x)
        return self.out(x)[0]
