"""Asserts that a row of a layer's answer does not depend on the other rows, bit for bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lightwell.model.kernels import library


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    before, ours = torch.get_num_threads(), library.num_threads()
    torch.set_num_threads(count)
    library.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        library.set_num_threads(ours)


def assert_rows_do_not_depend_on_the_batch(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Compare slices of x [rows, in], one row up to nearly all, with the same rows of the whole; 1 and 2 threads."""
    slices = [(0, 1), (1, 1), (7, 1), (-1, 1), (0, 2), (5, 3), (2, 4), (1, 8), (1, -1)]
    slices += [(count % 7, count + more) for count in (16, 32, 64, 128, 256) for more in (-1, 0, 1)]
    for threads in (1, 2):
        with num_threads(threads):
            whole = layer(x)
            for first, count in slices:
                rows = x[first:][:count]
                assert torch.equal(layer(rows.clone()), whole[first:][:count]), (
                    f"{len(rows)} rows from {first} on differ from the same rows among {len(x)}, {threads} threads"
                )


def rounding_alone(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [rows, in] and a weight [out, in] with a product of 0 except for rounding: each row's second half is
    minus its first, mixed. So every change in the order of a sum shows, where bfloat16 would round it away.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(inputs, generator=generator)
    half = torch.randn(rows, inputs // 2, generator=generator)
    half *= torch.exp2(6 * torch.randn(half.shape, generator=generator))  # so that few terms are rounded too
    weights = torch.randn(outputs, inputs // 2, generator=generator)
    odd = inputs % 2  # a zero, for its place in the sum
    x = torch.cat([half, -half, torch.zeros(rows, odd)], 1)[:, order]
    return x.to(dtype), torch.cat([weights, weights, torch.zeros(outputs, odd)], 1)[:, order].to(dtype)
