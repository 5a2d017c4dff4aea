"""The device of the kernels' tests, and random draws for them."""

import random
import secrets

import pytest
import torch

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED

DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.nightly)], ids=str
)


def fresh_draw() -> random.Random:
    """Return a source of random choices, and seed torch's, by a number that a failing test shows."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return random.Random(seed)


def normal(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """Return random numbers on the card, or where it is interpreted."""
    return (scale * torch.randn(shape)).to(DEVICE, dtype)


def assert_close(ours: torch.Tensor, expected: torch.Tensor, roundings: float, scale: float = 1.0) -> None:
    """Assert that numbers differ by at most `roundings` roundings to their dtype; numbers below `scale` by at most
    `roundings` roundings of float32 at `scale`.
    """
    eps, wide_eps = torch.finfo(ours.dtype).eps, torch.finfo(torch.float32).eps
    torch.testing.assert_close(
        ours.double(), expected.double(), rtol=roundings * eps, atol=8 * scale * wide_eps, equal_nan=True
    )
