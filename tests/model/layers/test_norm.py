"""Norms: the precision that transformers uses, and rows that do not depend on the batch."""

from collections.abc import Callable

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lightwell.model.layers.norm import LayerNorm, RmsNorm
from tests.invariance import assert_rows_do_not_depend_on_the_batch

WIDTHS = (16, 171, 768)


def rms(width: int, dtype: torch.dtype) -> RmsNorm:
    return RmsNorm((1 + torch.randn(width) / 3).to(dtype), 1e-5)


def layer_norm(width: int, dtype: torch.dtype) -> LayerNorm:
    return LayerNorm((1 + torch.randn(width) / 3).to(dtype), torch.randn(width).to(dtype), 1e-5)


@pytest.mark.parametrize("make", [rms, layer_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_normed_row_has_the_same_bits_in_every_batch(
    make: Callable[[int, torch.dtype], RmsNorm | LayerNorm], dtype: torch.dtype, width: int
) -> None:
    torch.manual_seed(width)
    assert_rows_do_not_depend_on_the_batch(make(width, dtype), (5 * torch.randn(300, width)).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_equals_the_one_of_transformers(dtype: torch.dtype) -> None:
    ours = rms(100, dtype)
    theirs = LlamaRMSNorm(100, eps=1e-5).to(dtype)
    theirs.weight.data = ours.weight
    x = (3 * torch.randn(40, 100)).to(dtype)
    # The sum of squares, its root, and two products are rounded.
    torch.testing.assert_close(ours(x), theirs(x).detach(), atol=0, rtol=3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_weight_around_zero_is_added_to_one_before_anything_is_rounded(dtype: torch.dtype) -> None:
    weight, x = (torch.randn(100) / 3).to(dtype), (3 * torch.randn(40, 100)).to(dtype)
    theirs = Gemma2RMSNorm(100, eps=1e-5).to(dtype)
    theirs.weight.data = weight
    ours = RmsNorm(weight, 1e-5, weight_offset=1.0)
    torch.testing.assert_close(ours(x), theirs(x).detach(), atol=0, rtol=3 * torch.finfo(dtype).eps)
    assert_rows_do_not_depend_on_the_batch(ours, (5 * torch.randn(300, 100)).to(dtype))
