"""The product with which the interpreter's is replaced has the same bits in tiles of any shape."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from model.kernels.cuda.interpreter import IS_INTERPRETED
from model.kernels.cuda.matmul import matmul
from tests.invariance import rounding_alone
from tests.support import interpreted_product


def test_a_number_is_one_chain_of_sums_in_tiles_of_any_shape() -> None:
    x, weight = rounding_alone(20, 70, 33, torch.float32)
    a, b, d = x.numpy(), weight.numpy().T, np.random.default_rng().standard_normal((20, 33), np.float32)
    whole = interpreted_product.product(a, b, d)
    np.testing.assert_allclose(whole, d + a.astype(np.float64) @ b, atol=1e-5 * np.abs(a).sum(), rtol=0)
    for rows, columns in ((slice(1), slice(None)), (slice(3, 19), slice(1)), (slice(7, 8), slice(5, 21))):
        part = interpreted_product.product(a[rows], b[:, columns], d[rows, columns])
        assert np.array_equal(part, whole[rows, columns])
    halves = interpreted_product.product(a[:, 32:], b[32:], interpreted_product.product(a[:, :32], b[:32], d))
    assert np.array_equal(halves, whole)


@pytest.mark.skipif(not IS_INTERPRETED, reason="a GPU runs the kernels")
def test_interpreted_kernels_multiply_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted_product, "product", lambda a, b, d: np.full_like(d, 7))
    assert (matmul(torch.ones(2, 16), torch.ones(3, 16)) == 7).all()
