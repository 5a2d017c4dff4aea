"""Reads quantised matrices in each format that config.json may name.

Axes: N or out outputs, K or in inputs, G groups of inputs. Words are int32 and hold 8 codes of 4 bits or 4 codes of 8
bits, the first in the lowest bits.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.quantized.parts import SCALE_DTYPES, Parts
from lightwell.model.checkpoint.quantized.scheme import Scheme
from lightwell.model.checkpoint.stored_tensor import ITEM_SIZES, StoredTensor
from lightwell.model.quantized import GroupedRows

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of its eight outputs."""
_ONES = {4: 0x11111111, 8: 0x01010101}
"""A word of ones, by the bits of a code."""
_MXFP4_GROUP = 32
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the number of each e2m1 code."""
_HALVED = torch.tensor([*(2.0 ** (e - 128) for e in range(255)), torch.nan], dtype=torch.float64).to(torch.bfloat16)
"""Half the number of each e8m0 scale. All are exact in bfloat16, the smallest as a subnormal number."""
_WIDTHS = (128, 64, 32, 16)
"""The inputs of a group in the kernels (`model.kernels.group_quantized`)."""
_CACHE_SCALES = ("k_scale", "v_scale")
"""Scales of a quantised KV cache, which are not used."""


def quantized_tensors(entries: Mapping[str, StoredTensor], scheme: Scheme) -> dict[str, StoredTensor]:
    """Return the tensors of some files, with one tensor `weight` in place of all parts of a quantised matrix.

    Raises ModelLoadError for a matrix with missing parts, or with parts that do not fit together.
    """
    names, read_matrix = _READERS[scheme.method]
    parts, found = dict[str, dict[str, StoredTensor]](), dict[str, StoredTensor]()
    for name, entry in entries.items():
        owner, _, last = name.rpartition(".")
        if last in names and not (last == "weight" and entry.dtype in ITEM_SIZES):
            parts.setdefault(owner, {})[last] = entry
        elif last not in _CACHE_SCALES:
            found[name] = entry
    return found | {f"{name}.weight": read_matrix(Parts(name, own, scheme)) for name, own in parts.items()}


def _awq(parts: Parts) -> StoredTensor:
    """Read a matrix of AutoAWQ's version gemm (Lin et al. 2023, arXiv:2306.00978).

    `qweight` [in, out / 8] and `qzeros` [groups, out / 8]: words of eight outputs, the even ones first. `scales`
    [groups, out]. A number is (q - zero) * scale.
    """
    codes = parts.tensor("qweight", ("I32",), None, None)

    def by_output(words: Tensor) -> Tensor:
        """Return the codes of some words: [n, out / 8] int32 -> [out, n] uint8."""
        return _unpacked(words, 4).view(len(words), -1, 8)[:, :, _AWQ_ORDER].flatten(1).T.contiguous()

    return _scaled_by_columns(
        parts, (8 * codes.shape[1], codes.shape[0]), 4, lambda: by_output(codes.read()), by_output
    )


def _gptq(parts: Parts) -> StoredTensor:
    """Read a matrix of AutoGPTQ and GPTQModel (Frantar et al. 2022, arXiv:2210.17323).

    `qweight` [in bits / 32, out]: words of neighbouring inputs of an output. `qzeros` [groups, out bits / 32]: words of
    neighbouring outputs. `scales` [groups, out]; `g_idx` [in]: the group of each input. A number is (q - zero) * scale.
    The format gptq holds zeros less 1, with a borrow from the next one in a word, and gptq_v2 as they are.
    """
    (bits,) = parts.scheme.bits
    codes = parts.tensor("qweight", ("I32",), None, None)
    added = _ONES[bits] if parts.scheme.is_less_one else 0
    return _scaled_by_columns(
        parts,
        (codes.shape[1], codes.shape[0] * 32 // bits),
        bits,
        lambda: _unpacked(codes.read().T, bits),
        lambda words: _unpacked(words + added, bits).T.contiguous(),
    )


def _scaled_by_columns(
    parts: Parts,
    shape: tuple[int, int],
    bits: int,
    read_codes: Callable[[], Tensor],
    unpack_zeros: Callable[[Tensor], Tensor],
) -> StoredTensor:
    """Return a matrix with `qzeros` and with `scales` [groups, out].

    read_codes: returns the codes [out, in] uint8. unpack_zeros: [groups, words] int32 -> [out, groups] uint8.
    """
    num_outputs, num_inputs = shape
    grids = [(count, num_outputs) for count in parts.group_counts(num_inputs)]
    scales, (num_groups, _) = parts.scales("scales", SCALE_DTYPES, grids)
    zeros = parts.tensor("qzeros", ("I32",), num_groups, num_outputs * bits // 32)

    def read() -> GroupedRows:
        of_groups = unpack_zeros(zeros.read()), scales.read().view(num_groups, -1).T.contiguous()
        groups = parts.groups_of_inputs("g_idx", num_inputs, num_groups)
        return _affine_rows(read_codes(), *of_groups, bits, groups)

    return parts.grouped(shape, read)


def _compressed(parts: Parts) -> StoredTensor:
    """Read a matrix of the package compressed-tensors (github.com/vllm-project/compressed-tensors).

    int-quantized: `weight` int8 [out, in]; pack-quantized: see `_packed`; float-quantized: see `_fp8`;
    mxfp4-pack-quantized: `weight_packed` uint8 [out, in / 2] and `weight_scale`, as in `_mxfp4`. Scales of activations
    are not used.
    """
    if "weight_packed" in parts.tensors:
        is_mxfp4 = parts.tensors["weight_packed"].dtype == "U8"
        return _read_mxfp4(parts, "weight_packed", "weight_scale", (None, None)) if is_mxfp4 else _packed(parts)
    codes = parts.tensor("weight", ("I8", "F8_E4M3"), None, None)
    if codes.dtype == "F8_E4M3":
        return _fp8(parts)
    return _affine(parts, (codes.shape[0], codes.shape[1]), 8, lambda: _without_sign(codes.read(), 8))


def _packed(parts: Parts) -> StoredTensor:
    """Read `weight_packed` [out, in bits / 32], words of inputs plus 2^(bits - 1), and `weight_shape`, out and in."""
    words = parts.tensor("weight_packed", ("I32",), None, None)
    num_outputs, num_inputs = parts.tensor("weight_shape", ("I64", "I32"), 2).read().tolist()
    fitting = [bits for bits in parts.scheme.bits if words.shape == (num_outputs, -(-num_inputs * bits // 32))]
    if not fitting:
        raise ModelLoadError(
            f"weights: {parts.name}.weight_packed is {list(words.shape)} and weight_shape {[num_outputs, num_inputs]}; "
            f"codes of {' or '.join(map(str, parts.scheme.bits))} bits are expected"
        )
    bits = fitting[0]
    return _affine(parts, (num_outputs, num_inputs), bits, lambda: _unpacked(words.read(), bits)[:, :num_inputs])


def _affine(parts: Parts, shape: tuple[int, int], bits: int, read_codes: Callable[[], Tensor]) -> StoredTensor:
    """Return a matrix of compressed-tensors with whole numbers: a number is (code - zero) * scale.

    `weight_scale` is for each group of inputs of an output, for each output or for all. `weight_zero_point` is absent
    if zeros are 0, or packed over outputs as codes are over inputs, or int8 of the scales' shape. `weight_g_idx` is the
    group of each input, if neighbours do not share one. read_codes: returns the codes [out, in] uint8, without a sign.
    """
    num_outputs, num_inputs = shape
    grids = [(1, 1), *((num_outputs, count) for count in parts.group_counts(num_inputs))]
    scales, grid = parts.scales("weight_scale", SCALE_DTYPES, grids)
    zeros, num_words = parts.tensors.get("weight_zero_point"), -(-num_outputs * bits // 32)
    if zeros is not None and zeros.dtype == "I32":
        parts.tensor("weight_zero_point", ("I32",), num_words, grid[1])
    elif zeros is not None:
        parts.scales("weight_zero_point", ("I8",), [grid])

    def read() -> GroupedRows:
        if zeros is None:
            found = torch.full(grid, 1 << bits - 1, dtype=torch.uint8)
        elif zeros.dtype == "I32":
            found = _unpacked(zeros.read().T, bits).T[:num_outputs]
        else:
            found = _without_sign(zeros.read().view(grid), bits)
        of_groups = found.expand(num_outputs, -1), scales.read().view(grid).expand(num_outputs, -1)
        groups = parts.groups_of_inputs("weight_g_idx", num_inputs, grid[1])
        return _affine_rows(read_codes(), *of_groups, bits, groups)

    return parts.grouped(shape, read)


def _without_sign(numbers: Tensor, bits: int) -> Tensor:
    """Return whole numbers with a sign, int8, plus 2^(bits - 1): uint8."""
    return (numbers.to(torch.int16) + (1 << bits - 1)).to(torch.uint8)


def _fp8(parts: Parts) -> StoredTensor:
    """Read a matrix of 8-bit floating-point numbers, e4m3. Grouped rows cannot hold them, so the matrix is dequantised.

    `weight` e4m3 [out, in], and `weight_scale_inv`, as in DeepSeek's files (arXiv:2412.19437), or `weight_scale`: one
    for all, one for each output, or one for each block of outputs and inputs. A number is code * scale.
    """
    codes = parts.tensor("weight", ("F8_E4M3",), None, None)
    num_outputs, num_inputs = codes.shape
    blocks = [(num_outputs, num_inputs), (1, num_inputs), *parts.scheme.blocks]
    part = "weight_scale_inv" if "weight_scale_inv" in parts.tensors else "weight_scale"
    grids = [(-(-num_outputs // rows), -(-num_inputs // columns)) for rows, columns in blocks]
    scales, grid = parts.scales(part, (*SCALE_DTYPES, "F8_E8M0"), grids)
    rows, columns = blocks[grids.index(grid)]

    def read() -> Tensor:
        each = scales.read().float().view(grid).repeat_interleave(rows, 0)[:num_outputs]
        return codes.read().float() * each.repeat_interleave(columns, 1)[:, :num_inputs]

    return parts.stored((num_outputs, num_inputs), read, None)


def _mxfp4(parts: Parts) -> StoredTensor:
    """Read a matrix of 4-bit floating-point numbers, e2m1; 32 inputs share a power of two (OCP Microscaling Formats
    1.0). Grouped rows hold twice the numbers, which are whole.

    `weight_blocks` uint8 [out, in / 32, 16]: two codes in a byte, the lower half first. `weight_scales` uint8
    [out, in / 32]: e stands for 2^(e - 127), and 255 for NaN.
    """
    return _read_mxfp4(parts, "weight_blocks", "weight_scales", (None, None, _MXFP4_GROUP // 2))


def _read_mxfp4(parts: Parts, codes: str, scales: str, shape: tuple[int | None, ...]) -> StoredTensor:
    """Return a matrix. codes, scales: the names of its parts; shape: of the codes, None for any length."""
    packed = parts.tensor(codes, ("U8",), *shape)
    num_outputs, num_bytes = packed.shape[0], torch.Size(packed.shape[1:]).numel()
    (num_groups,) = parts.group_counts(2 * num_bytes, (_MXFP4_GROUP,))
    powers = parts.tensor(scales, ("U8",), num_outputs, num_groups)

    def read() -> GroupedRows:
        found = packed.read().view(num_outputs, num_bytes)
        both = torch.stack([found & 15, found >> 4], -1).flatten(1)
        return GroupedRows(both, _HALVED[powers.read().int()], values=_DOUBLED)

    return parts.grouped((num_outputs, 2 * num_bytes), read)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """Return codes of 4 or 8 bits, the first in the lowest bits: [..., n] int32 -> [..., 32 n / bits] uint8."""
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack([found & 15, found >> 4], -1).flatten(-2)


def _affine_rows(codes: Tensor, zeros: Tensor, scales: Tensor, bits: int, groups: Tensor | None = None) -> GroupedRows:
    """Return grouped rows of codes [N, K] uint8, zeros [N, G] uint8 and scales [N, G]. bits: 4 or 8, of a code.
    groups [K]: the group of each input, or None if neighbours share one.

    If all zeros are the middle of the codes, as in symmetric formats, the values include them. Otherwise the min of a
    group is its scale times a whole number, which is exact. Raises ValueError for zeros and scales of different shapes.
    """
    if groups is not None:
        zeros, scales = zeros[:, groups], scales[:, groups]
    if zeros.shape != scales.shape:
        raise ValueError(f"zeros are {list(zeros.shape)} and scales {list(scales.shape)}; one shape is expected")
    scales, zeros = _of_kernels(scales, zeros, codes.shape[1])
    middle = 1 << bits - 1
    values = None
    if bits == 8:
        codes, zeros = (codes.to(torch.int16) - middle).to(torch.int8), zeros.to(torch.int16) - middle
    elif (zeros == middle).all():
        values, zeros = tuple(range(-middle, middle)), torch.zeros_like(zeros)
    else:
        values = tuple(range(2 * middle))
    if not zeros.any():
        return GroupedRows(codes, scales, values=values)
    mins = torch.where(zeros > 0, -scales, scales)
    ones = torch.ones(scales.shape, dtype=torch.int8)
    return GroupedRows(codes, scales, mins, ones, zeros.abs().to(torch.uint8), values)


def _of_kernels(scales: Tensor, zeros: Tensor, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Return scales, in 16 bits if that is exact, and zeros. Wider groups than the kernels' are cut into equal ones."""
    group = num_inputs // scales.shape[1]
    width = next((width for width in _WIDTHS if group % width == 0), group)
    scales, zeros = (each.repeat_interleave(group // width, 1) for each in (_narrowed(scales), zeros))
    return scales, zeros


def _narrowed(scales: Tensor) -> Tensor:
    """Return scales in a 16-bit dtype in which they are exact, or unchanged if there is none."""
    for dtype in (torch.float16, torch.bfloat16) if scales.dtype == torch.float32 else ():
        if torch.equal(scales.to(dtype).float(), scales):
            return scales.to(dtype)
    return scales


_READERS: dict[str, tuple[tuple[str, ...], Callable[[Parts], StoredTensor]]] = {
    "awq": (("qweight", "qzeros", "scales"), _awq),
    "gptq": (("qweight", "qzeros", "scales", "g_idx"), _gptq),
    "compressed-tensors": (
        (
            *("weight_packed", "weight_shape", "weight", "weight_scale", "weight_zero_point", "weight_g_idx"),
            *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
        ),
        _compressed,
    ),
    "fp8": (("weight", "weight_scale_inv", "weight_scale", "input_scale"), _fp8),
    "mxfp4": (("weight_blocks", "weight_scales"), _mxfp4),
}
"""By `quant_method`: the names of the parts that a matrix may have, and its reader."""
