"""A sink gives the same answer for rows that arrive layer by layer, all together, or directly in its own memory."""

from typing import Any

import numpy as np
import pytest
import torch

from model.checkpoint.folder import PACKAGED
from model.checkpoint.registry import read_config
from model.hooks.head_pairs import HeadPairs
from model.hooks.hooks import RowSink
from server.engine.captures.attention_sink import AttentionSink, head_pairs
from server.engine.captures.window import Window
from server.engine.outputs import Array
from server.engine.request import AttentionCapture

CONFIG = read_config(PACKAGED)
PAIRS = ((1, 0), (0, 2), (1, 1), (0, 3))
NUM_KEYS = 10
OPTIONS: tuple[dict[str, Any], ...] = (
    {"dtype": "float16"},
    {"dtype": "float32"},
    {"dtype": "uint8"},
    {"kind": "scores"},
    {"reduce": "mean"},
    {"reduce": "max", "top_k": 2},
    {"top_k": 3},
)


def pattern(num_rows: int) -> torch.Tensor:
    """Return rows [pair, num_rows, NUM_KEYS] of visible keys."""
    return torch.rand(len(PAIRS), num_rows, NUM_KEYS).softmax(-1)


def give_layers(sink: AttentionSink, pairs: HeadPairs, rows: torch.Tensor) -> None:
    for layer, places in sorted(pairs.places.items()):
        sink.take(layer, 0, rows[places])


def numbers(array: Array) -> np.ndarray:
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


def same(one: AttentionSink, other: AttentionSink) -> bool:
    ours, theirs = one.arrays(), other.arrays()
    return ours.keys() == theirs.keys() and all(np.array_equal(numbers(ours[k]), numbers(theirs[k])) for k in ours)


class Recording(RowSink):
    def __init__(self) -> None:
        self.taken: list[tuple[int, int, torch.Tensor]] = []

    def take(self, layer: int, first: int, rows: torch.Tensor) -> None:
        self.taken.append((layer, first, rows))


def test_a_sink_without_its_own_way_gets_all_rows_layer_by_layer() -> None:
    pairs, rows, sink = HeadPairs.of(PAIRS, 2, 4), pattern(3), Recording()
    sink.take_all(pairs, rows)
    assert [(layer, first) for layer, first, _ in sink.taken] == [(0, 0), (1, 0)]
    assert torch.equal(sink.taken[0][2], rows[[1, 3]])
    assert torch.equal(sink.taken[1][2], rows[[0, 2]])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("is_changed", [False, True])
def test_the_row_of_a_token_is_the_same_together_and_by_layer(options: dict[str, Any], is_changed: bool) -> None:
    capture, rows = AttentionCapture(pairs=PAIRS, **options), pattern(1)
    pairs = head_pairs(capture, CONFIG)
    one, other = (AttentionSink.of_token(capture, CONFIG, pairs, 0, is_changed, NUM_KEYS - 1) for _ in range(2))
    one.take_all(pairs, rows)
    give_layers(other, pairs, rows)
    assert same(one, other)
    assert one.arrays()["attention"].shape[0] == (2 if "reduce" in options else len(PAIRS))
    assert len(one.arrays()["attention"].shape) == 2


@pytest.mark.parametrize("options", [*OPTIONS, {"resize": 4}, {"keys": (7, 2)}, {"queries": (8, 1, 5)}], ids=str)
def test_the_rows_of_a_prompt_are_the_same_together_and_by_layer(options: dict[str, Any]) -> None:
    capture = AttentionCapture(pairs=PAIRS, **options)
    pairs, every = head_pairs(capture, CONFIG), pattern(NUM_KEYS)
    one, other = (
        AttentionSink.of_prompt(capture, CONFIG, num_queries=NUM_KEYS, num_keys=NUM_KEYS, is_changed=False)
        for _ in range(2)
    )
    for start in (0, 6):
        window = Window(0, 0, start, 4 if start else 6)
        for sink in (one, other):
            [tap] = sink.hooks(window)
            rows = every[:, [start + row for row in tap.rows]]
            sink.take_all(pairs, rows) if sink is one else give_layers(sink, pairs, rows)
    assert same(one, other)


def test_a_pattern_written_into_the_sink_is_the_answer() -> None:
    capture, rows = AttentionCapture(pairs=((0, 0), (0, 1), (1, 2))), pattern(1)[:3]
    pairs = head_pairs(capture, CONFIG)
    sink = AttentionSink.of_token(capture, CONFIG, pairs, 0, False, NUM_KEYS - 1)
    for layer, places in pairs.places.items():
        room = sink.room(layer, NUM_KEYS)
        assert room is not None
        room.copy_(rows[places])
    assert np.array_equal(numbers(sink.arrays()["attention"]), rows[:, 0].numpy())
