"""The report of a simulated fleet: what its tokens cost, how busy it was, which gaps between tokens count."""

import math

import pytest

from benchmarks.simulation import tables
from benchmarks.simulation.cluster import AdmissionLimits, Cluster, Failures, Setup
from benchmarks.simulation.job import Job
from benchmarks.simulation.outcome import Objective, Outcome
from benchmarks.simulation.replica import Replica
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import Arrival

A_SECOND = StepTimes(base=1.0)
"""Step times of one second for any step: an answer of n tokens takes n steps, the first of which reads its prompt."""
LIMITS = EngineLimits(max_num_seqs=1, num_blocks=1000)
HOUR = 3600.0
"""An hour's price: a replica's second costs 1."""


def outcome_of(*arrivals: Arrival, queue: int = 100, warm_up: float = 0.0, failures: Failures | None = None) -> Outcome:
    admission = AdmissionLimits(max_num_queued_requests=queue)
    setup = Setup(1, A_SECOND, LIMITS, admission=admission, warm_up=warm_up, failures=failures)
    return Cluster(setup).run(arrivals)


# ---- cost


@pytest.mark.parametrize("warm_up", [0.0, 50.0])
def test_a_refused_request_is_charged_once(warm_up: float) -> None:
    """Check that a refused request makes no tokens, so those of the others bear the replica's time; what is as
    promised costs them no more.
    """
    arrivals = [Arrival(100.0 * i + each, 8, 10) for i in range(3) for each in (0.0, 0.5, 0.75)]
    outcome, anything = outcome_of(*arrivals, queue=0, warm_up=warm_up), Objective(math.inf, math.inf)
    assert outcome.failures == {"429 queue_full": 6}
    assert outcome.cost_per_million(HOUR) == pytest.approx(200.75 / 30 * 1e6)
    assert tables.row(outcome, anything, HOUR)[-1] == tables.row(outcome, anything, HOUR)[-2] == f"{200.75e6 / 30:.3f}"


def test_what_is_as_promised_is_charged_by_its_own_tokens() -> None:
    """Check with a long answer at once and a short one that waited for it: half of the requests, but not half of the
    tokens.
    """
    outcome, soon = outcome_of(Arrival(0.0, 8, 30), Arrival(1.0, 8, 10)), Objective(5.0, 5.0)
    assert outcome.goodput(soon) == 0.5
    assert outcome.cost_per_million(HOUR, soon) == pytest.approx(1.0 / 30 * 1e6)
    assert tables.row(outcome, Objective(0.5, 5.0), HOUR)[-1] == "-"


# ---- busy


def test_work_under_way_at_the_last_arrival_is_busy_time_until_then() -> None:
    outcome = outcome_of(Arrival(0.0, 8, 100), Arrival(50.5, 8, 1))  # the first's steps were planned all at once
    assert outcome.replica_seconds == 50.5
    assert outcome.utilisation == 1.0
    idle = outcome_of(Arrival(0.0, 8, 10), Arrival(40.0, 8, 1))
    assert idle.utilisation == pytest.approx(10 / 40)


def test_work_under_way_when_a_replica_is_lost_is_busy_time_and_only_once() -> None:
    replica = Replica(0, LIMITS, A_SECOND)
    replica.add(Job(0, Arrival(0.0, 8, 100), LIMITS.block_size), 0.0)
    replica.advance()  # the prompt's step; now the others are under way
    assert (replica.busy_seconds, replica.busy_until(30.5)) == (1.0, 30.5)
    replica.lose(30.5)
    assert replica.busy_seconds == replica.busy_until(99.0) == 30.5
    replica.add(Job(1, Arrival(99.0, 8, 2), LIMITS.block_size), 99.0)
    replica.advance()
    replica.advance()
    assert replica.busy_seconds == 32.5


def test_a_fleet_that_is_busy_whenever_it_is_there_says_so() -> None:
    """Check a fleet whose replicas are lost again and again, and never without a request while they are there."""
    failures = Failures(mean_seconds=20.0, restart_seconds=0.0)
    arrivals = [Arrival(0.25 * i, 8, 1000) for i in range(1200)]
    outcome = outcome_of(*arrivals, failures=failures)
    assert outcome.num_replicas_lost > 5
    assert 0.97 < outcome.utilisation <= 1.0  # after a loss it waits a quarter of a second at most


# ---- gaps


def test_gaps_between_tokens_count_from_the_end_of_the_warm_up_on() -> None:
    """Check with steps of three sequences, which take three times as long and are all in the warm-up."""
    times, limits = StepTimes(base=0.0, per_sequence=1.0, per_prompt_token=0.1), EngineLimits(num_blocks=1000)
    crowd = [Arrival(0.0, 1, 20), Arrival(0.001, 1, 20), Arrival(0.002, 1, 20)]
    alone = Arrival(100.0, 1, 20)

    def median(warm_up: float) -> float:
        return Cluster(Setup(1, times, limits, warm_up=warm_up)).run([*crowd, alone]).gap(0.5)

    assert median(0.0) == pytest.approx(3.0, rel=0.01)
    assert median(90.0) == pytest.approx(1.0, rel=0.01)


def test_of_steps_planned_at_once_those_before_the_end_of_the_warm_up_do_not_count() -> None:
    def num_gaps(warm_up: float) -> int:
        return outcome_of(Arrival(0.0, 8, 100), warm_up=warm_up).gaps.count

    assert [num_gaps(warm_up) for warm_up in (0.0, 1.0, 40.0, 40.5, 100.0, 101.0)] == [99, 99, 61, 60, 1, 0]


def test_a_gap_that_a_lost_place_in_the_cache_makes_long_counts_by_when_it_ends() -> None:
    limits = EngineLimits(max_num_seqs=2, num_blocks=6, block_size=4, prefix_caching=False)
    arrivals = [Arrival(0.0, 4, 20), Arrival(0.5, 4, 16)]

    def told(warm_up: float) -> Outcome:
        return Cluster(Setup(1, A_SECOND, limits, warm_up=warm_up)).run(arrivals)

    cold = told(0.0)
    assert cold.num_preemptions == 1
    assert cold.gap(1.0) > 5.0
    assert told(cold.seconds - 1.5).gap(1.0) == pytest.approx(1.0, rel=0.01)
