"""Maximum flows against networkx's, in layered graphs with edges that are full, empty and few."""

from typing import Any

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.model.kernels import library
from lightwell.model.kernels.flow import maximum_flow
from tests.model.kernels.everywhere import everywhere

pytestmark = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")


def draw_capacities(layers: int, n: int, largest: int, density: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    drawn: np.ndarray = rng.integers(0, largest, (layers, n, n), np.int32, endpoint=True)
    return np.where(rng.random(drawn.shape) < density, drawn, np.int32(0))


def slow_flow(capacities: np.ndarray, source: int, target: int) -> int:
    graph = networkx.DiGraph()
    for (level, i, j), capacity in np.ndenumerate(capacities):
        graph.add_edge((level + 1, i), (level, j), capacity=int(capacity))
    return int(networkx.maximum_flow_value(graph, (len(capacities), source), (0, target)))


@settings(max_examples=40)
@given(
    layers=st.integers(1, 6),
    n=st.integers(1, 8),
    largest=st.sampled_from([1, 10, 2**31 - 1]),
    density=st.sampled_from([0.2, 0.6, 1.0]),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_a_flow_is_networkxs(layers: int, n: int, largest: int, density: float, seed: int, data: st.DataObject) -> None:
    capacities = draw_capacities(layers, n, largest, density, seed)
    source, target = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    (found,) = everywhere(lambda: (torch.tensor(maximum_flow(capacities, source, target)),))
    assert found.item() == slow_flow(capacities, source, target)


def test_the_capacities_may_lie_in_any_order_and_stay_as_they_are() -> None:
    capacities = draw_capacities(layers=3, n=5, largest=9, density=0.8, seed=1)
    turned = capacities.transpose(0, 2, 1)
    before = turned.copy()
    assert maximum_flow(turned, 4, 2) == slow_flow(turned, 4, 2)
    assert np.array_equal(turned, before)


def test_what_does_not_fit_is_refused_by_name() -> None:
    whole = np.ones((2, 3, 3), np.int32)
    others: list[Any] = [whole.astype(np.int64), whole[0], whole[:, :2], whole[:0], whole[:, :0, :0]]
    for wrong in others:
        with pytest.raises(ValueError, match=r"^capacities is int.*; int32 \[L, n, n\] is accepted"):
            maximum_flow(wrong, 0, 0)
    with pytest.raises(ValueError, match="capacities contains -1; 0 and above are accepted"):
        maximum_flow(whole - np.int32(2), 0, 0)
    with pytest.raises(ValueError, match="source is 3; 0 to 2 is accepted"):
        maximum_flow(whole, 3, 0)
    with pytest.raises(ValueError, match="target is -1; 0 to 2 is accepted"):
        maximum_flow(whole, 0, -1)
