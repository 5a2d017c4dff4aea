"""The arithmetic of the tables: ratios to the best peer, goodput, and how long streams pause."""

import math

import pytest

from benchmarks.closed_loop import Point, capacity, table_of_rates, table_of_times, time_ratios
from benchmarks.comparison import Ratio, ratio_to_best, table
from benchmarks.load import Load, Timeline
from benchmarks.long_prompt import stall
from benchmarks.open_loop import Limits
from benchmarks.subjects import OUTPUT_TOKENS, Figures

LIMITS = Limits(time_to_first_token=0.5, time_per_output_token=0.05)


def answered(first: float, per_token: float, started: float = 0.0, tokens: int = 11) -> Timeline:
    at = [started + first + per_token * i for i in range(tokens)]
    return Timeline(started, at, completion_tokens=tokens)


def turn(rate: float, first: float, gap: float) -> Figures:
    return Figures(rate, [answered(first, gap)])


def test_the_ratio_is_the_median_of_those_of_the_turns_and_not_that_of_the_medians() -> None:
    turns = {"lightwell": [10.0, 40.0, 9.0], "a": [5.0, 10.0, 9.0], "b": [1.0, 1.0, 1.0]}
    assert ratio_to_best(turns, higher_is_better=True) == Ratio(2.0, "a")  # of 2, 4 and 1; the medians give 10 / 9


def test_the_best_peer_has_the_least_time_and_none_of_our_configurations_is_one() -> None:
    turns = {"lightwell": [2.0], "lightwell bfloat16": [0.1], "a": [4.0], "b": [1.0]}
    assert ratio_to_best(turns, higher_is_better=False) == Ratio(2.0, "b")
    assert ratio_to_best(turns, higher_is_better=True) == Ratio(0.5, "a")
    assert ratio_to_best({"lightwell": [2.0], "lightwell bfloat16": [1.0]}, higher_is_better=True) is None
    assert ratio_to_best({"a": [2.0]}, higher_is_better=True) is None
    assert ratio_to_best({"lightwell": [2.0], "a": [0.0]}, higher_is_better=True) == Ratio(math.inf, "a")


def test_goodput_counts_requests_within_both_limits_over_the_time_to_the_last_answer() -> None:
    lines = [
        answered(0.5, 0.05 - 1e-9),
        answered(0.6, 0.01),  # its first token was late
        answered(0.1, 0.06),  # its other tokens were slow
        answered(0.1, 0.01, started=3.0),
    ]
    assert LIMITS.goodput(Load(4.0, lines, ["refused"])) == pytest.approx(2 / 4.0)


def test_times_are_compared_with_the_peer_that_is_best_at_each() -> None:
    point = Point(8, {
        "lightwell": [turn(100, first=0.2, gap=0.02)],
        "quick to begin": [turn(50, first=0.1, gap=0.08)],
        "steady": [turn(60, first=0.4, gap=0.01)],
        "unstreamed": [Figures(70)],
    })  # fmt: skip
    assert time_ratios(point) == ("2.00 (quick to begin)", "2.00 (steady)")


def test_the_capacity_is_that_of_the_best_engine_that_can_be_asked_for_requests() -> None:
    points = [
        Point(1, {"lightwell": [turn(64, 0.1, 0.1)], "a": [turn(32, 0.1, 0.1)], "unstreamed": [Figures(640)]}),
        Point(8, {"lightwell": [turn(128, 0.1, 0.1)], "a": [turn(192, 0.1, 0.1)], "unstreamed": [Figures(640)]}),
    ]
    assert capacity(points) == pytest.approx(192 / OUTPUT_TOKENS)


def test_the_tables_say_what_there_is_not_and_have_as_many_cells_as_their_heads() -> None:
    int8 = [Point(1, {"lightwell": [turn(30, 0.1, 0.1)], "lightwell bfloat16": [turn(20, 0.1, 0.1)]})]
    row = table_of_rates("int8", int8, {}).splitlines()[-1]
    assert row == "| int8 | 1 | 30 | 20 | - | - | - | 1.50 |"
    assert table_of_times("int8", int8).splitlines()[2].endswith("| - | - |")
    point = Point(1, {"lightwell": [turn(30, 0.1, 0.1)], "a": [turn(20, 0.1, 0.1)], "unstreamed": [Figures(70)]})
    for text in (table_of_rates("x", [point], {1: 40.0}), table_of_times("x", [point]), table([["a"], ["b"]])):
        assert len({line.count("|") for line in text.splitlines()}) == 1


def test_a_stall_is_the_longest_gap_from_the_long_prompt_to_the_end_of_the_first_stream() -> None:
    long = Timeline(started=10.25, tokens_at=[11.0, 11.2])
    beginning = [1.0, 5.0]  # read while the other stream's prompt was read: not the long one's doing
    load = Load(20.0, [
        long,
        Timeline(0.0, [*beginning, 10.0, 10.1, 10.2, 10.3, 11.1, 11.2, 11.3, 11.4]),
        Timeline(0.0, [10.0, 10.1, 10.2, 10.3, 11.0, 11.2, 11.3, 11.4, 11.5, 20.0]),  # alone at the end
    ])  # fmt: skip
    found = stall(load)
    figures = (found.worst_gap, found.median_gap, found.times_median, found.time_to_first_token)
    assert figures == pytest.approx((0.8, 0.1, 8.0, 0.75))
    with pytest.raises(RuntimeError, match="had ended"):
        stall(Load(3.0, [Timeline(2.0, [3.0]), Timeline(0.0, [1.0, 1.5])]))
