"""Multiplies by a network's weights, all in one place: by our kernels where they can, by torch everywhere else.

It knows activations, but not what a layer means, and leaves the forms of a weight to `model.kernels.forms`.

With our kernels a row of the answer has the same bits whatever rows are next to it; that the answers don't depend on
the batch rests on this. Activations are done inside the product, in registers, the same way for each element. By torch,
batch invariance costs more: on a card products then go through a kernel of ours, and elsewhere products and activations
through `fixed_shapes`.

Axes: rows, in, out.
"""

from torch import Tensor

from model.config import Activation
from model.kernels.choice import AUTO, KernelConfig
from model.kernels.forms import Weight, lay_weight
from model.kernels.int8_rows import Quantization
from model.kernels.library import note_progress
from model.layers.dense_weight import DenseWeight
from model.layers.fp8_weight import Fp8Weight
from model.quantized import QuantizedMatrix


class Linear:
    """A linear layer: y = activation(x W^T + b)."""

    def __init__(
        self,
        weight: Tensor | QuantizedMatrix,
        bias: Tensor | None = None,
        *,
        kernels: KernelConfig = AUTO,
        batch_invariant: bool = True,
        quantize: Quantization = "none",
        activation: Activation | None = None,
        keep_dtype: bool = False,
    ) -> None:
        """Keep weight [out, in] and bias [out]. `kernels` says what computes the products.

        batch_invariant: whether the bits of a product's row may depend on that row alone; with our kernels they do in
        any case. keep_dtype: the same as in `lay_weight`. With our kernels, int8 or fp8 the weight is copied; drop the
        original, `to_dense` returns it: bit for bit unless it is quantised here. A weight that is stored quantised
        needs our kernels.

        Raises ValueError when a weight to be quantised has a number that is not finite, or our kernels are to compute
        with fp8.
        """
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.activation: Activation | None = activation
        self.native = kernels.why_not_native(weight.dtype, weight.device) is None
        """Whether our kernels compute the products."""
        self.weight: Weight
        if self.native:
            self.weight = lay_weight(
                weight,
                quantize,
                arithmetic=kernels.bfloat16_arithmetic(),
                keep_dtype=keep_dtype,
                int8_activations=kernels.activations == "int8",
            )
            return
        assert isinstance(weight, Tensor)
        if quantize == "fp8":
            uses_triton = kernels.uses_triton(weight.dtype, weight.device)
            self.weight = Fp8Weight(weight, batch_invariant=batch_invariant, uses_triton=uses_triton)
        elif batch_invariant and quantize == "none" and kernels.uses_triton(weight.dtype, weight.device):
            from model.layers.triton_weight import TritonWeight  # here: a CPU has no need of Triton

            self.weight = TritonWeight(weight)
        else:
            self.weight = DenseWeight(weight, quantize, batch_invariant=batch_invariant)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the layer's output: x [rows, in] -> [rows, out]."""
        note_progress()
        return self.weight.multiply(x.contiguous(), self.bias, self.activation)

    def before_activation(self, x: Tensor) -> Tensor:
        """Return x W^T + b: x [rows, in] -> [rows, out], from the same weight."""
        return self.weight.multiply(x.contiguous(), self.bias)

    def product(self, x: Tensor) -> Tensor:
        """Return x W^T alone: x [rows, in] -> [rows, out], from the same weight."""
        return self.weight.multiply(x.contiguous())

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number in each row of the answer to x [rows, in], int64 [rows], and
        that number, float32 [rows], or None if that takes the answer itself.
        """
        if self.bias is not None or self.activation is not None:
            return None
        return self.weight.find_largest(x.contiguous())

    def to_dense(self) -> Tensor:
        """Return the weight [out, in], as it was given or dequantised; a copy if it is stored in blocks or
        quantised.
        """
        return self.weight.to_dense()
