"""Runs kernels at every level of CPU that this machine has, and with several numbers of threads. It works with any
kernel.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lightwell.model.kernels import library
from tests.model.kernels.levels import at_level


def everywhere(compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the tensors that compute returns, after checking that their bits are the same at every level and in 1, 2
    and 3 threads.
    """
    first, *others = _results(compute)
    for other in others:
        assert_same_bits(other, first)
    return first


def _results(compute: Callable[[], tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    for level in library.levels():
        for count in (1, 2, 3):
            library.set_num_threads(count)
            with at_level(level):
                yield compute()


def assert_same_bits(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Assert that two results have the same bits. Of NaNs only the place is compared: sign and payload depend on the
    order in which a compiler puts an operation's operands.
    """
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(_bits(one), _bits(other))


def _bits(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    return torch.where(x.isnan(), torch.nan, x).view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def draw_numbers(*shape: int, dtype: torch.dtype = torch.float32, special: bool = False, seed: int = 0) -> Tensor:
    """Draw normal numbers; with `special`, also zeros of both signs, infinities, NaN, a tiny and a huge number."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(shape, generator=generator)
    if special and x.numel() > 0:
        unusual = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 3e38])
        x.view(-1)[torch.randint(x.numel(), unusual.shape, generator=generator)] = unusual
    return x.to(dtype)
