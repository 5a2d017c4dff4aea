"""The soak's books: each way in which clients, log and counters can disagree is found, and what agrees is not."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import books
from benchmarks.soak.acts import acts, pool, wrong_requests
from benchmarks.soak.books import Findings, LogLine
from benchmarks.soak.clients import Outcome
from benchmarks.soak.faults import LEAST_SPACING, Fault, fault_times
from benchmarks.soak.watch import Sample, growth_of
from server.supervisor import FAILURE_WINDOW, MAX_FAILURES

WHOLE = Outcome("a", "patient", "chat", 10.0, "/v1/chat/completions", 11.0, status=200, end="whole")
LEFT = replace(WHOLE, request_id="b", behaviour="leaves early", status=None, end="left")
LINE = LogLine("a", "POST", "/v1/chat/completions", 200, 1, 7)
GONE = replace(LINE, request_id="b", status=499, generated_tokens=2)
KILL = Fault("kill", 10.5, 14.0)


def log_findings(outcomes: list[Outcome], lines: list[LogLine]) -> list[str]:
    found = Findings()
    books.check_log(outcomes, lines, found)
    return list(found.counts)


def outcome_findings(outcome: Outcome, faults: list[Fault] | None = None) -> list[str]:
    found = Findings()
    books.check_outcomes([outcome], faults or [], found)
    return list(found.counts)


def counters(**changes: float) -> dict[str, float]:
    """An exposition in which LINE and GONE are counted."""
    route = 'method="POST",route="/v1/chat/completions"'
    values = {
        f'lightwell_http_requests_total{{{route},status="200"}}': 1.0,
        f'lightwell_http_requests_total{{{route},status="499"}}': 1.0,
        'lightwell_http_requests_total{method="GET",route="/metrics",status="200"}': 9.0,
        "lightwell_requests_submitted_total": 2.0,
        'lightwell_request_success_total{finish_reason="stop"}': 1.0,
        'lightwell_request_success_total{finish_reason="abort"}': 1.0,
        'lightwell_request_failed_total{reason="worker_lost"}': 0.0,
        "lightwell_generation_tokens_total": 10.0,
    }
    return {name: changes.get(name, value) for name, value in values.items()}


def counter_findings(lines: list[LogLine], after: dict[str, float]) -> list[str]:
    found = Findings()
    books.check_counters(lines, {}, after, found)
    return list(found.counts)


def test_one_story_has_no_findings() -> None:
    assert not log_findings([WHOLE, LEFT], [LINE, GONE])
    assert not outcome_findings(WHOLE)
    assert not outcome_findings(LEFT)
    assert not counter_findings([LINE, GONE], counters())


@pytest.mark.parametrize(
    ("outcomes", "lines", "finding"),
    [
        ([WHOLE], [], "requests without their one line in the log"),
        ([WHOLE], [LINE, LINE], "requests without their one line in the log"),
        ([LEFT], [], "requests without their one line in the log"),
        ([WHOLE], [replace(LINE, status=503)], "statuses on which client and log differ"),
        ([], [LINE], "lines of the log that no client knows"),
    ],
)
def test_a_log_that_tells_another_story_is_found(outcomes: list[Outcome], lines: list[LogLine], finding: str) -> None:
    assert log_findings(outcomes, lines) == [finding]


def test_a_client_that_left_may_have_been_told_anything_and_one_that_was_gone_first_nothing() -> None:
    assert not log_findings([LEFT], [replace(GONE, status=200)])
    assert not log_findings([replace(LEFT, is_rude=True)], [])
    assert not log_findings([replace(LEFT, is_sent=False)], [])


@pytest.mark.parametrize(
    ("outcome", "finding"),
    [
        (replace(WHOLE, end="broken", note="no end"), "hangs, broken answers and wrong ids"),
        (replace(WHOLE, difference="answer.x"), "answers that differ from the quiet ones"),
        (replace(WHOLE, status=500, error_code="internal_error"), "statuses that nothing explains"),
        (replace(WHOLE, expected_status=400), "statuses that nothing explains"),
        (replace(WHOLE, error_code="engine_error"), "streams that failed without a fault"),
        (replace(WHOLE, status=429, error_code="queue_full"), "refusals without Retry-After"),
    ],
)
def test_what_no_client_should_see_is_found(outcome: Outcome, finding: str) -> None:
    assert outcome_findings(outcome) == [finding]


def test_a_lost_worker_explains_the_failures_of_its_own_time_only() -> None:
    lost = replace(WHOLE, status=503, error_code="worker_lost", retry_after=1.0)
    assert not outcome_findings(lost, [KILL])
    assert not outcome_findings(replace(WHOLE, error_code="worker_lost"), [KILL])
    assert outcome_findings(replace(lost, began=20.0, ended=21.0), [KILL])
    assert outcome_findings(replace(lost, error_code="no_memory"), [KILL])


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        (
            'lightwell_http_requests_total{method="POST",route="/v1/chat/completions",status="200"}',
            2.0,
            "HTTP counters that differ from the log",
        ),
        ("lightwell_requests_submitted_total", 3.0, "engine requests that are not accounted for"),
        (
            'lightwell_request_failed_total{reason="worker_lost"}',
            1.0,
            "engine requests that are not accounted for",
        ),
        ("lightwell_generation_tokens_total", 8.0, "more tokens logged than generated"),
    ],
)
def test_a_counter_that_is_off_by_one_is_found(name: str, value: float, finding: str) -> None:
    assert counter_findings([LINE, GONE], counters(**{name: value})) == [finding]


def test_what_an_idle_server_holds_and_restarts_without_a_kill_are_found() -> None:
    found = Findings()
    idle = dict.fromkeys(books.HELD, 0.0)
    books.check_idle(idle, found)
    books.check_faults([KILL], {}, {"lightwell_worker_restarts_total": 1.0}, found)
    assert not found.counts
    books.check_idle({**idle, "lightwell_inflight_capture_bytes": 8.0}, found)
    books.check_faults([KILL], {}, {"lightwell_worker_restarts_total": 2.0}, found)
    assert len(found.counts) == 2


def test_the_log_is_read_past_what_is_no_request(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "request_id": "a", "method": "POST", "path": "/x", "status": 499, "engine_requests": 2, "generated_tokens": 5,
    }  # fmt: skip
    log = tmp_path / "log"
    log.write_text("\n".join(["no JSON", "[1]", json.dumps({"message": "loading"}), json.dumps(fields)]))
    assert books.read_log(log) == [LogLine("a", "POST", "/x", 499, 2, 5)]


def test_a_leak_is_a_growth_and_noise_is_none() -> None:
    def growing(per_sample: int) -> list[Sample]:
        return [Sample(2.0 * i, (300 << 20) + per_sample * i + (i % 7 << 20), 40 + i % 5) for i in range(200)]

    assert not growth_of(1, "worker", growing(0)).problems
    assert growth_of(1, "worker", growing(1 << 19)).problems
    files = [Sample(2.0 * i, 300 << 20, 40 + i // 4) for i in range(200)]
    assert growth_of(1, "worker", files).problems


def test_faults_never_make_the_supervisor_give_up() -> None:
    assert FAILURE_WINDOW / LEAST_SPACING < MAX_FAILURES - 1
    for seed in range(20):
        moments = [moment for moment, _ in fault_times(seed, 1800, 40)]
        assert all(b - a >= LEAST_SPACING for a, b in pairwise(moments))
        assert 20 < len(moments) < 60
        kills = [moment for moment, kind in fault_times(seed, 1800, 40) if kind == "kill"]
        assert kills[0] == LEAST_SPACING
        assert 600 < kills[-1] < 1200


def test_a_seed_draws_the_same_acts_and_every_behaviour() -> None:
    def first(seed: int) -> list[Any]:
        return [act for act, _ in zip(acts(seed, 3, len(pool())), range(500), strict=False)]

    assert first(1) == first(1) != first(2)
    assert {act.behaviour for act in first(1)} == {
        "patient",
        "slow",
        "leaves early",
        "leaves midway",
        "leaves unsent",
        "wrong",
    }
    assert {act.index for act in first(1) if act.behaviour == "wrong"} == set(range(len(wrong_requests())))
