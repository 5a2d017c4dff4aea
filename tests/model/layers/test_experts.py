"""A mixture of experts, against one row and one expert at a time."""

import random
import secrets

import pytest
import torch

from model.layers.experts import Experts
from model.layers.linear import Linear
from model.layers.mlp import Mlp


def draw_experts(rng: random.Random, width: int, count: int, *, normalized: bool) -> tuple[Experts, list[Mlp]]:
    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(torch.randn(outputs, inputs) / inputs**0.5)

    neurons = rng.randint(1, 30)
    each = [Mlp(linear(2 * neurons, width), linear(width, neurons), "silu") for _ in range(count)]
    router = linear(count, width)
    chosen = rng.randint(1, count)
    return Experts(router, each, num_chosen=chosen, normalized=normalized, softmax=lambda x: torch.softmax(x, -1)), each


@pytest.mark.parametrize("attempt", range(8))
def test_a_row_is_the_weighted_sum_of_what_its_experts_make_of_it_whatever_rows_are_next_to_it(attempt: int) -> None:
    seed = secrets.randbits(32)
    print(seed)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    width, count, normalized = rng.randint(1, 40), rng.randint(1, 12), rng.random() < 0.5
    experts, each = draw_experts(rng, width, count, normalized=normalized)
    x = torch.randn(rng.randint(1, 40), width)
    probabilities = experts.probabilities(experts.router(x))
    chosen, weights = experts.choose(probabilities)
    found = experts(x, chosen, weights)
    for row in range(len(x)):
        best = sorted(range(count), key=lambda e: -float(probabilities[row, e]))[: chosen.shape[1]]
        assert chosen[row].tolist() == best
        shares = probabilities[row, best] / (probabilities[row, best].sum() if normalized else 1)
        torch.testing.assert_close(weights[row], shares)
        made = [each[e].down(each[e].hidden(x[row : row + 1], None))[0] for e in best]
        torch.testing.assert_close(found[row], sum(share * y for share, y in zip(shares, made, strict=True)))
        alone = experts(x[row : row + 1], chosen[row : row + 1], weights[row : row + 1])
        assert torch.equal(alone[0], found[row])


def test_of_equal_experts_the_first_are_chosen() -> None:
    experts, _ = draw_experts(random.Random(0), 3, 6, normalized=True)
    chosen, _ = experts.choose(torch.full((2, 6), 1 / 6))
    assert chosen.tolist() == [list(range(chosen.shape[1]))] * 2
