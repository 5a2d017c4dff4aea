"""Pooling returns the embeddings of each method."""

from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import Pooling as Theirs

from lightwell.model.layers.linear import Linear
from lightwell.model.network.pooling import DenseLayer, Pooling, PoolingMode, RunningMean, RunningPooling, finished
from tests.support.examples import examples

HIDDEN = torch.tensor([[3.0, 4.0, 12.0], [1.0, 0.0, 2.0]])


def make_hidden(tokens: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, d, generator=torch.Generator().manual_seed(seed))


def pool(
    hidden: torch.Tensor,
    pooling: Pooling,
    normalize: bool,
    dimensions: int | None = None,
    dense: Sequence[DenseLayer] = (),
) -> torch.Tensor:
    """Return the embedding [n] of hidden states [T, d], or [T, n] when pooling is "none"; means are float64."""
    running = RunningPooling(pooling)
    running.add(hidden)
    vectors = finished(running.vectors(), normalize, dimensions, dense)
    return vectors if pooling == "none" else vectors[0]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [2.0, 2.0, 7.0]),
        ("last", [1.0, 0.0, 2.0]),
        ("cls", [3.0, 4.0, 12.0]),
        ("none", [[3.0, 4.0, 12.0], [1.0, 0.0, 2.0]]),
    ],
)
def test_each_pooling_gives_its_vector(pooling: Pooling, expected: list[float]) -> None:
    assert pool(HIDDEN, pooling, normalize=False).tolist() == expected


def test_dimensions_are_cut_before_the_length_is_set_to_one() -> None:
    torch.testing.assert_close(pool(HIDDEN, "cls", normalize=True, dimensions=2).float(), torch.tensor([0.6, 0.8]))


def test_dense_layers_come_between_pooling_and_the_cut() -> None:
    first, second = make_hidden(5, 3, seed=1), make_hidden(4, 5, seed=2)
    bias = make_hidden(4, 1)[:, 0]
    wide = torch.float32
    dense = (DenseLayer(Linear(first), wide, is_tanh=False), DenseLayer(Linear(second, bias), wide, is_tanh=True))
    expected = (second @ (first @ torch.tensor([2.0, 2.0, 7.0])) + bias).tanh()[:2]
    torch.testing.assert_close(pool(HIDDEN.double(), "mean", False, 2, dense).float(), expected)
    torch.testing.assert_close(pool(HIDDEN, "mean", True, 2, dense).float(), expected / expected.norm())


def test_every_token_s_vector_is_normalised_on_its_own() -> None:
    lengths = pool(make_hidden(7, 33), "none", normalize=True).float().norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_mean_is_summed_in_float64(dtype: torch.dtype) -> None:
    hidden = make_hidden(5, 8).to(dtype)
    assert torch.equal(pool(hidden, "mean", normalize=False), hidden.double().sum(0) / 5)


def test_float64_stays_float64() -> None:
    hidden = make_hidden(300, 8).double()
    vector = pool(hidden, "mean", normalize=True)
    assert vector.dtype == torch.float64
    torch.testing.assert_close(vector, torch.nn.functional.normalize(hidden.mean(0), dim=0), rtol=1e-13, atol=0)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "none"])
def test_zeros_stay_zero(pooling: Pooling) -> None:
    assert not pool(torch.zeros(3, 4), pooling, normalize=True).any()


@pytest.mark.parametrize("size", [1e-40, 1e30])
def test_extreme_lengths_do_not_lose_the_direction(size: float) -> None:
    vector = pool(torch.full((1, 4), size), "last", normalize=True).float()
    torch.testing.assert_close(vector, torch.full((4,), 0.5))


@given(cuts=st.lists(st.integers(1, 150), min_size=1, max_size=6), seed=st.integers(0, 2**32))
@settings(max_examples=examples(60))
def test_a_mean_that_comes_in_pieces_is_the_mean_of_the_whole_bit_for_bit(cuts: list[int], seed: int) -> None:
    hidden = make_hidden(sum(cuts), 7, seed)
    running = RunningMean()
    for i, length in enumerate(cuts):
        running.add(hidden[sum(cuts[:i]) :][:length])
        assert running.num_bytes <= 64 * 7 * 4 + 7 * 8  # the pieces themselves are not kept
    assert torch.equal(running.mean()[0], pool(hidden, "mean", normalize=False))


def test_no_tokens_have_no_mean() -> None:
    with pytest.raises(ValueError, match="the mean of no tokens; expected at least one"):
        pool(torch.zeros(0, 3), "mean", normalize=True)


@pytest.mark.parametrize("mode", ["max", "weightedmean", "mean_sqrt_len_tokens", *get_args(Pooling)])
@pytest.mark.parametrize("cuts", [(1,), (64, 65), (3, 70, 128, 199)])
def test_every_pooling_of_pieces_is_that_of_the_whole(mode: PoolingMode, cuts: tuple[int, ...]) -> None:
    hidden = make_hidden(200, 33)
    whole, pieces = RunningPooling(mode), RunningPooling(mode)
    whole.add(hidden)
    for start, end in pairwise((0, *cuts, 200)):
        pieces.add(hidden[start:end])
        pieces = pieces.copy()
    assert torch.equal(pieces.vectors(), whole.vectors())


@pytest.mark.parametrize("mode", ["max", "weightedmean", "mean_sqrt_len_tokens"])
def test_other_poolings_are_those_of_sentence_transformers(mode: PoolingMode) -> None:
    hidden = make_hidden(90, 33)
    ours = RunningPooling(mode)
    ours.add(hidden)
    features = {"token_embeddings": hidden[None], "attention_mask": torch.ones(1, 90, dtype=torch.int64)}
    expected = Theirs(33, mode)(features)["sentence_embedding"]
    torch.testing.assert_close(ours.vectors().float(), expected, rtol=0, atol=1e-5)
