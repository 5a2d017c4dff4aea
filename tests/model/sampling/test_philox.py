"""Random numbers equal the paper's, and depend only on seed and position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.sampling.philox import philox2x64, random_uniform, random_uniforms


@pytest.mark.parametrize(
    ("counter_low", "counter_high", "key", "expected"),
    [
        (0, 0, 0, (0xCA00A0459843D731, 0x66C24222C9A845B5)),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, (0x65B021D60CD8310F, 0x4D02F3222F86DF20)),
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, (0x0A5E742C2997341C, 0xB0F883D38000DE5D)),
    ],
)
def test_philox_gives_the_published_answers(
    counter_low: int, counter_high: int, key: int, expected: tuple[int, int]
) -> None:
    """Compare with the known answers of philox2x64-10 in Random123's kat_vectors."""
    assert philox2x64(counter_low, counter_high, key) == expected


@given(st.integers(-(2**80), 2**80), st.integers(0, 2**40))
def test_a_random_number_depends_on_seed_and_position_alone(seed: int, position: int) -> None:
    unit = random_uniform(seed, position)
    torch.manual_seed(1)
    assert random_uniform(seed, position) == unit
    assert 0 <= unit < 1
    assert unit != random_uniform(seed + 1, position)
    assert unit != random_uniform(seed, position + 1)
    assert unit != random_uniform(seed + 2**64, position)


@given(st.lists(st.tuples(st.integers(-(2**80), 2**130), st.integers(0, 2**40)), max_size=5), st.sampled_from([1, 100]))
def test_many_numbers_at_once_are_those_one_by_one(keys: list[tuple[int, int]], times: int) -> None:
    drawn = random_uniforms(*([key[i] for key in keys * times] for i in range(2)))
    assert drawn.tolist() == [random_uniform(*key) for key in keys] * times
