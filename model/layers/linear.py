"""Linear layers: products with a network's weights, by our kernels where they support them, else by torch or Triton.

Our CPU kernels compute each row with the same bits in any batch, and apply activations inside the product. In torch,
batch invariance costs time: on a GPU products use our Triton kernel; elsewhere products and activations use
`fixed_shapes`.

Axes: rows, in, out.
"""

from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kernels.forms import Weight, lay_weight
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kernels.library import note_progress
from lightwell.model.layers.dense_weight import DenseWeight
from lightwell.model.layers.fp8_weight import Fp8Weight
from lightwell.model.layers.triton_grouped_weight import TritonGroupedWeight, lay_on_card
from lightwell.model.quantized import QuantizedMatrix


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
        """Keep weight [out, in] and bias [out].

        kernels: the kernels that compute the products. batch_invariant: whether the bits of an output row depend only
        on its input row; with our CPU kernels they always do. keep_dtype: the option of `lay_weight`. Our CPU kernels,
        int8 and fp8 copy the weight: drop the original, `to_dense` returns it, bit for bit unless it was quantised
        here. A `QuantizedMatrix` requires our CPU or Triton kernels.

        Raises ValueError when a weight to quantise contains infinity or NaN, and for fp8 with our CPU
        kernels.
        """
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.activation: Activation | None = activation
        self.native = kernels.why_not_native(weight.dtype, weight.device) is None
        """Whether our CPU kernels compute the products."""
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
        uses_triton = kernels.uses_triton(weight.dtype, weight.device)
        if uses_triton and (isinstance(weight, QuantizedMatrix) or quantize in ("int8", "int4")):
            laid = lay_on_card(weight, quantize, batch_invariant=batch_invariant)
            if isinstance(laid, TritonGroupedWeight):
                self.weight = laid
                return
            weight, quantize = laid, "none"
        assert isinstance(weight, Tensor)
        if quantize == "fp8":
            self.weight = Fp8Weight(weight, batch_invariant=batch_invariant, uses_triton=uses_triton)
        else:
            self.weight = DenseWeight(weight, quantize, batch_invariant=batch_invariant, uses_triton=uses_triton)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the layer's output: x [rows, in] -> [rows, out]."""
        note_progress()
        return self.weight.multiply(x.contiguous(), self.bias, self.activation)

    def before_activation(self, x: Tensor) -> Tensor:
        """Return x W^T + b: x [rows, in] -> [rows, out], with the stored weight."""
        return self.weight.multiply(x.contiguous(), self.bias)

    def product(self, x: Tensor) -> Tensor:
        """Return x W^T, without the bias: x [rows, in] -> [rows, out], with the stored weight."""
        return self.weight.multiply(x.contiguous())

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest output of each row of x [rows, in], int64 [rows], and that output,
        float32 [rows]. Return None if the weight has no faster way than the whole product.
        """
        if self.bias is not None or self.activation is not None:
            return None
        return self.weight.find_largest(x.contiguous())

    def to_dense(self) -> Tensor:
        """Return the weight [out, in], dequantised; a copy if it is stored in blocks or quantised."""
        return self.weight.to_dense()
