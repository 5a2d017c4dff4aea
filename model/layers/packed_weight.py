"""A weight matrix packed by oneDNN, and products with it. Knows torch's private oneDNN operators, which no other file
may call; refuses to know what a layer is.

What batch invariance asks: the bits of a row of the product may depend on that row alone. oneDNN picks its kernel and
how it cuts the sum over `in` by the number of rows, so that has to be prevented:

- `InnerProductWeight`, oneDNN's own packing. Without matrix units every row is summed in one order as soon as there are
  two rows (see `_PAIR_FROM`). With AMX it is not: 33 and more rows of a bfloat16 product are summed in pieces of `in`
  that fit the first cache, as many as other rows leave room for (oneDNN 3.12).
- `WideInnerProductWeight`, the same in blocks of 64 columns, which are what oneDNN likes best for a single row. Sums of
  up to 1024 then are not cut, unless there are too few columns for the threads.
- `ConvolutionWeight`, the packing for a 1x1 convolution over the rows as pixels. That kernel adds up all of `in` in one
  accumulator, however many pixels there are. So does the inner product of fewer rows with weights packed like this,
  which is faster, unless it has more threads than columns to deal out: then they share each sum (see `_few_rows`).

`pack` takes the first that is seen to work on this machine. Axes: rows, in, out.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F

from model.layers.kept_answers import kept

logger = logging.getLogger(__name__)

_PAIR_FROM = 1025
"""One row with more inputs than 1024 was measured to differ from the same row among others, in float32 and bfloat16
(torch 2.13, AVX-512); it is computed twice over, side by side. Doing so for every row costs 15 % of a single stream's
speed, so it is done only where it is needed, and the tests look for rows that differ on the machine they run on."""

_INPUTS_MULTIPLE, _LEAST_INPUTS, _LEAST_ROWS = 32, 64, 8
"""A tile holds 32 of `in`; a rest, a sum of one tile and a convolution of up to 4 pixels are left to other kernels,
which add up in other orders. So all three are padded with zeros."""

_MANY_PIXELS = (64, 256)
"""Images, and pixels of each, that weights are packed for: so many that oneDNN's choice of a layout for them, blocks of
64 columns, was the same for 1 to 64 threads. For fewer pixels it may choose another, and lay the weights out anew for
every product, which takes a second where they are large (oneDNN 3.12); see `_num_images`."""

_GOOD_PIXELS, _MOST_IN_IMAGE, _LEAST_PIXELS = (256, 512), 3 << 18, 64
"""Pixels of an image, and numbers in it, with which products were fastest, by up to a half, where both can be had; and
pixels that are worth an image of their own at all."""

_PROBED_SHAPES = ((704, 480), (3072, 64))
_PROBED_ROWS = (1, 2, 3, 8, 16, 20, 28, 30, 31, 32, 33, 40, 48, 64, 100, 128, 192, 256, 512)
_FEW, _LONG_SUM, _FEW_OF_LONG_SUMS = 256, 1024, 32
"""Up to so many rows the inner product of a `ConvolutionWeight` may be taken; the convolution is as fast from there.
Sums of more than 1024 are cut for some numbers of rows: of 1 to 300 none up to 1376 of `in`, 117 for 2048, 50 for 8192.
"""
_MOST_PROBED_OUTPUTS = 4096
"""A wider weight is probed as one of so many columns, to spare memory; either has columns enough for every thread."""

PostOp = tuple[str, str]
"""oneDNN's name and variant of what is applied to each element of a product."""

NO_POST_OP: PostOp = ("none", "")


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


class PackedWeight(Protocol):
    """A packed copy of a weight [out, in]."""

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """post_op(x W^T + bias): x [rows, in], contiguous, -> [rows, out]."""

    def to_dense(self) -> torch.Tensor:
        """The weight [out, in] as it was given, bit for bit: a copy."""


class InnerProductWeight:
    """Packed for oneDNN's inner product: the fastest, and with AMX not batch invariant."""

    def __init__(self, weight: torch.Tensor, *, pairs: bool = True, rows: int | None = None) -> None:
        """pairs: whether a single row of long sums is computed twice over, so that it equals itself among others.

        rows: how many the layout is to suit best, by oneDNN's own judgement; None leaves that to torch.
        """
        self._pairs = pairs and weight.shape[1] >= _PAIR_FROM
        self._weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        twice = self._pairs and x.shape[0] == 1
        x = x.repeat(2, 1) if twice else x
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, post_op[0], [], post_op[1])
        return y[:1] if twice else y

    def memory(self) -> tuple[int, int] | None:
        """Address and bytes of what oneDNN made of the weight; None where torch does not tell."""
        return _memory(self._weight)

    def to_dense(self) -> torch.Tensor:
        dense: torch.Tensor = self._weight.to_dense()
        return dense


