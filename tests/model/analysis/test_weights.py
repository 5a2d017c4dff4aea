"""Answers about the weights, against the plain definitions on the checkpoint's own tensors."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.matrices import UnknownMatrix, find_matrix
from lightwell.model.analysis.weight_geometry import BINS, QUANTILES, geometry
from lightwell.model.analysis.weights import answer
from lightwell.model.config import ExpertsConfig
from lightwell.model.loading.loader import build_model
from tests.model.analysis.weights_by_hand import ask, matrix_by_hand, network


def test_names_that_are_not_there_are_answered_with_those_that_are() -> None:
    config, _, _ = network("gpt2")
    for name in ("W_gate", "blocks.0.mlp.W_gate", "cross_attn.W_Q", "W_q", ""):
        with pytest.raises(UnknownMatrix, match=r"similar names are .*W_"):
            find_matrix(config, name, 0)
    with pytest.raises(UnknownMatrix, match="set layer to a number from 0 to"):
        find_matrix(config, "W_Q")
    with pytest.raises(UnknownMatrix, match="no layer 99"):
        find_matrix(config, "blocks.99.attn.W_Q")
    assert find_matrix(config, "W_Q", 1) == find_matrix(config, "blocks.1.attn.W_Q")
    experts = ExpertsConfig(num_experts=4, num_chosen=2, intermediate_size=8, normalized=True, dense_layers=(1,))
    mixed = replace(config, experts=experts)
    assert find_matrix(mixed, "W_in", 1) == find_matrix(config, "W_in", 1)
    with pytest.raises(UnknownMatrix, match=r"layer 0 has experts and no 'mlp.W_in'; layers \(1,\) have it"):
        find_matrix(mixed, "W_in", 0)


def cosines_by_hand(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = unit @ unit.T
    return gram, gram[np.triu_indices(len(gram), 1)]


@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize("matrix", ["embed.W_E", "blocks.1.mlp.W_in"])
def test_geometry_is_that_of_the_whole_gram_matrix(matrix: str, axis: str) -> None:
    found = ask("llama-gqa", "geometry", matrix=matrix, axis=axis)
    by_hand = matrix_by_hand("llama-gqa", matrix)
    vectors = by_hand if axis == "rows" else by_hand.T
    gram, cosines = cosines_by_hand(vectors)
    assert found["counts"].tolist() == [*vectors.shape, 0, len(cosines), len(cosines), 0]
    expected = [cosines.mean(), cosines.std(), cosines.min(), cosines.max()]
    np.testing.assert_allclose(found["moments"], expected, atol=1e-6)
    np.testing.assert_allclose(found["quantiles"], np.quantile(cosines, QUANTILES, method="inverted_cdf"), atol=6e-4)
    edges = np.linspace(-1, 1, BINS + 1)
    assert np.abs(found["histogram"] - np.histogram(cosines, edges)[0]).sum() <= 4  # on an edge
    off = np.abs(gram - np.eye(len(gram)))  # the largest deviation of the Gram matrix from the identity
    np.testing.assert_allclose(abs(found["closest"][0]), off.max(), atol=1e-6)
    for value, (i, j) in zip(found["closest"], found["closest_pairs"], strict=True):
        np.testing.assert_allclose(value, gram[i, j], atol=1e-6)
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(by_hand, compute_uv=False), atol=1e-6)


def test_geometry_of_one_head() -> None:
    config, _, _ = network("llama-gqa")
    d = config.head_dim
    found = ask("llama-gqa", "geometry", matrix="blocks.0.attn.W_K", axis="columns", head=1)
    by_hand = matrix_by_hand("llama-gqa", "blocks.0.attn.W_K")[:, d : 2 * d]
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(by_hand, compute_uv=False), atol=1e-6)
    found = ask("llama-gqa", "geometry", matrix="blocks.0.attn.W_O", axis="rows", head=2)
    by_hand = matrix_by_hand("llama-gqa", "blocks.0.attn.W_O")[2 * d : 3 * d]
    np.testing.assert_allclose(found["singular_values"], np.linalg.svd(by_hand, compute_uv=False), atol=1e-6)


def test_many_blocks_are_put_together_as_one() -> None:
    vectors = torch.randn(2500, 40, generator=torch.Generator().manual_seed(5))
    vectors[7] = 0.0
    found = {key: tensor.numpy() for key, tensor in geometry(vectors, lambda: None).items()}
    _, cosines = cosines_by_hand(np.delete(vectors.double().numpy(), 7, axis=0))
    assert found["counts"].tolist() == [2500, 40, 1, len(cosines), len(cosines), 0]
    np.testing.assert_allclose(found["moments"], [0, cosines.std(), cosines.min(), cosines.max()], atol=2e-4)
    assert found["histogram"].sum() == len(cosines)
    i, j = found["closest_pairs"][0]
    assert 7 not in found["closest_pairs"]
    pair = vectors[[i, j]].double().numpy()
    np.testing.assert_allclose(cosines_by_hand(pair)[1][0], found["closest"][0], atol=1e-6)
    np.testing.assert_allclose(abs(found["closest"][0]), np.abs(cosines).max(), atol=1e-6)


def test_a_drawn_sample_tells_that_it_is_one_and_repeats_with_its_seed() -> None:
    vectors = torch.randn(300, 16)
    first, again, other = (geometry(vectors, lambda: None, max_pairs=5000, seed=seed) for seed in (3, 3, 4))
    assert first["counts"].tolist() == [300, 16, 0, 44850, 5000, 1]
    assert torch.equal(first["moments"], again["moments"])
    assert not torch.equal(first["moments"], other["moments"])
    assert first["moments"][1] == pytest.approx(0.25, rel=0.05)
    assert (first["closest_pairs"][:, 0] != first["closest_pairs"][:, 1]).all()


def test_all_pairs_hold_the_nearest_one_that_a_sample_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the nearest pair is found: two of 1500 vectors are nearly one, 500 draws meet that pair once in
    2000 tries, and the seed is fixed.
    """
    monkeypatch.setattr("lightwell.model.analysis.weight_geometry.MAX_PAIRS", 1000)
    monkeypatch.setattr("lightwell.model.analysis.weight_geometry.SAMPLED_PAIRS", 500)
    vectors = torch.randn(1500, 64, generator=torch.Generator().manual_seed(2))
    vectors[1400] = -3 * vectors[20] + 0.01 * vectors[21]
    _, cosines = cosines_by_hand(vectors.double().numpy())
    sampled, found = (geometry(vectors, lambda: None, max_pairs=pairs) for pairs in (None, "all"))
    assert sampled["counts"].tolist()[-2:] == [500, 1]
    assert abs(sampled["closest"][0]) < 0.9
    assert found["counts"].tolist()[-2:] == [len(cosines), 0]
    assert found["closest"][0] == pytest.approx(cosines.min(), abs=1e-6)
    assert found["closest_pairs"][0].tolist() == [20, 1400]


