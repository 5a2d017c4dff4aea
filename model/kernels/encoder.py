"""All layers of a BERT-like encoder in one call, and attention within whole texts: `cpu/encoder.cpp`.

Weights are dense, or in int8, with rows that are rounded to 8 bits for each product.

The bits of a text depend only on the text, on any number of threads; in float32 and with WIDEN also at every level of
CPU. They equal the bits of the kernels of the single steps, one after the other.

Axes: T rows of all texts, n of one, d = H D model width, H heads of D numbers, ff width of the mlp.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lightwell.model.kernels.checks import address_of, check_axes, check_numbers, check_tensor
from lightwell.model.kernels.library import fields, kernels
from lightwell.model.kernels.products import WIDEN, Arithmetic, Form, LaidWeight, check_arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class EncoderLayer:
    """A layer: y = norm(y + out(attention(qkv(y)))), then y = last_norm(y + down(gelu(up(y)))), of rows of one dtype.

    Weights are `BlockedWeight`s in this dtype, or all `Int8BlockedWeight`s with `int8_activations`.
    """

    qkv: LaidWeight
    """[3 d, d]: queries, keys and values of all heads."""
    qkv_bias: Tensor
    out: LaidWeight
    """[d, d]"""
    out_bias: Tensor
    norm: Tensor
    """The norm's weight, [d], like its bias."""
    norm_bias: Tensor
    up: LaidWeight
    """[ff, d]"""
    up_bias: Tensor
    down: LaidWeight
    """[d, ff]"""
    down_bias: Tensor
    last_norm: Tensor
    """The norm's weight, [d], like its bias."""
    last_norm_bias: Tensor


class _CEncoderLayer(ctypes.Structure):
    """`EncoderLayer` of encoder.cpp."""

    _fields_ = fields("p", *EncoderLayer.__slots__)


class _CEncoderShape(ctypes.Structure):
    """`EncoderShape` of encoder.cpp."""

    _fields_ = (*fields("l", "num_layers", "num_heads", "dim", "ff"), *fields("f", "scale", "eps"))


class Encoder:
    """The layers of one encoder."""

    def __init__(
        self,
        layers: Sequence[EncoderLayer],
        *,
        num_heads: int,
        scale: float,
        eps: float,
        arithmetic: Arithmetic = WIDEN,
    ) -> None:
        """Check and keep the layers. scale: of scores; eps: of norms; arithmetic: of bfloat16 (with
        weights in int8, of attention).
        """
        if not layers:
            raise ValueError("layers is empty; at least one is accepted")
        check_arithmetic(arithmetic)
        first = layers[0]
        self._width, self._dtype, ff = first.out.num_outputs, first.out.row_dtype, first.up.num_outputs
        self._in_bytes = first.out.form == Form.INT8_BYTES
        if num_heads < 1 or self._width % num_heads:
            raise ValueError(f"num_heads is {num_heads}; divisors of the width {self._width} are accepted")
        self._layers = list(layers)
        """The tensors at the addresses in `_table`."""
        self._table = (_CEncoderLayer * len(layers))(*(self._addresses(layer, ff) for layer in layers))
        self._shape = _CEncoderShape(
            num_layers=len(layers), num_heads=num_heads, dim=self._width // num_heads, ff=ff, scale=scale, eps=eps
        )
        self._kind = check_numbers("norm", first.norm, 1)
        self._extra = (int(arithmetic),) if self._dtype == torch.bfloat16 else ()

    def _addresses(self, layer: EncoderLayer, ff: int) -> _CEncoderLayer:
        """Check a layer and return the addresses of its tensors."""
        d, found = self._width, _CEncoderLayer()
        for name, shape in {"qkv": (3 * d, d), "out": (d, d), "up": (ff, d), "down": (d, ff)}.items():
            weight: LaidWeight = getattr(layer, name)
            own_shape = weight.num_outputs, weight.num_inputs
            in_bytes, is_dense = weight.form == Form.INT8_BYTES, weight.packed.dtype == self._dtype
            if own_shape != shape or not (in_bytes if self._in_bytes else is_dense) or weight.row_dtype != self._dtype:
                accepted = f"{'int8' if self._in_bytes else self._dtype} {list(shape)} for rows of {self._dtype}"
                raise ValueError(f"{name} is {weight.stored} {list(own_shape)}; {accepted} is accepted")
            setattr(found, name, weight.packed.data_ptr())
            bias = f"{name}_bias"
            setattr(found, bias, address_of(bias, getattr(layer, bias), (self._dtype,), shape[:1]))
        for name in ("norm", "norm_bias", "last_norm", "last_norm_bias"):
            setattr(found, name, address_of(name, getattr(layer, name), (self._dtype,), (d,)))
        return found

    def __call__(self, stream: Tensor, first_rows: Tensor, *, first_alone: bool = False) -> None:
        """Run all layers on the residual stream [T, d], in place.

        first_rows [texts + 1], int64: the first row of each text, and the end of the last one; rows outside the texts
        are unchanged. first_alone: compute only the first row of each text in the last layer, and leave arbitrary
        numbers in the other rows.
        """
        check_axes("stream", stream, (self._dtype,), 2)
        check_tensor("stream", stream, (self._dtype,), (len(stream), self._width))
        _check_first_rows(first_rows, len(stream))
        kernels().call(
            f"encode_{self._kind}",
            "pppplll" + "l" * len(self._extra),
            ctypes.addressof(self._table),
            ctypes.addressof(self._shape),
            stream.data_ptr(),
            first_rows.data_ptr(),
            len(first_rows) - 1,
            int(first_alone),
            int(self._in_bytes),
            *self._extra,
        )


def attend_texts(qkv: Tensor, first_rows: Tensor, scale: float | None = None, arithmetic: Arithmetic = WIDEN) -> Tensor:
    """Return softmax(scale q K^T) V, where each row sees all rows of its text: qkv [T, 3, H, D] -> [T, H, D].

    first_rows: as in `Encoder`, with every row in a text. scale: by default 1 / sqrt(D).
    """
    kind = check_numbers("qkv", qkv, 4)
    num_rows, _, num_heads, dim = qkv.shape
    check_tensor("qkv", qkv, (qkv.dtype,), (num_rows, 3, num_heads, max(dim, 1)))
    _check_first_rows(first_rows, num_rows)
    mixed = qkv.new_zeros(num_rows, num_heads, dim)
    extra = (int(arithmetic),) if qkv.dtype == torch.bfloat16 else ()
    addresses = qkv.data_ptr(), mixed.data_ptr(), first_rows.data_ptr()
    sizes = len(first_rows) - 1, num_heads, dim
    scale = dim**-0.5 if scale is None else scale
    kernels().call(f"attend_texts_{kind}", "ppplllf" + "l" * len(extra), *addresses, *sizes, scale, *extra)
    return mixed


def _check_first_rows(first_rows: Tensor, num_rows: int) -> None:
    check_axes("first_rows", first_rows, (torch.int64,), 1)
    bounds = first_rows.tolist()
    if not bounds or bounds[0] < 0 or bounds[-1] > num_rows or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(f"first_rows is {bounds}; increasing numbers from 0 to {num_rows} are accepted")
