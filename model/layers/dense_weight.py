"""Multiplies by a weight with plain torch operations: on a GPU (`model.layers.fp8_weight` apart), in dtypes that our
kernels do not support, and as the slow, obvious version that they are tested against.

Axes: R rows, K inputs, N outputs.
"""

import torch.nn.functional as F
from torch import Tensor

from model.config import Activation
from model.kernels.forms import Weight
from model.kernels.int8_rows import Int8Rows, Quantization
from model.layers import fixed_shapes
from model.quantized import LEAST_GROUP, GroupedRows, QuantizedMatrix


class DenseWeight(Weight):
    """A weight [N, K] as it was given, or quantised to int8 or int4; fp8 has a class of its own."""

    def __init__(self, weight: Tensor, quantize: Quantization = "none", *, batch_invariant: bool = True) -> None:
        """Keep the weight. batch_invariant: whether the bits of a row of a product may depend on that row alone.

        Raises ValueError when a weight to be quantised has a number that is not finite.
        """
        self.num_outputs, self.num_inputs = weight.shape
        self._weight: Tensor | Int8Rows | QuantizedMatrix = weight
        if quantize == "int4" and self.num_inputs % LEAST_GROUP == 0:
            self._weight = QuantizedMatrix.of([GroupedRows.quantize(weight)], weight.dtype)
        elif quantize in ("int8", "int4"):
            self._weight = Int8Rows.quantize(weight)
        self._batch_invariant = batch_invariant

    @property
    def stored(self) -> str:
        weight = self._weight
        return str(weight.dtype).removeprefix("torch.") if isinstance(weight, Tensor) else weight.stored

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        y = (fixed_shapes.linear if self._batch_invariant else F.linear)(x, self.to_dense(), bias)
        if activation is None:
            return y
        return (activate_in_any_batch if self._batch_invariant else activate)(y, activation)

    def to_dense(self) -> Tensor:
        """Return the weight [N, K]: itself, or a copy if it is quantised."""
        return self._weight if isinstance(self._weight, Tensor) else self._weight.to_dense()


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Return the activation by torch's own operator: exact in float64.

    torch computes whole vectors and the last few elements of each thread's share with different code, so an element's
    last bit depends on where in the batch it falls; `activate_in_any_batch` is free of that.
    """
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)


def activate_in_any_batch(x: Tensor, activation: Activation) -> Tensor:
    """Return the same with bits that do not depend on a number's place in x."""
    return fixed_shapes.whole_vectors(lambda piece: activate(piece, activation), x)
