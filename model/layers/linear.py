"""The one place where a network multiplies by its weights: by our kernels where they can, by torch everywhere else.

Knows activations; refuses to know what a layer means, and leaves the forms of a weight to `model.kernels.forms`.

With our kernels a row of the answer has the same bits whatever rows stand beside it, which the answers' independence of
the batch rests on. Activations are done inside the product, in registers, the same way for each element. By torch,
batch invariance costs more: products and activations then go through `fixed_shapes`.

Axes: rows, in, out.
"""

import torch

from model.config import Activation
from model.kernels.choice import why_not_native
from model.kernels.forms import lay_weight
from model.kernels.int8_rows import Quantization
from model.kernels.weight import Weight
from model.layers.dense_weight import DenseWeight


class Linear:
    """y = activation(x W^T + b)."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        native: bool = True,
        batch_invariant: bool = True,
        quantize: Quantization = "none",
        activation: Activation | None = None,
        keep_dtype: bool = False,
    ) -> None:
        """weight [out, in], bias [out]. `native` is a wish: it is followed where our kernels can.

        batch_invariant: whether the bits of a product's row may depend on that row alone; with our kernels they do in
        any case. keep_dtype: as of `lay_weight`. Where kernels or int8 serve, the weight is copied; drop the original,
        `to_dense` gives it back: bit for bit unless it is quantised.

        Raises ValueError when a weight to be quantised has a number that is not finite.
        """
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.activation: Activation | None = activation
        self.native = native and why_not_native(weight.dtype, weight.device) is None
        """Whether our kernels make the products."""
        self.weight: Weight
        if self.native:
            self.weight = lay_weight(weight, quantize, keep_dtype=keep_dtype)
        else:
            self.weight = DenseWeight(weight, quantize, batch_invariant=batch_invariant)

    @classmethod
    def take(
        cls,
        weights: dict[str, torch.Tensor],
        name: str,
        *,
        batch_invariant: bool,
        quantize: Quantization = "none",
        activation: Activation | None = None,
        keep_dtype: bool = False,
    ) -> "Linear":
        """Build from `{name}.weight` and, if there is one, `{name}.bias`; both leave the dict, freeing the originals.

        Raises KeyError when there is no such weight.
        """
        weight, bias = weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None)
        return cls(
            weight,
            bias,
            batch_invariant=batch_invariant,
            quantize=quantize,
            activation=activation,
            keep_dtype=keep_dtype,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] -> [rows, out]."""
        return self.weight.multiply(x.contiguous(), self.bias, self.activation)

    def before_activation(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b: x [rows, in] -> [rows, out], from the same weight."""
        return self.weight.multiply(x.contiguous(), self.bias)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T alone: x [rows, in] -> [rows, out], from the same weight."""
        return self.weight.multiply(x.contiguous())

    def find_largest(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return where the largest number of each row of the answer to x [rows, in] first stands, int64 [rows], and
        that number, float32 [rows]; None where it takes the answer itself to tell.
        """
        if self.bias is not None or self.activation is not None:
            return None
        return self.weight.find_largest(x.contiguous())

    def to_dense(self) -> torch.Tensor:
        """The weight [out, in], as it was given or as int8 stands for it; a copy where it is laid or quantised."""
        return self.weight.to_dense()