class WideInnerProductWeight(InnerProductWeight):
    """In blocks of 64 columns: batch invariant with AMX too, where `_wide_is_invariant`."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight, rows=1)


class ConvolutionWeight:
    """Packed for a 1x1 convolution: batch invariant with AMX too."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._outputs, self._inputs = weight.shape
        self._padding = max(-self._inputs % _INPUTS_MULTIPLE, _LEAST_INPUTS - self._inputs)
        self._filters = _pack_filters(F.pad(weight, (0, self._padding)), *_MANY_PIXELS)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        rows, threads = x.shape[0], torch.get_num_threads()
        few = _few_rows(self._inputs, self._outputs, x.dtype, threads)
        if rows <= few or not rows:
            return self.inner_product(x, bias, post_op)
        if images := _num_images(rows, self._inputs + self._padding, self._outputs, x.dtype, threads):
            return self.convolution(x, bias, post_op, images)
        if few:
            return torch.cat([self.inner_product(part, bias, post_op) for part in torch.split(x, few)])
        return self.convolution(x, bias, post_op)  # fewer columns than threads would have: quickly laid out anew

    def inner_product(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """`multiply` for up to `_few_rows`."""
        x = F.pad(x, (0, self._padding)) if self._padding else x
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._filters, bias, post_op[0], [], post_op[1])
        return y

    def convolution(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp, images: int = 1) -> torch.Tensor:
        """`multiply` for any number of rows but 0, as pixels of so many images, which must divide it."""
        padded_rows = max(0, _LEAST_ROWS - len(x))
        x = F.pad(x, (0, self._padding, 0, padded_rows)) if self._padding or padded_rows else x
        rows, channels = x.shape
        pixels = rows // images
        y: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            x.as_strided((images, channels, 1, pixels), (pixels * channels, 1, rows * channels, channels)),
            *(self._filters, bias),
            *([0, 0], [1, 1], [1, 1], 1),  # padding, stride, dilation, groups
            *(post_op[0], [], post_op[1]),
        )
        y = y.as_strided((rows, self._outputs), (self._outputs, 1))  # like x, it has channels last
        return y[: rows - padded_rows]

    def memory(self) -> tuple[int, int] | None:
        """As `InnerProductWeight.memory`."""
        return _memory(self._filters)

    def to_dense(self) -> torch.Tensor:
        dense: torch.Tensor = self._filters.to_dense()
        return dense[:, : self._inputs, 0, 0].contiguous()


def _memory(packed: torch.Tensor) -> tuple[int, int] | None:
    operators = torch.ops.mkldnn
    if not (hasattr(operators, "data_ptr") and hasattr(operators, "_nbytes")):
        return None
    return operators.data_ptr(packed), operators._nbytes(packed)


def _pack_filters(weight: torch.Tensor, images: int, pixels: int) -> torch.Tensor:
    """A weight [out, in] as 1x1 filters, as oneDNN likes them best for so many images of so many pixels."""
    filters = weight[:, :, None, None].contiguous(memory_format=torch.channels_last)
    packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        filters, [0, 0], [1, 1], [1, 1], 1, [images, weight.shape[1], 1, pixels]
    )
    return packed


def pack(weight: torch.Tensor, *, batch_invariant: bool) -> PackedWeight:
    """Pack a weight that `can_pack` allows; drop the original, `to_dense` gives it back.

    Batch invariant as far as a check of this machine's kernels at the present number of threads can tell; a warning is
    logged where none passes.
    """
    if not batch_invariant:
        return InnerProductWeight(weight, pairs=False)
    threads = torch.get_num_threads()
    packing = _invariant_packing(weight.dtype, threads)
    outputs, inputs = weight.shape
    if packing is ConvolutionWeight and _wide_is_invariant(inputs, outputs, weight.dtype, threads):
        packing = WideInnerProductWeight  # starts sooner than a convolution's weights let it
    return packing(weight)


@cache
def _invariant_packing(dtype: torch.dtype, num_threads: int) -> Callable[[torch.Tensor], PackedWeight]:
    for packing in (InnerProductWeight, ConvolutionWeight):
        if _is_invariant(packing.__name__, dtype, num_threads):
            return packing
    logger.warning(
        "this CPU's %s products depend on how many rows are computed together, so answers may differ in their last "
        "digits with the load; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment may prevent it",
        str(dtype).removeprefix("torch."),
    )
    return InnerProductWeight


