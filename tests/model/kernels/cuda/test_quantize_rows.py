"""Rows rounded to e4m3 by the card's kernel: the same bits as by torch."""

import random

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.kernels.cuda.quantize_rows import BLOCK, quantize_rows
from lightwell.model.layers.fp8_weight import Fp8Rows
from tests.model.kernels.cuda.card import DEVICE, each_dtype, fresh_draw


@each_dtype
@pytest.mark.parametrize("width", [1, 40, BLOCK, BLOCK + 17], ids=str)
def test_rows_have_the_bits_that_torch_gives_them(width: int, dtype: torch.dtype) -> None:
    fresh_draw()
    x = torch.randn(9, width) * 2.0 ** torch.randint(-20, 3, (9, width)) * 10.0 ** torch.randint(-3, 4, (9, 1))
    x[2] = 0
    x = x.to(dtype).to(DEVICE)
    padded = width + -width % 16
    values, scales = quantize_rows(x, padded)
    expected = Fp8Rows.quantize(x)
    assert torch.equal(scales, expected.scales)
    assert torch.equal(values[:, :width].view(torch.uint8), expected.values.view(torch.uint8))
    assert not values[:, width:].view(torch.uint8).any()


def test_every_number_is_rounded_to_the_nearest() -> None:
    """A row for each exponent that matters: numbers between two of e4m3's, on them, and halfway."""
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (codes[1:] + codes[:-1]) / 2
    row = torch.cat([codes, halves, halves.nextafter(torch.tensor(0.0)), halves.nextafter(torch.tensor(448.0))])
    row = torch.cat([row, -row])[None].to(DEVICE)
    values, scales = quantize_rows(row, row.shape[1])
    assert scales.item() == 1
    assert torch.equal(values.view(torch.uint8), row.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_becomes_nan_and_spoils_no_other(bad: float) -> None:
    fresh_draw()
    x = torch.randn(3, 50, device=DEVICE)
    alone, _ = quantize_rows(x, 64)
    x[1, random.randrange(50)] = bad
    values, scales = quantize_rows(x, 64)
    assert (values.float() * scales)[1].isnan().all()
    assert torch.equal(values[::2].view(torch.uint8), alone[::2].view(torch.uint8))


def test_a_slice_of_wider_rows_is_read_in_place() -> None:
    wide = torch.randn(4, 64, device=DEVICE)
    values, _ = quantize_rows(wide[:, 16:48], 32)
    assert torch.equal(values.view(torch.uint8), quantize_rows(wide[:, 16:48].clone(), 32)[0].view(torch.uint8))
    assert quantize_rows(wide[:0], 64)[0].shape == (0, 64)
