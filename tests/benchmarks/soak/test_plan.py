"""Plan of a soak: its faults, its actions and the lifetime of a worker."""

from itertools import pairwise
from typing import Any, get_args

from benchmarks.soak.acts import Behaviour, acts, pool, wrong_requests
from benchmarks.soak.faults import LEAST_SPACING, fault_times, put_off
from benchmarks.soak.watch import MIN_LIFE
from lightwell.server.lifecycle.supervisor import FAILURE_WINDOW, MAX_FAILURES


def test_faults_never_make_the_supervisor_give_up() -> None:
    assert FAILURE_WINDOW / LEAST_SPACING < MAX_FAILURES - 1
    for seed in range(20):
        moments = [moment for moment, _ in fault_times(seed, 1800, 40)]
        assert all(b - a >= LEAST_SPACING for a, b in pairwise(moments))
        assert 20 < len(moments) < 60
        kills = [moment for moment, kind in fault_times(seed, 1800, 40) if kind == "kill"]
        assert kills[0] == LEAST_SPACING
        assert 600 < kills[-1] < 1200


def test_workers_that_start_slowly_are_let_live_as_long_before_the_next_fault() -> None:
    assert put_off(40.0, "kill", 1800, healed=10.0) == (40.0, "kill")
    assert put_off(40.0, "kill", 1800, healed=60.0) == (60.0 + LEAST_SPACING, "kill")
    assert put_off(1150.0, "kill", 1800, healed=1195.0)[1] == "stop"


def test_a_soak_of_ten_minutes_leaves_a_worker_the_life_in_which_memory_is_judged() -> None:
    for seed in range(20):
        kills = [moment for moment, kind in fault_times(seed, 600, 40) if kind == "kill"]
        assert kills[-1] < 600 - MIN_LIFE - 30


def test_a_seed_draws_the_same_acts_and_every_behaviour() -> None:
    def first(seed: int) -> list[Any]:
        return [act for act, _ in zip(acts(seed, 3, len(pool())), range(1_000), strict=False)]

    assert first(1) == first(1) != first(2)
    assert {act.behaviour for act in first(1)} == set(get_args(Behaviour))
    assert {act.index for act in first(1) if act.behaviour == "wrong"} == set(range(len(wrong_requests())))
