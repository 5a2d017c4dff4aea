"""The one place where matrices are multiplied by weights: packed by oneDNN on a CPU, plain everywhere else.

Knows torch's private oneDNN operators, which no other file may call; refuses to know what a layer means.

Why packed: it is several times faster than `F.linear` on the CPUs we measured, and a row of the answer has the same
bits whatever rows stand beside it, which the answers' independence of the batch rests on. That holds because

- every row of an oneDNN product is summed over `in` in one order, fixed by the shape of the weight, as long as
  there are at least two rows (one row alone takes a matrix-vector kernel, which cuts long sums differently: see
  `_PAIR_FROM`), and no AMX (see `keep_rows_alike`);
- activations and the gate's product are done inside the kernel, on registers, the same way for each element.
  torch's own silu, gelu and tanh are not safe: they treat whole vectors and the last few elements of each thread's
  share with different code, so an element's last bit depends on where in the batch it falls.

Axes: rows, in, out.
"""

import os
from typing import Literal

import torch
import torch.nn.functional as F

from model.config import Activation

_PAIR_FROM = 1025
"""One row with more inputs than 1024 was measured to differ from the same row among others, in float32 and bfloat16
(torch 2.13, AVX-512); it is computed twice over, side by side. Doing so for every row costs 15 % of a single stream's
speed, so it is done only where it is needed, and the tests look for rows that differ on the machine they run on."""

_POST_OPS: dict[Activation | Literal["none"], tuple[str, str]] = {
    "none": ("none", ""),
    "silu": ("swish", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
"""oneDNN's name and variant of each activation."""


def keep_rows_alike() -> None:
    """Forbid oneDNN the matrix units (AMX), unless the environment names its instructions already.

    With them the sum of a bfloat16 row depends on how many rows stand beside it (torch 2.13, Sapphire Rapids: up to 32
    rows differ from more). Without them a product of one or two rows takes as long, of 8 two to three times, of 128
    about ten times (benchmarks/NOTES.md). Only what is set before oneDNN's first call counts.
    """
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN packs weights of this dtype on this device."""
    operators = torch.ops.mkldnn
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not (hasattr(operators, "_linear_pointwise") and hasattr(operators, "_reorder_linear_weight")):
        return False
    if dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return dtype == torch.float32


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


class Linear:
    """y = activation(x W^T + b), optionally times another tensor."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        packed: bool,
        activation: Activation | None = None,
    ) -> None:
        """weight [out, in], bias [out]. `packed` is a wish: it is followed where `can_pack` says so.

        A packed weight is a copy; drop the original, `to_dense` gives it back bit for bit.
        """
        self.out_features, self.in_features = weight.shape
        if packed:
            keep_rows_alike()
        self.packed = packed and can_pack(weight.dtype, weight.device)
        self.bias = bias
        self.activation: Activation | None = activation
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if self.packed else weight
        self._post_op, self._variant = _POST_OPS[activation or "none"]

    @classmethod
    def take(
        cls, weights: dict[str, torch.Tensor], name: str, *, packed: bool, activation: Activation | None = None
    ) -> "Linear":
        """Build from `{name}.weight` and, if there is one, `{name}.bias`; both leave the dict, freeing the originals.

        Raises KeyError when there is no such weight.
        """
        return cls(
            weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None), packed=packed, activation=activation
        )

    def __call__(self, x: torch.Tensor, *, times: torch.Tensor | None = None) -> torch.Tensor:
        """x [rows, in] -> [rows, out]; `times` [rows, out] multiplies the result, within the kernel when packed."""
        if not self.packed:
            y = F.linear(x, self._weight, self.bias)
            y = y if self.activation is None else activate(y, self.activation)
            return y if times is None else y * times
        if x.shape[0] == 1 and self.in_features >= _PAIR_FROM:
            return self._multiply(x.repeat(2, 1), None if times is None else times.repeat(2, 1))[:1]
        return self._multiply(x, times)

    def before_activation(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b: x [rows, in] -> [rows, out], from the same packed weight."""
        return self._plain(x, self.bias)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T alone: x [rows, in] -> [rows, out], from the same packed weight."""
        return self._plain(x, None)

    def _plain(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not self.packed:
            return F.linear(x, self._weight, bias)
        twice = x.shape[0] == 1 and self.in_features >= _PAIR_FROM
        x = x.repeat(2, 1) if twice else x.contiguous()
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
        return y[:1] if twice else y

    def _multiply(self, x: torch.Tensor, times: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous()  # oneDNN refuses other layouts
        operator = torch.ops.mkldnn._linear_pointwise
        if times is None or self.activation is not None:
            y: torch.Tensor = operator(x, self._weight, self.bias, self._post_op, [], self._variant)
            return y if times is None else y * times  # a product is rounded correctly everywhere, so it is safe
        product: torch.Tensor = operator.binary(x, times.contiguous(), self._weight, self.bias, "mul")
        return product

    def to_dense(self) -> torch.Tensor:
        """The weight [out, in], as it was given; a copy when packed."""
        return self._weight.to_dense() if self.packed else self._weight