@kept
def _is_invariant(packing: str, dtype: torch.dtype, num_threads: int) -> bool:
    """Whether one of `_invariant_packing` gives a row the same bits among any others; `num_threads` as there."""
    kind = InnerProductWeight if packing == InnerProductWeight.__name__ else ConvolutionWeight
    return all(_rows_agree(kind, dtype, *shape) for shape in _PROBED_SHAPES)


@cache
@kept
def _wide_is_invariant(inputs: int, outputs: int, dtype: torch.dtype, num_threads: int) -> bool:
    """Whether a `WideInnerProductWeight` of this shape gives a row the same bits among any others. `num_threads` are
    those in use.

    oneDNN cuts rows into blocks of up to 128, so that no number of rows beyond those probed meets another kernel.
    """
    if inputs % _INPUTS_MULTIPLE or not _LEAST_INPUTS <= inputs <= _LONG_SUM:
        return False
    return _rows_agree(WideInnerProductWeight, dtype, inputs, as_wide(outputs))


def as_wide(outputs: int) -> int:
    """A number of columns to probe instead: not too many, and of the same rest."""
    return min(outputs, _MOST_PROBED_OUTPUTS + outputs % 64)


def _rows_agree(packing: Callable[[torch.Tensor], PackedWeight], dtype: torch.dtype, inputs: int, outputs: int) -> bool:
    """Whether a row has the same bits among as many rows as `_PROBED_ROWS` says."""
    x, weight = rounding_alone(max(_PROBED_ROWS), inputs, outputs, dtype)
    packed = packing(weight)
    whole = packed.multiply(x, None, NO_POST_OP)
    return all(torch.equal(packed.multiply(x[-rows:], None, NO_POST_OP), whole[-rows:]) for rows in _PROBED_ROWS)


@cache
@kept
def _few_rows(inputs: int, outputs: int, dtype: torch.dtype, num_threads: int) -> int:
    """Up to how many rows the inner product of a `ConvolutionWeight` of this shape gives what the convolution gives.

    0 where it already differs for `_FEW_OF_LONG_SUMS`. `num_threads` are those in use.
    """
    x, weight = rounding_alone(_FEW, inputs, as_wide(outputs), dtype)
    packed = ConvolutionWeight(weight)
    whole = packed.convolution(x, None, NO_POST_OP)

    def agree(most: int, least: int = 1) -> bool:
        few = (rows for rows in _PROBED_ROWS if least <= rows <= most)
        return all(torch.equal(packed.inner_product(x[-rows:], None, NO_POST_OP), whole[-rows:]) for rows in few)

    if not agree(_FEW_OF_LONG_SUMS):
        return 0
    return _FEW if inputs <= _LONG_SUM and agree(_FEW, _FEW_OF_LONG_SUMS) else _FEW_OF_LONG_SUMS


@cache
def _num_images(rows: int, inputs: int, outputs: int, dtype: torch.dtype, num_threads: int) -> int:
    """Into how many images to cut rows for a fast convolution with weights as they are packed; 0 if there is no way.

    It only counts for speed: the bits are the same for any number of images, and for any layout of the weights.
    """
    halvings = (1 << i for i in range(rows.bit_length()) if rows % (1 << i) == 0)
    counts = [count for count in halvings if count == 1 or rows // count >= _LEAST_PIXELS]

    def is_slower(count: int) -> bool:
        pixels = rows // count
        return not _GOOD_PIXELS[0] <= pixels <= _GOOD_PIXELS[1] or pixels * inputs > _MOST_IN_IMAGE

    weight = torch.empty(outputs, inputs, dtype=dtype)
    layout = _layout(weight, *_MANY_PIXELS)
    return next(
        (count for count in sorted(counts, key=is_slower) if _layout(weight, count, rows // count) == layout), 0
    )


def _layout(weight: torch.Tensor, images: int, pixels: int) -> bytes:
    """What oneDNN says of how it would lay out a weight, which takes a millisecond for a million numbers."""
    description: torch.Tensor = torch.ops.mkldnn._get_mkldnn_serialized_md(_pack_filters(weight, images, pixels))
    return bytes(description.numpy())


def rounding_alone(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, in] and a weight [out, in] whose product is 0 but for rounding: the second half of a row is minus the
    first, mixed. So every change in the order of a sum shows; of ordinary products, which bfloat16 rounds, one in
    thousands would.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(inputs, generator=generator)
    half = torch.randn(rows, inputs // 2, generator=generator)
    half *= torch.exp2(6 * torch.randn(half.shape, generator=generator))  # so that few terms are rounded too
    weights = torch.randn(outputs, inputs // 2, generator=generator)
    odd = inputs % 2
    x = F.pad(torch.cat([half, -half], 1), (0, odd))[:, order].to(dtype)
    return x, F.pad(torch.cat([weights, weights], 1), (0, odd))[:, order].to(dtype)
