"""Multiplies by a weight with a card's own kernel, where a row shall have the same bits whatever rows are next to it.

Axes: R rows, K inputs, N outputs.
"""

from torch import Tensor

from model.config import Activation
from model.kernels.cuda.matmul import matmul
from model.kernels.forms import Weight
from model.layers.dense_weight import activate_in_any_batch


class TritonWeight(Weight):
    """A weight [N, K] as it was given."""

    def __init__(self, weight: Tensor) -> None:
        """Keep the weight, contiguous."""
        self.num_outputs, self.num_inputs = weight.shape
        self._weight = weight.contiguous()

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), the sum rounded before the activation: x [R, K] -> [R, N]."""
        y = matmul(x, self._weight, bias)
        return y if activation is None else activate_in_any_batch(y, activation)

    @property
    def stored(self) -> str:
        return str(self._weight.dtype).removeprefix("torch.")

    def to_dense(self) -> Tensor:
        """Return the weight [N, K] itself."""
        return self._weight
