"""The speed that the benchmark of Ray's batch job reports."""

from benchmarks.ray_data import tokens_per_second


def test_the_speed_counts_the_tokens_between_the_first_shard_and_the_last() -> None:
    assert tokens_per_second(500, [17.0, 10.0, 18.0, 14.0, 11.0]) == 400 / 8
    assert tokens_per_second(500, [10.0]) is None
    assert tokens_per_second(500, []) is None
