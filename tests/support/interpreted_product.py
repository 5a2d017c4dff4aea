"""A product for Triton's interpreter with bits that do not depend on its shape.

The interpreter computes `tl.dot` with numpy, which adds up in an order that depends on the shape and on the CPU. Tests
that compare bits of interpreted kernels replace it: `multiply_in_one_order(monkeypatch)`.
"""

from typing import Any

import numpy as np
import pytest

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED


def multiply_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let interpreted kernels multiply with `product`. On a GPU this has no effect.

    The replaced method is private in Triton; its name and arguments are from version 3.7.1.
    """
    if not IS_INTERPRETED:
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(_: Any, a: Any, b: Any, d: Any, *_options: Any) -> Any:
        return TensorHandle(product(a.data, b.data, d.data), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def product(a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return d + a b. Every number is one chain of sums over the inputs, which starts with its number of `d`.

    a: [M, K]; b: [K, N]; d: [M, N].
    """
    a, b, sums = a.astype(d.dtype), b.astype(d.dtype), d.copy()
    for k in range(a.shape[1]):
        sums += a[:, k, None] * b[k]
    return sums
