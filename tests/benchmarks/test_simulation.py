"""The simulation of many replicas: its queues against formulas, its counters against themselves, and its policies."""

import random
import statistics
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.recorded_load import Record
from benchmarks.simulation.__main__ import main as command
from benchmarks.simulation.autoscaler import Autoscaler, AutoscalingLimits
from benchmarks.simulation.cluster import AdmissionLimits, Cluster, Failures, Setup
from benchmarks.simulation.job import Job
from benchmarks.simulation.line import Step, fit_steps
from benchmarks.simulation.member import Member
from benchmarks.simulation.prediction import day, outcome_of, policies_by_load
from benchmarks.simulation.replay import Figures, Overheads, predict, setup_of
from benchmarks.simulation.routers import POLICIES
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import NO_GROUP, Arrival, Lengths, Prefixes, Workload

# ---- queues whose waiting times have a formula


# ---- clusters

SMALL = EngineLimits(max_num_seqs=8, max_num_batched_tokens=256, num_blocks=128, block_size=16)
TIMES = StepTimes(base=0.012, per_prompt_token=4e-5, per_sequence=1e-4, per_context_key=1e-8)
BUSY = Workload(
    rate=40.0,
    seconds=40.0,
    prompts=Lengths(60, 0.8, most=400),
    outputs=Lengths(60, 0.8, most=300),
    prefixes=Prefixes(groups=12, tokens=256, share=0.8),
    burstiness=3.0,
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("replicas", [3, 20])
def test_every_request_ends_once_and_the_books_agree(policy: str, replicas: int) -> None:
    setup = Setup(
        replicas,
        TIMES,
        SMALL,
        policy,
        admission=AdmissionLimits(max_num_queued_requests=4),
        autoscaling=AutoscalingLimits(target=3.0, least=2, most=replicas, down_window=10.0, sync_period=5.0),
        start_seconds=3.0,
        grace_seconds=1.0,
        failures=Failures(mean_seconds=10.0, restart_seconds=3.0, notice_seconds=0.5),
    )
    ended: list[Job] = []
    cluster = Cluster(setup, ended.append)
    outcome = cluster.run(replace(BUSY, rate=15.0 * replicas, seconds=150 / replicas).arrivals(5))
    cluster.check()
    assert sorted(job.uid for job in ended) == list(range(outcome.num_arrived))
    assert outcome.num_answered + outcome.failures.total() == outcome.num_arrived
    assert {reason[:3] for reason in outcome.failures} == {"429", "503"}
    assert outcome.num_replicas_lost > 0
    # Little: the number in the system, integrated over time, is the sum of the stays.
    assert outcome.request_seconds == pytest.approx(outcome.stays)
    for job in ended:
        if not job.failure:
            assert job.arrived_at < job.first_token_at <= job.ended_at
            assert job.num_cached < job.num_prompt


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        ended: list[Job] = []
        setup = Setup(5, TIMES, SMALL, "power-of-two", failures=Failures(15.0, 3.0), seed=seed)
        Cluster(setup, ended.append).run(replace(BUSY, seconds=6.0).arrivals(seed))
        return [job.ended_at for job in ended]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_policies_rank_as_they_are_known_to() -> None:
    """Check that a policy that considers the load waits less than one that does not, and that one that finds the
    prefix where it is computes less.
    """
    outcomes = {}
    for policy in ("random", "power-of-two", "least-loaded", "prefix"):
        setup = Setup(8, TIMES, EngineLimits(max_num_seqs=16, num_blocks=256, block_size=16), policy, admission=None)
        workload = replace(BUSY, rate=44.0, seconds=30.0, prefixes=Prefixes(groups=24, tokens=512))
        outcomes[policy] = Cluster(setup).run(workload.arrivals(2))
    p99 = {policy: outcome.ttft(0.99) for policy, outcome in outcomes.items()}
    assert p99["random"] > 1.2 * p99["power-of-two"] > 1.2 * p99["prefix"]
    assert p99["random"] > 1.2 * p99["least-loaded"]
    others = max(outcomes[policy].hit_rate for policy in ("random", "power-of-two", "least-loaded"))
    assert outcomes["prefix"].hit_rate > 1.5 * others


def test_a_shortlist_of_many_members_gets_what_the_router_would_give_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(few: int) -> list[float]:
        monkeypatch.setattr("benchmarks.simulation.routers.FEW", few)
        monkeypatch.setattr(Member, "tokens_left", lambda member, now: member.tokens_noted)
        ended: list[Job] = []
        workload = replace(BUSY, rate=120.0, seconds=10.0, prefixes=Prefixes(groups=30, tokens=256))
        Cluster(Setup(40, TIMES, SMALL), ended.append).run(workload.arrivals(4))
        return [job.ended_at for job in ended]

    assert run(few=16) == run(few=1000)


def test_a_full_queue_is_429_and_a_lost_replica_503() -> None:
    at_once = [Arrival(0.001 * i, 10, 50) for i in range(30)]
    limits = EngineLimits(max_num_seqs=2, num_blocks=100)
    full = Cluster(Setup(1, TIMES, limits, admission=AdmissionLimits(max_num_queued_requests=3))).run(at_once)
    assert full.failures == {"429 queue_full": 25}
    assert full.num_answered == 5
    lost = Cluster(Setup(1, TIMES, limits, failures=Failures(0.2, 1000.0))).run(
        [Arrival(0.0, 10, 50), Arrival(900.0, 1, 1)]
    )
    assert lost.failures == {"503 the replica was lost": 1, "503 no replica is ready": 1}


def test_what_a_lost_replica_had_holds_no_place_in_the_queue_after_it() -> None:
    limits = EngineLimits(max_num_seqs=2, num_blocks=100)
    setup = Setup(
        1, TIMES, limits, admission=AdmissionLimits(max_num_queued_requests=0), failures=Failures(30.0, 1.0), seed=3
    )
    arrivals = [Arrival(40.0 * i + each, 10, 900) for i in range(20) for each in (0.0, 0.001)]
    outcome = Cluster(setup).run(arrivals)
    assert outcome.num_replicas_lost > 2
    assert outcome.failures["503 the replica was lost"] > 2
    assert not outcome.share_of_status("429")


def test_a_request_that_the_cache_can_never_hold_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"5009 tokens needs more than the 100 blocks"):
        Cluster(Setup(1, TIMES, EngineLimits(num_blocks=100))).run([Arrival(0.0, 5000, 10)])