def test_no_n_times_n_matrix_is_ever_in_memory() -> None:
    """Check that 4000 x 4000 cosines are computed a thousand rows against a thousand at a time."""
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            largest = max([largest, *(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))])
            return result

    with Sizes():
        found = geometry(torch.randn(4000, 16), lambda: None)
    assert found["counts"].tolist()[-2:] == [4000 * 3999 // 2, 0]  # all pairs were compared
    assert 1_000_000 < largest < 1_100_000


def test_an_answer_stops_where_it_is_told_to() -> None:
    class Enough(Exception):
        pass

    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Enough

    with pytest.raises(Enough):
        geometry(torch.randn(5000, 8), check)
    assert calls == 4


def test_a_question_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="accepted are geometry, weights, stored, circuits, "):
        ask("gpt2", "colour")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_weights_are_said_to_be_broken(bad: float) -> None:
    """Guard against wrong results: the largest cosine of such a matrix was given as -1, and its spectrum as a
    decomposition that did not converge.
    """
    config, weights, _ = network("gpt2")
    broken = {key: tensor.clone() for key, tensor in weights.items()}
    broken["layers.1.qkv.weight"][3, 5] = bad
    lookup = LiveWeights(build_model(config, broken, context=config.max_model_len))
    for question, options in (
        ("geometry", {"matrix": "blocks.1.attn.W_Q", "axis": "rows", "spectrum": 0}),
        ("geometry", {"matrix": "blocks.1.attn.W_Q", "axis": "columns"}),
        ("circuits", {"part": "decoder", "pairs": ((0, 1), (1, 0))}),
    ):
        with pytest.raises(ValueError, match=r"the weights (of layer 1, head 0, )?are damaged"):
            answer(config, lookup, question, options, lambda: None)
