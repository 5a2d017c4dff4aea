"""Computes the classification head: logits of one pooled state. It knows no texts and no labels' names.

Axes: d.
"""

import torch
from torch import Tensor

from model.config import ClassifierConfig
from model.layers.linear import Linear
from model.layers.norm import LayerNorm


class Classifier:
    """A head: W norm(activation(D x + c)) + b."""

    def __init__(
        self, config: ClassifierConfig, dense: Linear | None, norm: LayerNorm | None, out: Linear, dtype: torch.dtype
    ) -> None:
        """Keep the layers, of `dtype`. dense [d, d] has its activation, unless it is tanh; out [label, d]."""
        self.config = config
        self.dense = dense
        self.norm = norm
        self.out = out
        self.dtype = dtype

    def __call__(self, state: Tensor) -> Tensor:
        """Return a number for each label: state [d] -> [label]. One input at a time: its bits depend on nothing
        else.
        """
        x = state.to(self.dtype)[None]
        if self.dense is not None:
            x = self.dense(x)
        if self.config.dense == "tanh":
            x = x.tanh()
        if self.norm is not None:
            x = self.norm(x)
        return self.out(x)[0]
