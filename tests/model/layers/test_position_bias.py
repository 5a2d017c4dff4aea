"""Position bias: the buckets of transformers' T5 and MPNet, and the slopes of ALiBi."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from lightwell.model.config import PositionBiasConfig
from lightwell.model.layers.position_bias import alibi_slopes, distance_buckets

DISTANCES = torch.arange(-3000, 3001)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000), (32, 17)])
def test_every_distance_falls_into_the_bucket_of_t5(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    config = PositionBiasConfig(num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional)
    theirs = T5Attention._relative_position_bucket(DISTANCES, bidirectional, num_buckets, max_distance)
    assert torch.equal(distance_buckets(DISTANCES, config), theirs)


def test_every_distance_falls_into_the_bucket_of_mpnet() -> None:
    config = PositionBiasConfig(num_buckets=32, max_distance=128, bidirectional=True)
    theirs = MPNetEncoder.relative_position_bucket(DISTANCES, 32, 128)
    assert torch.equal(distance_buckets(DISTANCES, config), theirs)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 14])
def test_the_slopes_are_those_that_its_authors_take(num_heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)
    torch.testing.assert_close(theirs[:, 0, 1], torch.tensor(alibi_slopes(num_heads)))
