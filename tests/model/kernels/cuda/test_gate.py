"""The card's gate: against the formulas in float64."""

import math
from typing import get_args

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.config import Activation, ClampedGate
from lightwell.model.kernels.cuda.gate import gated
from lightwell.model.layers.dense_weight import activate
from tests.model.kernels.cuda.card import DEVICE, assert_close, each_dtype, fresh_draw, normal

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@each_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gate_is_the_formula(activation: Activation, dtype: torch.dtype) -> None:
    rng = fresh_draw()
    for ff in (1, 48, rng.randint(2, 300), rng.choice([1024, 2500])):
        gate_up = normal(rng.randint(1, 3), 2 * ff, dtype=dtype, scale=rng.choice([1.0, 3.0]))
        ours = gated(*gate_up.chunk(2, -1), activation)
        gate, up = gate_up.double().chunk(2, -1)
        assert ours.dtype == dtype
        assert ours.is_contiguous()
        assert_close(ours, activate(gate, activation) * up, 2.1 if dtype != torch.float32 else 10, scale=10)


@each_dtype
def test_gates_of_heads_and_clamped_gates_are_the_formulas(dtype: torch.dtype) -> None:
    fresh_draw()
    gate, up = normal(3, 300, dtype=dtype, scale=5), normal(3, 300, dtype=dtype, scale=5)
    roundings = 2.1 if dtype != torch.float32 else 10
    assert_close(gated(gate, up, "sigmoid"), gate.double().sigmoid() * up, roundings, scale=10)
    clamped = gate.double().clamp(max=7)
    expected = clamped * (1.702 * clamped).sigmoid() * (up.double().clamp(-7, 7) + 1)
    assert_close(gated(gate, up, "silu", ClampedGate(limit=7.0, alpha=1.702)), expected, roundings, scale=10)


@each_dtype
def test_the_activation_is_rounded_before_the_product(dtype: torch.dtype) -> None:
    fresh_draw()
    gate_up = normal(2, 600, dtype=dtype)
    gate, up = gate_up.chunk(2, -1)
    activated = gated(gate, torch.ones_like(up), "silu")
    assert torch.equal(gated(gate, up, "silu"), activated * up)


def test_large_gates_are_finite_and_what_is_not_a_number_stays_so() -> None:
    gate = torch.tensor([[-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4, math.nan]], device=DEVICE)
    for activation in ACTIVATIONS:
        ours = gated(gate, torch.ones_like(gate), activation)[0]
        assert_close(ours[4:7], gate[0, 4:7], roundings=4)
        assert ours[:4].abs().max() < 1e-6
        assert ours[7].isnan()


def test_a_row_has_the_same_bits_alone_and_as_a_slice() -> None:
    fresh_draw()
    wide = normal(5, 2 * 300 + 9, dtype=torch.bfloat16)
    for rows in (wide[:, :600], wide[:, 5:605], wide[::2, :600]):
        whole = gated(*rows.chunk(2, -1), "gelu")
        for i in range(len(rows)):
            assert torch.equal(gated(*rows[i : i + 1].clone().chunk(2, -1), "gelu")[0], whole[i])


def test_what_does_not_fit_is_refused() -> None:
    x = normal(2, 16, dtype=torch.float32)
    assert gated(x[:0], x[:0], "silu").shape == (0, 16)
    with pytest.raises(ValueError, match="up is"):
        gated(x, x[:, 1:], "silu")
    with pytest.raises(ValueError, match="float64"):
        gated(x.double(), x.double(), "silu")
    with pytest.raises(ValueError, match="'swish'"):
        gated(x, x, "swish")
