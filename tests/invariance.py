"""Asserts that a row of a layer's answer does not depend on the rows beside it, bit for bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_rows_do_not_depend_on_the_batch(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Compare slices of x [rows, in], one row up to nearly all, with the same rows of the whole; 1 and 2 threads."""
    for threads in (1, 2):
        with num_threads(threads):
            whole = layer(x)
            for first, count in ((0, 1), (1, 1), (7, 1), (-1, 1), (0, 2), (5, 3), (1, 8), (3, 17), (2, 65), (1, -1)):
                rows = x[first:][:count]
                assert torch.equal(layer(rows.clone()), whole[first:][:count]), (
                    f"{len(rows)} rows from {first} on differ from the same rows among {len(x)}, {threads} threads"
                )
