"""Products with weights in blocks of 64 outputs."""

import itertools
import random
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from lightwell.model.kernels import library
from lightwell.model.kernels.checks import ACTIVATIONS
from lightwell.model.kernels.forms import lay_weight
from lightwell.model.kernels.library import kernels
from lightwell.model.kernels.products import DOT, WIDEN, Arithmetic, BlockedWeight
from tests.model.kernels.levels import at_level, each_level

_KINDS = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float32 times bfloat16": (torch.float32, torch.bfloat16),
}
"""The dtypes of rows and of weights."""
_SUFFIX = {"float32": "f32", "bfloat16": "bf16", "float32 times bfloat16": "f32_bf16"}
_SHAPES = (
    (1, 1, 1),
    (2, 7, 3),
    (5, 64, 65),
    (6, 33, 130),
    (7, 127, 64),
    (13, 129, 70),
    (32, 200, 129),
    (129, 70, 67),
    (193, 515, 10),
    (400, 37, 77),
)
"""Rows, inputs, outputs: the first-level cache's pieces, groups of rows and blocks of columns, whole and with
remainders.
"""


def _drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _plainly(
    kind: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: int
) -> torch.Tensor:
    """Compute the product by one fused multiply-add after the other."""
    out = x.new_empty(len(x), len(weight))
    addresses = x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr()
    sizes = len(x), weight.shape[1], len(weight)
    kernels().call(f"product_plain_{_SUFFIX[kind]}", "ppppllll", *addresses, *sizes, activation)
    return out


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether all bits are the same, also for zeros and NaNs."""
    bits = torch.int32 if a.dtype == torch.float32 else torch.int16
    return a.dtype == b.dtype and torch.equal(a.view(bits), b.view(bits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (64, 8), (3, 5), (65, 31), (130, 34), (200, 77), (0, 3), (3, 0)])
def test_a_packed_weight_gives_back_its_bits(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = _drawn(*shape, dtype=dtype)
    weight.flatten()[:1] = float("nan")
    for level in library.levels():
        with at_level(level):
            assert _same(BlockedWeight(weight).to_dense(), weight)


@pytest.mark.parametrize("kind", _KINDS)
def test_products_have_the_bits_of_one_chain_of_multiply_adds_at_every_level_and_on_any_number_of_threads(
    kind: str,
) -> None:
    rows_dtype, weight_dtype = _KINDS[kind]
    choose = random.Random(0)
    for (rows, inputs, outputs), has_bias in itertools.product(_SHAPES, (False, True)):
        x, weight = _drawn(rows, inputs, dtype=rows_dtype), _drawn(outputs, inputs, dtype=weight_dtype)
        bias = _drawn(outputs, dtype=rows_dtype) if has_bias else None
        activation = choose.choice(list(ACTIVATIONS))
        wanted = _plainly(kind, x, weight, bias, ACTIVATIONS[activation])
        for level in library.levels():
            with at_level(level):
                blocked = BlockedWeight(weight)
                for threads in (1, 2, 3):
                    library.set_num_threads(threads)
                    assert _same(blocked.multiply(x, bias, activation), wanted), (level, threads, x.shape, activation)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("arithmetic", [WIDEN, DOT])
def test_a_row_has_the_same_bits_alone_and_among_others(kind: str, arithmetic: Arithmetic) -> None:
    rows_dtype, weight_dtype = _KINDS[kind]
    x, blocked = _drawn(300, 601, dtype=rows_dtype), BlockedWeight(_drawn(77, 601, dtype=weight_dtype), arithmetic)
    whole = blocked.multiply(x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 18, 24, 31, 64, 128, 129, 192, 193, 299):
        library.set_num_threads(rows % 3 + 1)
        assert _same(blocked.multiply(x[-rows:]), whole[-rows:]), rows


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("arithmetic", [WIDEN, DOT])
@each_level
def test_products_are_those_of_float64_within_what_sums_in_float32_may_lose(
    level: str, kind: str, arithmetic: Arithmetic
) -> None:
    rows_dtype, weight_dtype = _KINDS[kind]
    for rows, inputs, outputs in _SHAPES:
        x, weight = _drawn(rows, inputs, dtype=rows_dtype), _drawn(outputs, inputs, dtype=weight_dtype)
        with at_level(level):
            y = BlockedWeight(weight, arithmetic).multiply(x).double()
        wanted, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
        rounding = wanted.abs() * 2**-8 if rows_dtype == torch.bfloat16 else 0
        assert bool(((y - wanted).abs() <= inputs * 2**-24 * size + rounding + 1e-30).all())


def test_the_first_steps_of_a_chain_keep_the_sign_of_zero_and_what_is_no_number() -> None:
    """Multiply numbers that zeros after the inputs, or a sum started again, would change."""
    tiny, inf = 1e-30, float("inf")
    for rows in (1, 7, 200):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.tensor([[tiny, 0, tiny]]).repeat(rows, 1).to(dtype)
            blocked = BlockedWeight(
                torch.tensor([[0.0, 0, -tiny], [inf, 1, 1], [float("nan"), 0, 0], [1, 0, -inf]]).to(dtype)
            )
            y = blocked.multiply(x).float()
            assert bool((y[:, 0] == 0).all())
            assert bool(torch.signbit(y[:, 0]).all())  # -tiny * tiny rounds to -0
            assert bool((y[:, 1] == inf).all())
            assert bool(y[:, 2].isnan().all())
            assert bool((y[:, 3] == -inf).all())


def test_products_of_nothing_are_empty_or_what_the_bias_says() -> None:
    bias = torch.tensor([1.0, -2.0])
    assert BlockedWeight(torch.empty(2, 3)).multiply(torch.empty(0, 3)).shape == (0, 2)
    assert BlockedWeight(torch.empty(0, 3)).multiply(torch.empty(4, 3)).shape == (4, 0)
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (1, 8, 200):
            y = BlockedWeight(torch.empty(2, 0, dtype=dtype)).multiply(
                torch.empty(rows, 0, dtype=dtype), bias.to(dtype)
            )
            assert torch.equal(y.float(), bias.repeat(rows, 1))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_a_thread_that_ends_gives_back_what_it_computed_in() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def compute_in_a_thread() -> None:
        thread = threading.Thread(target=lambda: blocked.multiply(x))
        thread.start()
        thread.join()

    x, blocked = _drawn(192, 16384, dtype=torch.bfloat16), BlockedWeight(_drawn(1, 16384, dtype=torch.bfloat16))
    library.set_num_threads(1)
    compute_in_a_thread()
    before, taken_by_each = resident_bytes(), 4 * x.numel()  # float32 rows
    for _ in range(20):
        compute_in_a_thread()
    assert resident_bytes() - before < 5 * taken_by_each


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("arithmetic", [WIDEN, DOT])
@each_level
def test_the_largest_column_is_the_first_largest_of_the_product(level: str, kind: str, arithmetic: Arithmetic) -> None:
    rows_dtype, weight_dtype = _KINDS[kind]
    for rows, inputs, outputs in (*_SHAPES, (3, 20, 5000)):
        x, weight = _drawn(rows, inputs, dtype=rows_dtype), _drawn(outputs, inputs, dtype=weight_dtype)
        weight[outputs // 2 :] = weight[: outputs - outputs // 2].clone()  # so that there are equals
        with at_level(level):
            blocked = BlockedWeight(weight, arithmetic)
            y = blocked.multiply(x).float().numpy()
            for threads in (1, 2, 3):
                library.set_num_threads(threads)
                found = blocked.find_largest(x)
                assert found is not None
                places, numbers = found
                assert places.tolist() == np.argmax(y, 1).tolist()
                assert np.array_equal(numbers.numpy(), y.max(1))


def test_no_largest_column_is_told_where_a_number_of_the_product_is_not_finite() -> None:
    for dtype, bad, column in itertools.product(
        (torch.float32, torch.bfloat16), (float("nan"), float("inf"), float("-inf")), (0, 63, 64, 99)
    ):
        weight, x = _drawn(100, 8, dtype=dtype), _drawn(9, 8, dtype=dtype)
        weight[column, 3] = bad
        assert BlockedWeight(weight).find_largest(x) is None
    found = BlockedWeight(-torch.ones(3, 1)).find_largest(torch.ones(2, 1))
    assert found is not None
    assert found[0].tolist() == [0, 0]  # the filling is not searched


def test_a_product_of_many_rows_counts_each_piece_as_progress() -> None:
    blocked, x = BlockedWeight(torch.randn(100, 8)), torch.randn(1000, 8)
    done = library.progress()
    blocked.multiply(x)
    assert library.progress() - done >= 5


def test_wrong_arguments_are_refused_by_name() -> None:
    blocked, x = BlockedWeight(torch.randn(4, 3)), torch.randn(2, 3)
    for wrong in (torch.randn(2, 4), torch.randn(3), torch.randn(3, 2).T, x.double(), x.bfloat16()):
        with pytest.raises(ValueError, match=r"^x "):
            blocked.multiply(wrong)
        with pytest.raises(ValueError, match=r"^x "):
            blocked.find_largest(wrong)
    for wrong in (torch.randn(3), torch.randn(4, 1), torch.randn(4).bfloat16()):
        with pytest.raises(ValueError, match=r"^bias "):
            blocked.multiply(x, wrong)
    with pytest.raises(ValueError, match=r"^activation is 'tanh'"):
        blocked.multiply(x, None, "tanh")
    with pytest.raises(ValueError, match=r"^arithmetic is 2"):
        BlockedWeight(torch.randn(4, 3), arithmetic=2)
    with pytest.raises(ValueError, match=r"^row_dtype is torch.float64"):
        BlockedWeight(torch.randn(4, 3), row_dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^weight "):
        BlockedWeight(torch.randn(4, 3).double())
    with pytest.raises(ValueError, match="outputs"):
        BlockedWeight(torch.empty(0, 3)).find_largest(x)


def test_a_float32_weight_that_bfloat16_holds_takes_half_the_memory_and_gives_the_same_bits() -> None:
    exact, x = torch.randn(192, 96).bfloat16().float(), torch.randn(5, 96)
    whole = lay_weight(exact, arithmetic=WIDEN, keep_dtype=True)
    half = lay_weight(exact, arithmetic=WIDEN)
    assert 2 * half.packed.nbytes == whole.packed.nbytes
    assert _same(half.multiply(x), whole.multiply(x))
    inexact = lay_weight(exact + exact * 2**-12, arithmetic=WIDEN)
    assert inexact.packed.nbytes == whole.packed.nbytes
