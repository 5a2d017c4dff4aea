"""Soft capping: the formula, and rows that do not depend on the batch."""

import pytest
import torch

from model.layers.soft_cap import soft_cap
from tests.invariance import assert_rows_do_not_depend_on_the_batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logits_are_capped_by_the_formula(dtype: torch.dtype) -> None:
    logits = (torch.randn(9, 333) * torch.logspace(-3, 3, 333)).to(dtype)
    exact = 30 * torch.tanh(logits.double() / 30)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(soft_cap(logits.clone(), 30.0).double(), exact, atol=0, rtol=tolerance)


def test_a_capped_row_has_the_same_bits_in_every_batch() -> None:
    assert_rows_do_not_depend_on_the_batch(lambda x: soft_cap(x.clone(), 5.0), 10 * torch.randn(300, 171))
