"""The one place where matrices are multiplied by weights: packed by oneDNN on a CPU, in torch everywhere else.

Knows activations; refuses to know what a layer means, and leaves packing to `packed_weight` and `int8_weight`.

Why packed: it is several times faster than `F.linear` on the CPUs we measured, and a row of the answer has the same
bits whatever rows stand beside it, which the answers' independence of the batch rests on. Activations are done inside
the kernel, on registers, the same way for each element. torch's own silu, gelu and tanh are not safe: they treat whole
vectors and the last few elements of each thread's share with different code, so an element's last bit depends on where
in the batch it falls. Where weights cannot be packed, batch invariance costs more: products and activations then go
through `fixed_shapes`.

Axes: rows, in, out.
"""

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from model.config import Activation
from model.layers import fixed_shapes
from model.layers.arrays import why_not_compiled
from model.layers.few_rows import FewRows, FewRowsWeight, PackedBlocks, blocks_of, few_rows_of
from model.layers.int8_rows import Int8Rows, Quantization
from model.layers.narrow_weight import NarrowWeight, can_narrow
from model.layers.packed_weight import PackedWeight, PostOp, can_pack, pack
from model.layers.tile_weight import TileWeight

if TYPE_CHECKING:
    from model.layers.int8_weight import Int8Weight

_POST_OPS: dict[Activation | Literal["none"], PostOp] = {
    "none": ("none", ""),
    "silu": ("swish", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
"""oneDNN's name and variant of each activation."""


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation by torch's own operator: exact in float64, but not free of the batch (see the top of the file)."""
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)


def activate_in_any_batch(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The same with bits that do not depend on where in x a number stands."""
    return fixed_shapes.whole_vectors(lambda piece: activate(piece, activation), x)


class Linear:
    """y = activation(x W^T + b)."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        packed: bool = True,
        batch_invariant: bool = True,
        quantize: Quantization = "none",
        activation: Activation | None = None,
        tiled: bool = False,
    ) -> None:
        """weight [out, in], bias [out]. `packed` is a wish: it is followed where the weight's dtype and device allow.

        batch_invariant: whether the bits of a product's row may depend on that row alone. A packed or quantised weight
        is a copy; drop the original, `to_dense` gives it back: bit for bit unless it is quantised. tiled: packed as
        `TileWeight`, which the caller knows this CPU, the shape and the activation to allow.

        Raises ValueError when a weight to be quantised has a number that is not finite.
        """
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.activation: Activation | None = activation
        self._weight: torch.Tensor | Int8Rows | PackedWeight = weight
        self._packed: PackedWeight | None = None
        self.blocks: PackedBlocks | None = None
        """Where the rows of the packed weight can be read, as they were given."""
        self.few_rows: FewRows | None = None
        """How compiled kernels may multiply few rows by the packed weight, with the bits of `__call__`."""
        self.tiles: TileWeight | None = None
        """The packed weight, where it is `tiled`."""
        self.narrow: NarrowWeight | None = None
        """The packed weight, where it is float32 and bfloat16 holds all its numbers."""
        self.int8: Int8Weight | None = None
        """The packed weight, where it is quantised and this CPU has what makes its products fast."""
        if quantize == "int8":
            self._weight = Int8Rows.quantize(weight)
            int8 = _pack_int8(self._weight) if packed else None
            self.int8 = int8 if int8 is not None and int8.is_fast else None
            self._packed = int8
        elif tiled:
            self.tiles = TileWeight(weight)
            self._packed = self.tiles
        elif packed and activation is None and can_narrow(weight):
            self.narrow = NarrowWeight(weight)
            self._packed = self.narrow
        elif packed and can_pack(weight.dtype, weight.device):
            self._packed = pack(weight, batch_invariant=batch_invariant)
            self.blocks = blocks_of(self._packed, weight)
            self.few_rows = few_rows_of(self._packed, weight)
            if self.few_rows is not None:
                self._packed = FewRowsWeight(self._packed, self.few_rows, weight.dtype)
        self._weight = self._packed or self._weight
        self._post_op = _POST_OPS[activation or "none"]
        self._batch_invariant = batch_invariant

    @classmethod
    def take(
        cls,
        weights: dict[str, torch.Tensor],
        name: str,
        *,
        batch_invariant: bool,
        quantize: Quantization = "none",
        activation: Activation | None = None,
        tiled: bool = False,
    ) -> "Linear":
        """Build from `{name}.weight` and, if there is one, `{name}.bias`; both leave the dict, freeing the originals.

        Raises KeyError when there is no such weight.
        """
        weight, bias = weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None)
        return cls(weight, bias, batch_invariant=batch_invariant, quantize=quantize, activation=activation, tiled=tiled)

    @property
    def packed(self) -> bool:
        """Whether products are made with a packed weight."""
        return self._packed is not None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] -> [rows, out]."""
        if self._packed is None:
            y = self._without_activation(x, self.bias)
            return y if self.activation is None else self._activated(y, self.activation)
        return self._packed.multiply(x.contiguous(), self.bias, self._post_op)  # oneDNN refuses other layouts

    def before_activation(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b: x [rows, in] -> [rows, out], from the same packed weight."""
        return self._without_activation(x, self.bias)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T alone: x [rows, in] -> [rows, out], from the same packed weight."""
        return self._without_activation(x, None)

    def _without_activation(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._packed is None:
            return (fixed_shapes.linear if self._batch_invariant else F.linear)(x, self.to_dense(), bias)
        return self._packed.multiply(x.contiguous(), bias, _POST_OPS["none"])

    def _activated(self, y: torch.Tensor, activation: Activation) -> torch.Tensor:
        return (activate_in_any_batch if self._batch_invariant else activate)(y, activation)

    def to_dense(self) -> torch.Tensor:
        """The weight [out, in], as it was given or as int8 stands for it; a copy when packed or quantised."""
        return self._weight if isinstance(self._weight, torch.Tensor) else self._weight.to_dense()


def _pack_int8(rows: Int8Rows) -> "Int8Weight | None":
    """None where no kernels are compiled for them."""
    if why_not_compiled(rows.dtype, rows.values.device) is not None:
        return None
    from model.layers.int8_weight import Int8Weight  # here: a GPU server needs no compiler

    return Int8Weight(rows)
