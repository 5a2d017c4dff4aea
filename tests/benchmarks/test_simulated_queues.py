"""The simulated queues against the formulas of queueing theory."""

import math
import random
import statistics
from collections.abc import Iterator
from itertools import islice, repeat

import pytest

from benchmarks.simulation.cluster import Cluster, Setup
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import Arrival

TICK = 1e-4
"""Seconds of a token: services are whole tokens, so fine that their law is as good as continuous."""

ONE_AT_A_TIME = EngineLimits(max_num_seqs=1, max_num_batched_tokens=10**9, num_blocks=10**6, prefix_caching=False)


def mean_wait(services: Iterator[float], rate: float, count: int, replicas: int = 1, policy: str = "random") -> float:
    """Return the seconds that `count` requests, Poisson arrivals at `rate`, wait before their service of that many
    seconds.

    Each replica serves one request at a time, a prompt of as many tokens as it takes ticks.
    """
    draw, now, arrivals = random.Random(7), 0.0, []
    for seconds in islice(services, count):
        now += draw.expovariate(rate)
        arrivals.append(Arrival(now, max(1, round(seconds / TICK)), 1))
    waits: list[float] = []
    setup = Setup(replicas, StepTimes(base=0.0, per_prompt_token=TICK), ONE_AT_A_TIME, policy, admission=None)
    Cluster(setup, lambda job: waits.append(job.ended_at - job.arrived_at - TICK * job.num_prompt)).run(arrivals)
    assert len(waits) == count
    assert min(waits) > -1e-6
    return statistics.fmean(waits[count // 10 :])


def exponentials(mean: float) -> Iterator[float]:
    draw = random.Random(11)
    while True:
        yield draw.expovariate(1 / mean)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_replica_with_exponential_services_is_an_m_m_1_queue(load: float) -> None:
    expected = load / (1 - load)  # in services
    assert mean_wait(exponentials(1.0), load, 12_000) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_replica_with_equal_services_is_an_m_d_1_queue(load: float) -> None:
    expected = load / (2 * (1 - load))  # Pollaczek and Khinchine: half of M/M/1's
    assert mean_wait(repeat(1.0), load, 12_000) == pytest.approx(expected, rel=0.1)


def test_two_choices_are_worth_what_theory_says() -> None:
    """Check that replicas chosen at random are each an M/M/1 queue; with two choices waits fall to the supermarket
    model's (Mitzenmacher 2001), which compares numbers of requests, or below: ours compares what they have left to
    do.
    """
    load, replicas = 0.8, 20
    at_random, of_two = (
        mean_wait(exponentials(1.0), load * replicas, 20_000, replicas, policy) for policy in ("random", "power-of-two")
    )
    assert at_random == pytest.approx(load / (1 - load), rel=0.25)
    supermarket = sum(load ** (2**i - 2) for i in range(1, 8)) - 1
    assert 0.3 * supermarket < of_two < 1.1 * supermarket


def test_seats_of_one_replica_are_the_servers_of_an_m_m_c_queue() -> None:
    """Check with steps of one length whatever runs: a request holds one of c slots for as many steps as it has
    tokens.
    """
    seats, load, mean_tokens, step = 4, 0.8, 100, 0.01
    draw, now, arrivals = random.Random(3), 0.0, []
    for _ in range(10_000):
        now += draw.expovariate(load * seats / (mean_tokens * step))
        arrivals.append(Arrival(now, 1, 1 + int(draw.expovariate(1 / mean_tokens))))
    limits = EngineLimits(max_num_seqs=seats, max_num_batched_tokens=10**6, num_blocks=10**6, prefix_caching=False)
    waits: list[float] = []
    setup = Setup(1, StepTimes(base=step), limits, admission=None)
    Cluster(setup, lambda job: waits.append(job.first_token_at - job.arrived_at - step)).run(arrivals)
    offered = load * seats
    last = offered**seats / math.factorial(seats) / (1 - load)
    must_wait = last / (sum(offered**k / math.factorial(k) for k in range(seats)) + last)  # Erlang's C
    expected = must_wait * mean_tokens * step / (seats * (1 - load))
    # Who comes while a step runs waits for its end, half of one in the mean, and no formula of queues knows steps.
    assert statistics.fmean(waits[1_000:]) - step / 2 == pytest.approx(expected, rel=0.12)