# ---- autoscaling


def test_the_autoscaler_reckons_as_kubernetes_does() -> None:
    def scaler(least: int = 1, most: int = 100, down_window: float = 300.0) -> Autoscaler:
        return Autoscaler(AutoscalingLimits(target=10.0, least=least, most=most, down_window=down_window))

    assert scaler().replicas(0.0, 4, 43.0) == 4  # within the tolerance of a tenth
    assert scaler().replicas(0.0, 4, 45.0) == 5
    assert scaler().replicas(0.0, 4, 1000.0) == 8  # at most four more, or twice as many, in a period
    assert scaler().replicas(0.0, 20, 1000.0) == 40
    assert scaler(most=30).replicas(0.0, 20, 1000.0) == 30
    assert scaler(down_window=0.0).replicas(0.0, 20, 50.0) == 5
    assert scaler(down_window=0.0, least=7).replicas(0.0, 20, 50.0) == 7


def test_the_autoscaler_goes_down_only_when_all_its_window_agrees() -> None:
    scaler = Autoscaler(AutoscalingLimits(target=10.0, down_window=60.0))
    assert scaler.replicas(0.0, 8, 80.0) == 8
    assert [scaler.replicas(at, 8, 20.0) for at in (15.0, 30.0, 45.0, 60.0)] == [8, 8, 8, 8]
    assert scaler.replicas(75.0, 8, 20.0) == 2


def test_the_autoscaler_goes_up_no_faster_than_a_period_allows() -> None:
    scaler = Autoscaler(AutoscalingLimits(target=1.0, sync_period=5.0))
    assert scaler.replicas(0.0, 8, 500.0) == 16
    assert scaler.replicas(5.0, 16, 500.0) == 16
    assert scaler.replicas(16.0, 16, 500.0) == 32


def test_a_cluster_grows_with_its_load_and_shrinks_after_it() -> None:
    workload = replace(BUSY, rate=lambda now: 40.0 if 60 <= now < 160 else 3.0, seconds=350.0, burstiness=1.0)
    scaling = AutoscalingLimits(target=4.0, least=2, most=40, down_window=60.0)
    outcome = Cluster(Setup(2, TIMES, SMALL, autoscaling=scaling, start_seconds=20.0)).run(workload.arrivals(6))
    at_most = max(size for _, size in outcome.sizes)
    assert at_most > 8
    assert outcome.sizes[-1][1] == 2
    assert 2 * 350 < outcome.replica_seconds < at_most * 350
    assert not outcome.share_of_status("503")  # who drains ends what it runs


# ---- step times and their fit


def test_step_times_survive_a_file_and_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    TIMES.save(tmp_path / "times.json")
    assert StepTimes.load(tmp_path / "times.json") == TIMES
    for text in ('{"base": -1}', '{"base": "1"}', '{"per_sequence": 1}', '{"base": 1, "more": 1}', "[]"):
        with pytest.raises(ValueError, match=r"base|more|step times"):
            StepTimes.from_json(text)


def test_a_fit_finds_the_line_that_the_steps_lie_on() -> None:
    draw = random.Random(0)
    steps = []
    for _ in range(200):
        work = draw.randrange(500), draw.randrange(64), draw.randrange(30_000)
        steps.append(Step(*work, TIMES.seconds(*work) * draw.uniform(0.99, 1.01)))
    fitted = fit_steps(steps)
    assert fitted.times.base == pytest.approx(TIMES.base, rel=0.01)
    assert fitted.times.per_prompt_token == pytest.approx(TIMES.per_prompt_token, rel=0.01)
    assert max(fitted.errors) < 0.03
    assert abs(fitted.total_error) < 0.005


