"""Computes what comes before the head of an encoder that fills in masked words. It knows no vocabulary.

Axes: rows, d.
"""

from torch import Tensor

from model.layers.linear import Linear
from model.layers.norm import LayerNorm


class HeadTransform:
    """The transform of a masked-word head: LayerNorm(activation(x W^T + b)) (Devlin et al. 2018, arXiv:1810.04805)."""

    def __init__(self, dense: Linear, norm: LayerNorm) -> None:
        """Keep the layers. dense [d, d] has the activation."""
        self.dense = dense
        self.norm = norm

    def __call__(self, x: Tensor) -> Tensor:
        """Return what the head multiplies: x [rows, d] -> [rows, d]."""
        return self.norm(self.dense(x))
