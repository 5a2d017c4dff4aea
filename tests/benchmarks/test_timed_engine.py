"""The timed engine, the server around it, and what the scaling benchmark makes of their answers."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import scaling_tables
from benchmarks.fleet import Loss, Run, measure, words_of_workers
from benchmarks.recorded_load import Record, append_run, grouped_requests, plain_requests, read_runs, send_open
from benchmarks.routing_policies import POLICIES
from benchmarks.simulation.step_times import StepTimes
from benchmarks.timed_engine import TimedEngine, TimedRunner
from benchmarks.timed_server import BLOCK_SIZE, FIRST_TOKEN, STEP_TIMES, Fleet, timed_server
from server.dispatch.routing import Candidate, RoutedPrompt, Router
from server.engine.config import EngineConfig
from server.engine.outputs import RequestOutput
from server.engine.request import AttentionCapture, AttentionTask, EngineRequest, GenerateTask, Intervention, Task
from server.engine.sampling_params import SamplingParams
from tests.support.processes import ROOT, Server


class Counted(StepTimes):
    """Step times of 0; remembers what it was asked for."""

    def seconds(self, prompt_tokens: int, sequences: int, context_keys: int) -> float:
        asked.append((prompt_tokens, sequences, context_keys))
        return 0.0


asked: list[tuple[int, int, int]] = []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> TimedEngine:
    monkeypatch.setenv(STEP_TIMES, '{"base": 0.0}')
    monkeypatch.delenv("LITSERVE_WORKER_ID", raising=False)
    return TimedEngine.from_folder(EngineConfig(model=ROOT / "model" / "fables", kv_cache_bytes=64 << 20))


def request(uid: int, prompt: list[int], task: Task | int) -> EngineRequest:
    """Return a request of a task, or of this many tokens to generate."""
    if isinstance(task, int):
        task = GenerateTask(sampling=SamplingParams(max_tokens=task, seed=0, ignore_eos=True))
    return EngineRequest(uid=uid, prompt_token_ids=tuple(prompt), task=task, arrival_time=time.monotonic())


def answers(engine: TimedEngine, *requests: EngineRequest) -> list[RequestOutput]:
    for each in requests:
        engine.add_request(each)
    outputs: list[RequestOutput] = []
    while engine.has_work:
        outputs += engine.step().outputs
    return outputs


def runner_of(engine: TimedEngine) -> TimedRunner:
    assert isinstance(engine._runner, TimedRunner)
    return engine._runner


def test_a_step_takes_the_time_of_the_prompts_and_the_decodes_in_it(engine: TimedEngine) -> None:
    asked.clear()
    runner_of(engine).step_times = Counted(0.0)
    outputs = answers(engine, request(1, [5] * 70, 3), request(2, [6] * 40, 2))
    assert [output.token_id for output in outputs] == [FIRST_TOKEN] * 5
    assert asked == [(110, 0, 0), (0, 2, 71 + 41), (0, 1, 72)]


def test_what_the_prefix_cache_holds_takes_no_time(engine: TimedEngine) -> None:
    prompt = list(range(300, 397))
    answers(engine, request(1, prompt, 2))
    asked.clear()
    runner_of(engine).step_times = Counted(0.0)
    (only,) = answers(engine, request(2, prompt, 1))
    assert only.num_cached_tokens == 96  # whole blocks of 32
    assert asked == [(1, 0, 0)]  # the last token of a prompt is no decode


def test_a_worker_is_known_by_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEP_TIMES, '{"base": 0.0}')
    monkeypatch.setenv("LITSERVE_WORKER_ID", "3")
    engine = TimedEngine.from_folder(EngineConfig(model=ROOT / "model" / "fables", kv_cache_bytes=64 << 20))
    assert [output.token_id for output in answers(engine, request(1, [5], 2))] == [FIRST_TOKEN + 3] * 2


def test_a_step_that_nobody_wants_any_more_is_given_up(engine: TimedEngine) -> None:
    runner_of(engine).step_times = StepTimes(base=20.0)
    engine.add_request(request(1, [5] * 10, 3))
    engine.watch_aborts(lambda: [1])
    step = engine.step()
    assert [output.finish_reason for output in step.outputs] == ["abort"]
    assert step.stats.steps_abandoned_total == 1


@pytest.mark.parametrize(
    "task",
    [
        AttentionTask(capture=AttentionCapture(pairs=((0, 0),))),
        GenerateTask(sampling=SamplingParams(max_tokens=1, seed=0), attention=AttentionCapture(pairs=((0, 0),))),
        GenerateTask(sampling=SamplingParams(max_tokens=1, seed=0, logprobs=1)),
        GenerateTask(sampling=SamplingParams(max_tokens=1, seed=0, prompt_logprobs=1)),
    ],
)
def test_what_needs_a_network_is_refused(engine: TimedEngine, task: Task) -> None:
    with pytest.raises(ValueError, match="no network"):
        engine.add_request(request(1, [5], task))
    assert not engine.has_work


def test_changes_to_a_network_are_refused(engine: TimedEngine) -> None:
    changed = Intervention(stack="decoder", layer=0, point="attn.hook_z", op="scale", value=0.0)
    with pytest.raises(ValueError, match="no network"):
        engine.add_request(replace(request(1, [5], 1), interventions=(changed,)))


FLEET = Fleet(2, StepTimes(base=0.002), num_blocks=300)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with timed_server(FLEET) as server:
        yield server


@pytest.mark.nightly
def test_a_load_on_two_real_workers_is_recorded_whole(server: Server, tmp_path: Path) -> None:
    words = words_of_workers(server, FLEET)
    requests = grouped_requests(24, 1, groups=3, prefix_tokens=64, own_tokens=8, max_tokens=4, rate=60.0)
    run = measure("prefixes", FLEET, server, send_open(server.host, server.port, requests, words))
    assert not run.failures
    for worker in (0, 1):  # whom the answers name is who was given the requests
        given = sum(record.worker == worker for record in run.records)
        assert given == run.counted[f'lightwell_worker_requests_total{{worker="{worker}"}}'] > 0
    assert [record.output_tokens for record in run.records] == [4] * 24
    assert sum(record.cached_tokens for record in run.records) == run.counted["lightwell_prefix_cache_hits_total"] > 0
    assert run.counted["lightwell_generation_tokens_total"] == run.num_output_tokens == 96
    assert run.api_seconds > 0
    for record, sent in zip(run.records, requests, strict=True):
        assert record.end is not None
        assert record.ttft is not None
        assert sent.arrival - 0.01 < record.arrival < record.arrival + record.ttft <= record.end
    append_run(tmp_path / "runs", run.as_data(), run.records)
    append_run(tmp_path / "runs", run.as_data(), run.records[:1])
    ((told, records), (_, one)) = read_runs(tmp_path / "runs")
    assert (records, one) == (run.records, run.records[:1])
    assert (told["num_workers"], told["step_times"]["base"], told["block_size"]) == (2, 0.002, BLOCK_SIZE)


@pytest.mark.nightly
def test_a_request_that_fails_is_recorded_with_the_servers_reason(server: Server) -> None:
    requests = [
        replace(each, max_tokens=100_000) for each in plain_requests(1, 1, prompt_tokens=4, max_tokens=1, rate=9)
    ]
    run = measure("too long", FLEET, server, send_open(server.host, server.port, requests))
    assert run.failures == {"context_length_exceeded": 1}
    assert run.answered == []


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text(json.dumps({"type": "run"}) + "\n" + json.dumps({"type": "walk"}) + "\n")
    with pytest.raises(ValueError, match="runs:2: a line of type 'walk'"):
        read_runs(file)


def record(worker: int, arrival: float, end: float, *, tokens: int = 11, group: int | None = None) -> Record:
    """Return a record whose first token came after a second."""
    return Record(arrival, 64, group, 33, tokens, tokens, 32, 1.0, end, worker)


def run_of(*records: Record) -> Run:
    return Run("", FLEET, list(records), 20.0, 0.0, 0.0, 0.0)


def test_rates_and_balance_are_those_of_the_tokens() -> None:
    run = run_of(record(0, 0, 11), record(0, 5, 16), record(1, 0, 11))
    assert run.rate_between(1, 6) == pytest.approx(2 * 1.1)
    assert run.rate_between(6, 11) == pytest.approx(3 * 1.1)
    assert run.rate_between(16, 20) == 0
    assert run.imbalance() == pytest.approx(2 / 1.5)
    assert run_of(record(1, 0, 11)).imbalance() == 2
    assert run.hit_rate == 0.5


def test_a_lost_worker_has_its_share_again_when_it_has_three_quarters_of_the_others() -> None:
    one_up, both_up = (
        {f'lightwell_worker_up{{worker="{i}"}}': up for i, up in enumerate(ups)} for ups in ((1.0, 0.0), (1.0, 1.0))
    )
    loss = Loss(killed=2.0)
    for now, values in ((1.0, both_up), (3.0, one_up), (4.0, both_up), (5.0, both_up)):
        loss.watch(now, values, 2)
    assert (loss.lost, loss.up) == (1, 4.0)
    run = run_of(*[record(0, i, 20) for i in range(4)], record(1, 5, 20), record(1, 6, 20), record(1, 7, 20))
    assert loss.balanced(run) == pytest.approx(7.0, abs=0.06)
    assert loss.balanced(run_of(*run.records[:-1])) is None
    assert loss.elsewhere(run) == 3


def test_a_request_that_fails_on_a_worker_that_lived_is_told_from_those_of_the_killed_one() -> None:
    loss = Loss(killed=2.0, lost=1, up=4.0)
    cut_off = replace(record(0, 1, 3), worker=None, error="worker_lost")  # nobody says whose they were
    run = run_of(record(0, 1, 9), record(1, 5, 20), cut_off, cut_off, cut_off, replace(cut_off, error="not_ready"))

    def told(ours: int, theirs: int) -> list[str]:
        given = {f'lightwell_worker_requests_total{{worker="{i}"}}': n for i, n in enumerate((float(ours), theirs))}
        rows = scaling_tables.of_loss(replace(run, counted=given), loss).splitlines()
        return [cells[2].strip() for cells in (row.split("|") for row in rows) if "other workers" in cells[1]]

    assert told(1, 4) == ["1", "0"]  # who was given a request and did not answer it let it fail
    assert told(2, 3) == ["1", "1"]


def test_the_best_hit_rate_computes_each_prefix_once() -> None:
    records = [record(0, at, at + 2, group=group) for at, group in ((0, 1), (3, 2), (1, 1), (2, 1))]
    assert scaling_tables.best_hit_rate(records) == 2 * 32 / (4 * 64)


def test_what_a_request_and_a_token_cost_is_told_apart() -> None:
    long, short = run_of(*[record(0, 0, 9, tokens=50)] * 4), run_of(*[record(0, 0, 9, tokens=1)] * 30)
    long.api_seconds = 4 * 0.002 + 200 * 0.00003
    short.api_seconds = 30 * 0.002 + 30 * 0.00003
    assert "takes 2.00 ms of the API process, and each token 30 µs" in scaling_tables.costs_of_api(long, short)


def test_policies_differ_in_what_they_look_at() -> None:
    prompt = RoutedPrompt(range(64))
    for name, expected in (("prefix", 0), ("least-loaded", 1), ("fewest-requests", 1)):
        router = Router(2)
        for worker in (0, 1):
            router.begin(worker, num_blocks=10, block_size=8)
        router.route([Candidate(0, 0, 0)], prompt)  # it lies there now
        busy = [Candidate(0, 9, 2), Candidate(1, 0, 1)]
        assert POLICIES[name](router, busy, prompt).worker_id == expected, name
    drawn = {POLICIES["random"](Router(2), busy, prompt).worker_id for _ in range(50)}
    assert drawn == {0, 1}
