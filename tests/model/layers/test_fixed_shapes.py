"""Products in tiles of one shape: close to float64, and the same bits whatever else is in the batch, on any device."""

import random

import pytest
import torch

from lightwell.model.config import Activation
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.layers import fixed_shapes
from lightwell.model.layers.attention_arithmetic import InvariantArithmetic
from lightwell.model.layers.dense_weight import activate
from lightwell.model.layers.linear import Linear
from tests.invariance import assert_rows_do_not_depend_on_the_batch, num_threads, rounding_alone

DEVICES = [
    pytest.param("cpu"),
    pytest.param(
        "cuda",
        marks=(
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
        ),
    ),
]
on_every_device = pytest.mark.parametrize("device", DEVICES)
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
WIDE = [torch.float64, torch.float32]
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu")
SHAPES = [(256, 333), (2048, 31), (7, 5)]


@on_every_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_sum_of_a_row_has_one_order_in_every_batch(
    inputs: int, outputs: int, dtype: torch.dtype, device: str
) -> None:
    x, weight = rounding_alone(150, inputs, outputs, dtype)
    x = x.clamp(-99, 99)  # within float16's range
    bias = torch.randn(outputs).to(device, dtype)
    layer = Linear(weight.to(device), bias, kernels=KernelConfig("torch"), activation=random.choice(ACTIVATIONS))
    assert_rows_do_not_depend_on_the_batch(layer, x.to(device))
    assert_rows_do_not_depend_on_the_batch(layer.product, x.to(device))


@on_every_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 63, 64, 200])
def test_layers_agree_with_float64(rows: int, dtype: torch.dtype, device: str) -> None:
    weight, bias = (torch.randn(90, 70) / 8).to(device, dtype), torch.randn(90).to(device, dtype)
    x = torch.randn(70, rows).to(device, dtype).T  # not contiguous
    exact = activate(x.double() @ weight.double().T + bias.double(), "silu")
    found = Linear(weight, bias, kernels=KernelConfig("torch"), activation="silu")(x)
    assert found.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)


@on_every_device
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("num_keys", [1, 127, 128, 129, 400])
def test_attention_over_many_tiles_agrees_with_float64(num_keys: int, dtype: torch.dtype, device: str) -> None:
    arithmetic = InvariantArithmetic()
    q, k, v = (torch.randn(11, n, 20).to(device, dtype) for n in (37, num_keys, num_keys))
    exact = torch.softmax(q.double() @ k.double().transpose(1, 2), -1)
    pattern = arithmetic.softmax(arithmetic.dots(q, k.transpose(1, 2)))
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    torch.testing.assert_close(pattern.double(), exact, atol=tolerance, rtol=0)
    torch.testing.assert_close(arithmetic.mix(pattern, v).double(), exact @ v.double(), atol=tolerance, rtol=0)


@on_every_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_sees_the_same_whatever_rows_heads_and_unseen_keys_stand_beside_it(
    dtype: torch.dtype, device: str
) -> None:
    arithmetic = InvariantArithmetic()
    q, k, v = (3 * torch.randn(19, n, 20).to(device, dtype) for n in (70, 500, 500))

    def attend(heads: slice, rows: slice, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with rows that see 300 keys of `num_keys`, through a cap; return the patterns and the weighted sums of
        the values.
        """
        scores = arithmetic.dots(q[heads, rows], k[heads, :num_keys].transpose(1, 2))
        scores = 30 * arithmetic.tanh(scores / 30)
        scores[..., 300:] = float("-inf")
        pattern = arithmetic.softmax(scores)
        return pattern[..., :300], arithmetic.mix(pattern, v[heads, :num_keys])

    for threads in (1, 2):
        with num_threads(threads):
            patterns, mixed = attend(slice(None), slice(None), 500)
            for heads in (slice(4, 5), slice(3, 12), slice(18, 19)):
                for rows in (slice(5, 41), slice(69, 70)):
                    for num_keys in (300, 385):
                        pattern, z = attend(heads, rows, num_keys)
                        assert torch.equal(pattern, patterns[heads, rows])
                        assert torch.equal(z, mixed[heads, rows])


def test_values_that_are_no_numbers_come_to_the_rows_that_see_them_alone() -> None:
    arithmetic = InvariantArithmetic()
    pattern = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]])
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [float("inf"), 5.0]]])
    found = arithmetic.mix(pattern, values)
    assert found[0, 0].tolist() == [2.0, 3.0]
    assert found[0, 1, 0].isnan()
    assert found[0, 1, 1] == 4.0


@on_every_device
@pytest.mark.parametrize("width", [1, 127, 128, 1000])
def test_sums_of_rows_have_one_order_in_every_batch(width: int, device: str) -> None:
    x, _ = rounding_alone(300, width, 1, torch.float32)
    torch.testing.assert_close(fixed_shapes.row_sums(x.to(device, torch.float64)).cpu(), x.double().sum(-1, True))
    assert_rows_do_not_depend_on_the_batch(fixed_shapes.row_sums, x.to(device))


@on_every_device
def test_a_softmax_over_a_vocabulary_of_any_size_gives_a_row_the_same_bits_wherever_it_stands(device: str) -> None:
    logits = 5 * torch.randn(9, 5003, device=device)
    whole = fixed_shapes.aligned_rows(logits).log_softmax(-1)[:, :5003]
    torch.testing.assert_close(whole, logits.log_softmax(-1))
    for row in range(9):
        alone = fixed_shapes.aligned_rows(logits[row : row + 1]).log_softmax(-1)[:, :5003]
        assert torch.equal(alone, whole[row : row + 1])


@on_every_device
def test_a_function_of_single_numbers_gives_each_the_same_wherever_it_stands(device: str) -> None:
    x = torch.randn(50_001, dtype=torch.float64, device=device)
    whole = fixed_shapes.whole_vectors(torch.nn.functional.gelu, x)
    torch.testing.assert_close(whole, torch.nn.functional.gelu(x))
    for first, last in ((0, 1), (3, 68), (16_383, 16_386), (7, 50_001)):
        assert torch.equal(fixed_shapes.whole_vectors(torch.nn.functional.gelu, x[first:last]), whole[first:last])
