"""Products with weights with scales shared by groups of inputs: the numbers of the weight by hand, and the bits of
products with the same weight written out.

Axes: R rows, K inputs, N outputs.
"""

import random
import re
import secrets
from typing import Any

import numpy as np
import pytest
import torch

from lightwell.model.kernels import library
from lightwell.model.kernels.group_quantized import GroupedWeight, why_not_grouped
from lightwell.model.kernels.products import DOT, WIDEN, BlockedWeight
from lightwell.model.quantized import GroupedRows, QuantizedMatrix
from tests.model.kernels.draw_grouped import draw_grouped
from tests.model.kernels.levels import at_level

DTYPES = (torch.float32, torch.bfloat16)


def draw(inputs: int) -> tuple[random.Random, list[GroupedRows]]:
    """Draw a weight of one to three kinds of rows; only the last kind may end within a block."""
    seed = secrets.randbits(32)
    print(seed)  # shown when it fails
    rng = random.Random(seed)
    torch.manual_seed(seed)
    counts = [64 * rng.randint(1, 3) for _ in range(rng.randrange(3))] + [rng.randint(1, 200)]
    return rng, [draw_grouped(count, inputs, rng) for count in counts]


def by_hand(part: GroupedRows) -> torch.Tensor:
    """Return the numbers of some rows, float64, exactly."""
    inputs = torch.arange(part.shape[1])
    codes = part.codes.long()
    values = codes if part.values is None else torch.tensor(part.values)[codes]
    scales = part.scales.double()[:, inputs // part.superblock]
    mins = torch.zeros(part.shape, dtype=torch.float64)
    if part.mins is not None:
        mins = part.mins.double()[:, inputs // part.superblock]
    if part.scale_factors is not None:
        scales = scales * part.scale_factors.double()[:, inputs // part.group]
    if part.min_factors is not None:
        mins = mins * part.min_factors.double()[:, inputs // part.group]
    return scales * values.double() + mins


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [16, 48, 256, 1280])
def test_a_weight_is_what_its_groups_say_and_its_products_are_those_of_that_weight(
    inputs: int, dtype: torch.dtype
) -> None:
    rng, parts = draw(inputs)
    exactly = torch.cat([by_hand(part) for part in parts])
    dense = QuantizedMatrix.of(parts, dtype).to_dense()
    assert torch.equal(dense, exactly.float().to(dtype))  # rounded once to float32
    for level in library.levels():
        with at_level(level):
            for arithmetic in (WIDEN, DOT):
                weight = GroupedWeight(parts, dtype, arithmetic)
                assert torch.equal(weight.to_dense(), dense)
                x = torch.randn(rng.choice([1, 2, 5, 9, 30, 150]), dense.shape[1]).to(dtype)
                bias = rng.choice([None, torch.randn(dense.shape[0]).to(dtype)])
                found = weight.multiply(x, bias, "silu")
                has_dot = dtype == torch.bfloat16 and arithmetic == DOT
                if has_dot and level == "amx":
                    assert torch.equal(found, BlockedWeight(dense, DOT).multiply(x, bias, "silu"))
                elif has_dot and level == "avx512_bf16":
                    y = x.double() @ exactly.T + (0 if bias is None else bias.double())
                    size = x.double().abs() @ exactly.abs().T + 1
                    assert ((found.double() - torch.nn.functional.silu(y)).abs() < 2**-8 * y.abs() + 1e-5 * size).all()
                else:
                    wide = None if bias is None else bias.float()
                    expected = BlockedWeight(exactly.float()).multiply(x.float(), wide, "silu").to(dtype)
                    assert torch.equal(found, expected)
                alone = weight.multiply(x[-1:].contiguous(), bias, "silu")
                assert torch.equal(alone, found[-1:])
                largest = weight.find_largest(x)
                assert largest is not None
                logits = weight.multiply(x).float().numpy()
                assert largest[0].tolist() == np.argmax(logits, 1).tolist()
                assert np.array_equal(largest[1].numpy(), logits.max(1))


def test_no_largest_output_is_told_where_a_number_of_the_product_is_not_finite() -> None:
    part = draw_grouped(100, 64, random.Random(secrets.randbits(32)))
    for dtype in DTYPES:
        weight = GroupedWeight([part], dtype, DOT)
        assert weight.find_largest(torch.full((1, 64), float("inf"), dtype=dtype)) is None


def test_what_the_kernels_have_no_form_of_is_named() -> None:
    rng = random.Random(0)
    assert "65" in (why_not_grouped([draw_grouped(count, 64, rng) for count in (65, 64)]) or "")
    wide = GroupedRows(torch.zeros(64, 96, dtype=torch.int8), torch.ones(64, 2).half())
    assert "48" in (why_not_grouped([wide]) or "")
    exact = GroupedRows(torch.zeros(64, 96, dtype=torch.int8), torch.ones(64, 3))
    assert "float32" in (why_not_grouped([exact]) or "")
    with pytest.raises(ValueError, match="48"):
        GroupedWeight([wide], torch.float32, WIDEN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scales": torch.ones(64, 20).half()}, "codes uint8 [64, 656], scales float16 [64, 20]"),
        ({"scales": torch.ones(64, 0).half()}, "[64, 0]"),
        ({"scales": torch.ones(63, 41).half()}, "[63, 41]"),
        ({"scales": torch.ones(64, 41, dtype=torch.float64)}, "float64"),
        ({"mins": torch.ones(64, 1).half()}, "mins float16 [64, 1]"),
        ({"mins": torch.ones(64, 41).bfloat16()}, "mins bfloat16"),
        ({"scale_factors": torch.ones(64, 40).char()}, "scale_factors int8 [64, 40]"),
        ({"scale_factors": torch.ones(64, 41).byte()}, "scale_factors uint8"),
        ({"scale_factors": torch.ones(64, 41).char(), "mins": torch.ones(64, 41).half()}, "do not fit"),
        ({"min_factors": torch.ones(64, 41).byte()}, "min_factors uint8"),
        ({"codes": torch.ones(64, 656).char()}, "codes int8"),
        ({"values": None}, "codes uint8"),
        ({"values": tuple(range(15))}, "do not fit"),
    ],
)
def test_parts_that_do_not_fit_never_reach_a_kernel(change: dict[str, Any], said: str) -> None:
    parts: dict[str, Any] = {
        "codes": torch.ones(64, 656).byte(),
        "scales": torch.ones(64, 41).half(),
        "values": tuple(range(16)),
    }
    assert GroupedRows(**parts).group == 16
    with pytest.raises(ValueError, match=re.escape(said)):
        GroupedRows(**parts | change)


def rounded_to_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return rows [R, K], float64, rounded to multiples of (largest absolute value of their 32 inputs) / 127."""
    rows, most = x.float(), torch.tensor(127.0)  # no int, which torch would not divide
    scaled = torch.nn.functional.pad(rows, (0, -x.shape[1] % 32)).reshape(len(x), -1, 32)
    largest = scaled.abs().amax(2, keepdim=True)
    whole = (scaled * torch.where(largest > 0, most / largest, 0)).round()
    return ((largest / most).double() * whole.double()).flatten(1)[:, : x.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [16, 48, 128, 640])
def test_rows_rounded_to_bytes_are_multiplied_exactly_and_alike_on_every_cpu(inputs: int, dtype: torch.dtype) -> None:
    rng, parts = draw(inputs)
    exactly = torch.cat([by_hand(part) for part in parts])
    x = (torch.randn(rng.choice([1, 2, 5, 9, 30, 150]), exactly.shape[1]) * 10 ** rng.uniform(-3, 3)).to(dtype)
    x[rng.randrange(len(x)), :16] = 0
    bias = rng.choice([None, torch.randn(len(exactly)).to(dtype)])
    rows = rounded_to_bytes(x)
    y = rows @ exactly.T + (0 if bias is None else bias.double())
    size = rows.abs() @ exactly.abs().T + 1
    found = []
    for level in library.levels():
        with at_level(level):
            weight = GroupedWeight(parts, dtype, DOT, int8_activations=True)
            found.append(weight.multiply(x, bias))
            assert torch.equal(weight.multiply(x[-1:].contiguous(), bias), found[-1][-1:])
            largest = weight.find_largest(x)
            assert largest is not None
            assert largest[0].tolist() == np.argmax(weight.multiply(x).float().numpy(), 1).tolist()
    assert all(torch.equal(each, found[0]) for each in found)
    rounding = 2**-8 if dtype == torch.bfloat16 else 2**-23
    assert ((found[0].double() - y).abs() <= rounding * y.abs() + 1e-5 * size).all()
    x[0, rng.randrange(exactly.shape[1])] = rng.choice([float("inf"), float("nan")])
    assert weight.find_largest(x) is None
    assert not weight.multiply(x[:1].contiguous()).isfinite().any()
