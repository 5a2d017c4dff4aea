"""A sink gives the same answer for rows that arrive layer by layer, all together, or directly in its own memory."""

from typing import Any

import numpy as np
import pytest
import torch

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.server.engine.captures.attention_sink import AttentionSink, head_pairs
from lightwell.server.engine.captures.window import Window
from lightwell.server.engine.messages.outputs import Array
from lightwell.server.engine.messages.request import AttentionCapture

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
