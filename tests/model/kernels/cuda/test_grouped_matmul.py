"""The card's products with weights of 4 to 8 bits: against float64, and with the bits of the dense product."""

import math
import random
from collections.abc import Callable

import gguf
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.checkpoint.gguf.blocks import GROUPED_TYPES, grouped_rows
from lightwell.model.kernels.cuda import grouped_matmul as kernels
from lightwell.model.kernels.cuda import matmul as dense_kernels
from lightwell.model.kernels.cuda.grouped_matmul import TILES, grouped_matmul
from lightwell.model.kernels.cuda.matmul import matmul
from lightwell.model.kernels.cuda.packed_rows import PackedRows
from lightwell.model.layers.triton_grouped_weight import TritonGroupedWeight, quantized
from lightwell.model.quantized import GroupedRows
from tests.model.kernels.cuda.card import DEVICE, fresh_draw, normal
from tests.model.kernels.draw_grouped import draw_grouped

MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def of_gguf(kind: gguf.GGMLQuantizationType, outputs: int, inputs: int) -> tuple[GroupedRows, int]:
    """Return random rows of a format of GGUF files, and their bytes in a file."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = torch.randint(256, (outputs, inputs // block, size), dtype=torch.uint8)
    for place in {"Q6_K": (208,), "Q4_0": (0,), "Q8_0": (0,), "Q5_0": (0,), "IQ4_NL": (0,)}.get(kind.name, (0, 2)):
        scales = torch.randn(outputs, inputs // block, 1).half() / 64
        data[:, :, place : place + 2] = scales.view(torch.uint8)
    return grouped_rows(data.flatten(1), kind, inputs), data.numel()


def with_zeros(outputs: int, inputs: int) -> tuple[GroupedRows, int]:
    """Return rows as in files of AWQ and GPTQ: 4 bits, and a scale and a zero for 128 inputs."""
    of_groups = (outputs, inputs // 128)
    codes, scales = torch.randint(16, (outputs, inputs), dtype=torch.uint8), torch.randn(of_groups).half() / 64
    ones = torch.ones(of_groups, dtype=torch.int8)
    zeros = torch.randint(16, of_groups, dtype=torch.uint8)
    rows = GroupedRows(codes, scales, -scales, ones, zeros, tuple(range(16)))
    return rows, codes.numel() // 2 + scales.nbytes + zeros.numel() // 2


def mxfp4(outputs: int, inputs: int) -> tuple[GroupedRows, int]:
    powers = 2.0 ** torch.randint(-9, 3, (outputs, inputs // 32)).bfloat16()
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    return GroupedRows(codes, powers, values=MXFP4_VALUES), codes.numel() // 2 + powers.numel()


def int8(outputs: int, inputs: int) -> tuple[GroupedRows, int]:
    return quantized(torch.randn(outputs, inputs), "int8"), outputs * (inputs + 4)


def int4(outputs: int, inputs: int) -> tuple[GroupedRows, int]:
    return quantized(torch.randn(outputs, inputs), "int4"), outputs * inputs * 18 // 32


FORMATS: dict[str, Callable[[int, int], tuple[GroupedRows, int]]] = {
    **{kind.name: lambda outputs, inputs, kind=kind: of_gguf(kind, outputs, inputs) for kind in GROUPED_TYPES},
    **{"zeros": with_zeros, "MXFP4": mxfp4, "int8": int8, "int4": int4},
}


def make(*parts: GroupedRows, dtype: torch.dtype = torch.bfloat16, batch_invariant: bool = True) -> TritonGroupedWeight:
    return TritonGroupedWeight(parts, dtype, DEVICE, batch_invariant=batch_invariant)


def dense(*parts: GroupedRows, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.cat([part.to_dense() for part in parts]).to(DEVICE, dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_as_large_as_in_its_file_and_has_the_bits_of_its_dense_product(name: str) -> None:
    rng = fresh_draw()
    part, num_bytes = FORMATS[name](33, 512)
    weight = make(part)
    assert weight.num_bytes <= 1.05 * num_bytes
    assert torch.equal(weight.to_dense(), dense(part).cpu())
    x, bias = normal(5, 512, dtype=torch.bfloat16), rng.choice((None, normal(33, dtype=torch.bfloat16)))
    y = weight.multiply(x, bias)
    assert torch.equal(y, matmul(x, dense(part), bias))
    exact = x.double() @ part.to_dense().to(DEVICE).double().T + (0 if bias is None else bias.double())
    terms = x.double().abs() @ part.to_dense().to(DEVICE).double().abs().T
    assert ((y.double() - exact).abs() <= 2**-8 * (exact.abs() + terms)).all()  # the weight is rounded too


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_row_has_the_same_bits_alone_and_in_batches_whichever_kernel_multiplies(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = fresh_draw()
    monkeypatch.setattr(dense_kernels, "LEAST_PIECE", 64)  # cuts products with over 128 inputs
    monkeypatch.setattr("lightwell.model.layers.triton_grouped_weight.MOST_ROWS", 40)
    inputs = rng.choice((192, 256, 320))
    parts = [draw_grouped(count, inputs, rng) for count in (20, 7)]
    x, bias = normal(50, inputs, dtype=dtype), normal(27, dtype=dtype)
    weight = make(*parts, dtype=dtype)
    whole = weight.multiply(x, bias)
    for count in (1, 33, 40, rng.randint(2, 39)):
        chosen = rng.sample(range(len(x)), count)
        assert torch.equal(weight.multiply(x[chosen], bias), whole[chosen]), f"{count} rows"


def test_all_tiles_sum_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = fresh_draw()
    monkeypatch.setattr(dense_kernels, "LEAST_PIECE", 64)
    part = PackedRows.of(draw_grouped(40, 272, rng)).to(DEVICE)
    x, found = normal(20, 272, dtype=torch.bfloat16), []
    for tile in TILES:
        monkeypatch.setattr(kernels, "choose_tile", lambda *_, tile=tile: tile)
        found.append(grouped_matmul(x, [part]))
    assert len(found) > 3
    assert all(torch.equal(each, found[0]) for each in found)


def test_rows_of_a_table() -> None:
    weight = make(draw_grouped(50, 144, fresh_draw()))
    ids = torch.randint(50, (9,), device=DEVICE)
    assert torch.equal(weight.rows(ids).cpu(), weight.to_dense()[ids.cpu()])
    assert weight.rows(ids[:0]).shape == (0, 144)


def test_a_product_in_slices_has_the_bits_of_the_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_kernels, "LEAST_PIECE", 64)
    monkeypatch.setattr(dense_kernels, "FILL", 2)  # products of over 32 outputs have one piece
    dtype = torch.float16
    fresh_draw()
    weight = make(draw_grouped(110, 512, random.Random(3)), dtype=dtype)  # 30 more than two slices
    x, bias = normal(200, 512, dtype=dtype), normal(110, dtype=dtype)
    few = weight.multiply(x, bias)
    for name, number in (("MOST_ROWS", 0), ("_MOST_NUMBERS", 40 * 512), ("_LEAST_OUTPUTS", 40)):
        monkeypatch.setattr(f"lightwell.model.layers.triton_grouped_weight.{name}", number)
    assert torch.equal(weight.multiply(x, bias), few)
    assert torch.equal(matmul(x, weight.to_dense().to(DEVICE), bias), few)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the interpreter's, of the numbers after the last input
def test_a_large_scale_is_accepted_with_any_number_of_inputs() -> None:
    fresh_draw()
    codes = torch.randint(-100, 101, (20, 144), dtype=torch.int8)
    part = GroupedRows(codes, torch.full((20, 1), 600, dtype=torch.float16))  # -128 * 600 is infinite
    x = normal(3, 144, dtype=torch.float16, scale=0.001)
    y = make(part, dtype=torch.float16).multiply(x)
    assert y.isfinite().all()
    assert torch.equal(y, matmul(x, dense(part, dtype=torch.float16)))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, of infinity - infinity
def test_rows_that_are_no_numbers_change_no_other_row() -> None:
    fresh_draw()
    x = normal(20, 128, dtype=torch.bfloat16)
    weight = make(draw_grouped(20, 128, random.Random(3)))
    whole = weight.multiply(x)
    spoilt = x.clone()
    spoilt[[0, 17]] = torch.tensor([[math.nan], [math.inf]], dtype=x.dtype, device=DEVICE)
    ours = weight.multiply(spoilt)
    assert torch.equal(ours[1:17], whole[1:17])
    assert not ours[[0, 17]].isfinite().any()


def test_groups_that_the_kernels_lack_are_refused() -> None:
    rows = GroupedRows(torch.zeros(3, 96, dtype=torch.int8), torch.ones(3, 2, dtype=torch.float16))
    with pytest.raises(ValueError, match="groups have 48 inputs; 16, 32 and multiples of 64"):
        PackedRows.of(rows)
