"""The regular expression of whole numbers between two bounds admits these numbers and no others."""

import random
import re

from lightwell.model.sampling.grammar.numbers import whole_numbers


def test_all_whole_numbers_between_small_bounds_are_admitted_and_no_others() -> None:
    for low in range(-21, 22):
        for high in range(low, 22):
            pattern = re.compile(whole_numbers(low, high))
            assert [n for n in range(-120, 121) if pattern.fullmatch(str(n))] == [*range(low, high + 1)], (low, high)


def test_large_bounds_are_admitted_and_their_neighbours_are_not() -> None:
    for _ in range(300):
        low, high = sorted(random.choice((-1, 1)) * random.randrange(10 ** random.randint(1, 15)) for _ in range(2))
        pattern = re.compile(whole_numbers(low, high))
        for number in (low - 1, low, random.randint(low, high), high, high + 1):
            assert bool(pattern.fullmatch(str(number))) is (low <= number <= high), (low, number, high)