def test_a_replay_of_a_simulated_run_has_no_error() -> None:
    setup = Setup(2, TIMES, SMALL, admission=AdmissionLimits(shared=True))
    arrivals = list(replace(BUSY, seconds=5.0).arrivals(9))
    jobs: list[Job] = []
    Cluster(setup, jobs.append).run(arrivals)
    run = {"num_workers": 2, "step_times": vars(TIMES), "num_blocks": SMALL.num_blocks + 1, "block_size": 16}
    run |= {"max_num_seqs": 8, "max_num_batched_tokens": 256, "routing": "prefix"}
    records = [
        Record(
            job.arrived_at,
            job.num_prompt,
            job.group,
            job.arrival.prefix_tokens,
            job.output,
            job.output,
            job.num_cached,
            job.first_token_at - job.arrived_at,
            job.ended_at,
        )
        for job in jobs
    ]
    predicted = predict(setup_of(run, Overheads()), records, Overheads())
    assert Figures.of(predicted) == Figures.of(records)


# ---- loads


def test_gaps_and_prefixes_vary_as_they_are_told_to() -> None:
    for burstiness in (1.0, 4.0):
        prefixes = Prefixes(groups=5, tokens=10, zipf=1.0, share=0.5)
        workload = Workload(50.0, 200.0, Lengths(20.0, 1.0), Lengths(9.0), prefixes, burstiness)
        arrivals = list(workload.arrivals(1))
        gaps = [later.at - earlier.at for earlier, later in pairwise(arrivals)]
        variation = statistics.pvariance(gaps) / statistics.fmean(gaps) ** 2
        assert variation == pytest.approx(burstiness, rel=0.15)
        assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
        groups = Counter(arrival.group for arrival in arrivals)
        assert groups[NO_GROUP] == pytest.approx(len(arrivals) / 2, rel=0.05)
        assert groups[0] / groups[4] == pytest.approx(5, rel=0.2)
        own = [arrival.prompt_tokens - arrival.prefix_tokens for arrival in arrivals]
        assert statistics.fmean(own) == pytest.approx(20, rel=0.1)
        assert {arrival.output_tokens for arrival in arrivals} == {9}


def test_what_makes_no_sense_is_refused_by_name() -> None:
    lengths = Lengths(10.0)
    with pytest.raises(ValueError, match="rate is 0"):
        Workload(0.0, 1.0, lengths, lengths)
    with pytest.raises(ValueError, match="mean must be above 0"):
        Lengths(0.0)
    with pytest.raises(ValueError, match="prefix_tokens must be from 0 to prompt_tokens"):
        Arrival(0.0, 10, 1, group=1, prefix_tokens=11)
    with pytest.raises(ValueError, match="an answer of at least a token"):
        Arrival(0.0, 10, 0)
    with pytest.raises(ValueError, match="max_num_batched_tokens is 8"):
        EngineLimits(max_num_batched_tokens=8)
    with pytest.raises(ValueError, match="policy is 'best'; it must be one of round-robin"):
        Setup(1, TIMES, policy="best")
    with pytest.raises(ValueError, match="mean_seconds must be above 0"):
        Failures(0.0)
    with pytest.raises(ValueError, match="least is 5 and most 4"):
        AutoscalingLimits(1.0, least=5, most=4)


def test_the_command_prints_a_row_of_each_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    TIMES.save(tmp_path / "times.json")
    flags = [
        "--times",
        str(tmp_path / "times.json"),
        "--seconds",
        "5",
        "--warm-up",
        "1",
        "--policy",
        "random",
        "prefix",
    ]
    flags += ["--autoscale-target", "4", "--mean-seconds-to-failure", "60"]
    monkeypatch.setattr("sys.argv", ["simulation", *flags])
    command()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| policy", lines[1], "| random", "| prefix"]
    assert len({line.count("|") for line in lines}) == 1
    monkeypatch.setattr("sys.argv", ["simulation", "--replicas", "0"])
    with pytest.raises(SystemExit):
        command()
    assert "replicas is 0; at least 1 is needed" in capsys.readouterr().err


def test_a_prediction_is_of_the_fleet_that_it_names() -> None:
    few = policies_by_load(6, TIMES, ["random", "prefix"], [2.0], 8.0)
    names = [case.names for case in few]
    assert names == [("2", "random"), ("2", "prefix"), ("2", "prefix, replicas lost")]
    outcomes = [outcome_of(case)[0] for case in few]
    assert len({outcome.num_arrived for outcome in outcomes}) == 1
    assert outcomes[1].hit_rate > outcomes[0].hit_rate
    fixed, scaled = (outcome_of(case)[0] for case in day(80, TIMES, 240.0)[:2])
    assert fixed.replica_seconds == pytest.approx(4 * 240, rel=0.02)
    assert max(size for _, size in scaled.sizes) > 1
