"""Weights multiplied by torch's operations or, on a GPU, by our Triton kernel.

They serve devices and dtypes without a kernel of ours, and are the reference for tests. `Fp8Weight` is separate.

Axes: R rows, K inputs, N outputs.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.forms import Weight
from lightwell.model.kernels.int8_rows import Int8Rows, Quantization
from lightwell.model.layers import fixed_shapes
from lightwell.model.quantized import LEAST_GROUP, GroupedRows, QuantizedMatrix


class DenseWeight(Weight):
    """A weight [N, K] in floating point, or quantised to int8 or int4."""

    def __init__(
        self,
        weight: Tensor,
        quantize: Quantization = "none",
        *,
        batch_invariant: bool = True,
        uses_triton: bool = False,
    ) -> None:
        """Keep the weight, quantised as `quantize` says.

        batch_invariant: whether the bits of an output row depend only on its input row. uses_triton: whether
        batch-invariant products of a weight in floating point use our Triton kernel.

        Raises ValueError when a weight to quantise contains infinity or NaN.
        """
        self.num_outputs, self.num_inputs = weight.shape
        self._weight: Tensor | Int8Rows | QuantizedMatrix = weight
        if quantize == "int4" and self.num_inputs % LEAST_GROUP == 0:
            self._weight = QuantizedMatrix.of([GroupedRows.quantize(weight)], weight.dtype)
        elif quantize in ("int8", "int4"):
            self._weight = Int8Rows.quantize(weight)
        self._batch_invariant = batch_invariant
        self.product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
        """The function of x [R, K], weight [N, K] and bias [N] that returns x W^T + bias [R, N]."""
        self.product = fixed_shapes.linear if batch_invariant else F.linear
        if uses_triton and batch_invariant and quantize == "none":
            from lightwell.model.kernels.cuda.matmul import matmul  # imports Triton, which a CPU does not need

            self._weight, self.product = weight.contiguous(), matmul

    @property
    def stored(self) -> str:
        weight = self._weight
        return str(weight.dtype).removeprefix("torch.") if isinstance(weight, Tensor) else weight.stored

    @property
    def numbers(self) -> Tensor | None:
        """Return the weight [N, K] if it is in floating point, else None."""
        return self._weight if isinstance(self._weight, Tensor) else None

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        y = self.product(x, self.to_dense(), bias)
        return y if activation is None else activate(y, activation, batch_invariant=self._batch_invariant)

    def to_dense(self) -> Tensor:
        """Return the weight [N, K]: itself, or a dequantised copy."""
        return self._weight if isinstance(self._weight, Tensor) else self._weight.to_dense()


def activate(x: Tensor, activation: Activation, *, batch_invariant: bool = False) -> Tensor:
    """Return the activation of x (any shape), computed by torch's operator; exact in float64.

    torch uses different code for whole vectors and for the remainder of each thread's part, so the last bits of an
    element depend on its position in x. With `batch_invariant` they don't.
    """
    if batch_invariant:
        return fixed_shapes.whole_vectors(lambda piece: activate(piece, activation), x)
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
