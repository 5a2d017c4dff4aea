"""A batch: its blocks, which keys its rows see, and how threads share its attention."""

import numpy as np
import pytest

from lightwell.model.batch import Batch, Span
from tests.model.layers.attention_world import CPU


def test_what_a_row_sees() -> None:
    batch = Batch([Span([0] * 3, 2, [1, 2], 1), Span([0], 0, [3], 1)], 4, CPU)

    def seen(causal: bool, window: int | None) -> list[list[int]]:
        key_range = batch.key_range(causal, window)
        return [list(range(*pair)) for pair in zip(key_range.first_array, key_range.last_array, strict=True)]

    assert seen(True, None) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0]]
    assert seen(True, 2) == [[1, 2], [2, 3], [3, 4], [0]]
    assert seen(False, None) == [[0, 1, 2, 3, 4]] * 3 + [[0]]
    assert seen(False, 2) == [[1, 2, 3], [2, 3, 4], [3, 4], [0]]
    assert batch.key_range(True, 2) is batch.key_range(True, 2)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_share_every_row_and_head_once_and_take_equal_work(num_threads: int) -> None:
    """Alternate a prompt with rows that decode after short and long texts."""
    lengths = [3000 if i % 2 else 8 for i in range(24)]
    spans = [Span([0] * 700, 0, range(1, 200), 1), *(Span([0], length, range(1, 200), 1) for length in lengths)]
    batch = Batch(spans, 16, CPU)
    taken, shares = np.zeros((batch.num_rows, 6), int), np.zeros(num_threads)
    for items in batch.attention_items(batch.num_rows, 6, num_threads):
        for thread, own in enumerate(np.array_split(items.array, num_threads)):
            for span, row, rows, head, heads in own.tolist():
                assert batch.first_rows[span] <= row < row + rows <= batch.first_rows[span + 1]
                taken[row : row + rows, head : head + heads] += 1
                shares[thread] += rows * heads * (batch.positions_array[row] + 1)
    assert (taken == 1).all()
    assert shares.max() <= 1.1 * shares.mean()
