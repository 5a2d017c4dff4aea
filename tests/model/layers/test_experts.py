"""A mixture of experts."""

import torch

from lightwell.model.layers.experts import Experts
from lightwell.model.layers.linear import Linear


def test_of_equal_experts_the_first_are_chosen() -> None:
    router = Linear(torch.randn(6, 3))
    experts = Experts(router, [], num_chosen=4, normalized=True, softmax=lambda x: torch.softmax(x, -1))
    chosen, weights = experts.choose(torch.full((2, 6), 1 / 6))
    assert chosen.tolist() == [[0, 1, 2, 3]] * 2
    torch.testing.assert_close(weights, torch.full((2, 4), 1 / 4))
