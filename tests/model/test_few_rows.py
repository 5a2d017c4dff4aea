"""Products of few rows by our own kernels: oneDNN's bits, for any number of rows, or not at all."""

# mypy: disable-error-code="no-untyped-call"
# (numba infers the types of compiled functions)

import random
from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch

from model.layers import arrays
from model.layers.addresses import array_at
from model.layers.arrays import bits
from model.layers.few_rows import BLOCK, FewRowsWeight, few_rows_of
from model.layers.few_rows_kernels import MOST_ROWS, multiply_columns
from model.layers.packed_weight import NO_POST_OP, PackedWeight, pack, rounding_alone
from model.layers.tiles import has_wide_vectors, multiplies_bfloat16

DTYPES = [
    pytest.param(
        torch.float32, marks=pytest.mark.skipif(not has_wide_vectors(), reason="this CPU has no AVX-512"), id="float32"
    ),
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU multiplies no bfloat16"),
        id="bfloat16",
    ),
]


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def _both(weight: torch.Tensor) -> tuple[PackedWeight, FewRowsWeight]:
    """oneDNN's way and ours, of a weight that every CPU on which these tests run must be able to multiply."""
    packed = pack(weight, batch_invariant=True)
    few = few_rows_of(packed, weight)
    assert few is not None
    return packed, FewRowsWeight(packed, few, weight.dtype)


def _random_shape(rng: random.Random) -> tuple[int, int]:
    """in and out: often small, sometimes several chains long; out of any rest."""
    return 32 * rng.choice([2, 3, 7, 16, 17, 24, 33, 64, 70]), rng.randint(1, rng.choice([70, 300, 900]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_rows_has_the_bits_of_onednn(dtype: torch.dtype, num_threads: int) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tried = 0
    for _ in range(4):
        inputs, outputs = _random_shape(rng)
        x, weight = rounding_alone(MOST_ROWS, inputs, outputs, dtype)  # each change in the order of a sum shows
        x = x[torch.randperm(MOST_ROWS)]
        packed = pack(weight, batch_invariant=True)
        few = few_rows_of(packed, weight)
        if few is None:
            continue  # oneDNN shares sums of few columns among its threads
        tried += 1
        ours, bias = FewRowsWeight(packed, few, dtype), rng.choice([None, torch.randn(outputs).to(dtype)])
        for rows in {*range(1, 35), *rng.sample(range(35, MOST_ROWS), 30), MOST_ROWS}:
            y, expected = ours.multiply(x[:rows], bias, NO_POST_OP), packed.multiply(x[:rows], bias, NO_POST_OP)
            assert torch.equal(y, expected), f"seed {seed}: {rows} rows, {inputs} x {outputs}"
    assert tried, f"seed {seed}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_ordinary_numbers_come_out_as_from_onednn(dtype: torch.dtype) -> None:
    weight, x, bias = (torch.randn(shape).to(dtype) for shape in ((300, 688), (9, 688), (300,)))
    packed, ours = _both(weight)
    for rows in (1, 9):
        assert torch.equal(ours.multiply(x[:rows], bias, NO_POST_OP), packed.multiply(x[:rows], bias, NO_POST_OP))
    assert torch.equal(ours.to_dense(), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_activation_and_many_rows_are_left_to_onednn(dtype: torch.dtype) -> None:
    weight, x = torch.randn(96, 64).to(dtype), torch.randn(100, 64).to(dtype)
    packed, ours = _both(weight)
    for rows, post_op in ((0, NO_POST_OP), (3, ("swish", "")), (100, NO_POST_OP)):
        assert torch.equal(ours.multiply(x[:rows], None, post_op), packed.multiply(x[:rows], None, post_op))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_multiplies_one_block_by_the_address_of_the_weight(dtype: torch.dtype) -> None:
    @numba.njit
    def last_block(x, address, chain, inputs, outputs, sums):  # type: ignore[no-untyped-def]
        num_blocks = (outputs + BLOCK - 1) // BLOCK
        weights = array_at(address, num_blocks * inputs * BLOCK, x)
        multiply_columns(x, len(x), weights, chain, inputs, num_blocks - 1, sums)

    weight, x = torch.randn(100, 128).to(dtype), torch.randn(5, 128).to(dtype)
    packed = pack(weight, batch_invariant=True)
    few = few_rows_of(packed, weight)
    assert few is not None
    assert few.inputs == 128
    sums = np.empty((len(x), BLOCK), np.float32)
    last_block(bits(x), few.address, few.chain, few.inputs, few.outputs, sums)
    expected = packed.multiply(x, None, NO_POST_OP)[:, BLOCK:]
    assert torch.equal(torch.from_numpy(sums).to(dtype)[:, : 100 - BLOCK], expected)
    assert not sums[:, 100 - BLOCK :].any()  # the block is filled up with zeros


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_that_does_not_hold_the_weight_is_left_alone(dtype: torch.dtype) -> None:
    weight = torch.randn(200, 64).to(dtype)
    packed = pack(weight, batch_invariant=True)
    assert few_rows_of(packed, weight) is not None
    other = weight.clone()
    other[-1, -1] += 1
    assert few_rows_of(packed, other) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_compiled_kernels_onednn_multiplies(dtype: torch.dtype) -> None:
    weight = torch.randn(64, 64).to(dtype)
    packed = pack(weight, batch_invariant=True)
    arrays.use_compiler(False)
    try:
        assert few_rows_of(packed, weight) is None
    finally:
        arrays.use_compiler(True)
