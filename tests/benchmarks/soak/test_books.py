"""The soak's bookkeeping: each way in which clients, log and counters can disagree is found, and agreement is no
finding.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import books
from benchmarks.soak.books import Findings
from benchmarks.soak.clients import Outcome
from benchmarks.soak.ends import FAILURES, LogLine
from benchmarks.soak.faults import Fault
from benchmarks.soak.watch import API_PROCESS, MIN_LIFE, WORKER, Sample, Watch, growth_of
from tests.support.processes import ROOT, Server

WHOLE = Outcome("a", "patient", "chat", 10.0, "/v1/chat/completions", 11.0, status=200, end="whole", finish=("stop",))
LEFT = replace(WHOLE, request_id="b", behaviour="leaves early", status=None, end="left", finish=())
LINE = LogLine("a", "POST", "/v1/chat/completions", 200, 1, 7, ("stop",))
GONE = replace(LINE, request_id="b", status=499, generated_tokens=2, finish=("abort",), error="client_closed_request")
KILL = Fault("kill", 10.5, 14.0)


def findings(check: Callable[..., None], *arguments: Any) -> list[str]:
    """Return the kinds of findings of a check."""
    found = Findings()
    check(*arguments, found)
    return list(found.counts)


log_findings = partial(findings, books.check_log)


def outcome_findings(outcome: Outcome, *faults: Fault) -> list[str]:
    return findings(books.check_outcomes, [outcome], faults)


def answered_findings(outcomes: list[Outcome]) -> list[str]:
    return findings(books.check_answered, outcomes, [KILL])


def counters(**changes: float) -> dict[str, float]:
    """Return an exposition in which LINE and GONE are counted."""
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
    ends = findings(books.check_ends, [WHOLE, LEFT], lines, [], {}, after)
    return [*findings(books.check_counters, lines, {}, after), *ends]


def test_one_story_has_no_findings() -> None:
    assert not log_findings([WHOLE, LEFT], [LINE, GONE])
    assert not outcome_findings(WHOLE)
    assert not outcome_findings(LEFT)
    assert not counter_findings([LINE, GONE], counters())
    assert not answered_findings([WHOLE, LEFT])


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
    assert not outcome_findings(lost, KILL)
    assert not outcome_findings(replace(WHOLE, error_code="worker_lost"), KILL)
    assert outcome_findings(replace(lost, began=20.0, ended=21.0), KILL)
    assert outcome_findings(replace(lost, error_code="no_memory"), KILL)


HTTP_200 = 'lightwell_http_requests_total{method="POST",route="/v1/chat/completions",status="200"}'
STOPPED = 'lightwell_request_success_total{finish_reason="stop"}'
ABORTED = 'lightwell_request_success_total{finish_reason="abort"}'
LOST = 'lightwell_request_failed_total{reason="worker_lost"}'


@pytest.mark.parametrize(
    ("name", "value", "findings"),
    [
        (HTTP_200, 2.0, ["HTTP counters that differ from the log"]),
        ("lightwell_requests_submitted_total", 3.0, ["engine requests that are not accounted for"]),
        (LOST, 1.0, ["engine requests that are not accounted for", "ends that are counted otherwise"]),
        ("lightwell_generation_tokens_total", 8.0, ["more tokens logged than generated"]),
    ],
)
def test_a_counter_that_is_off_by_one_is_found(name: str, value: float, findings: list[str]) -> None:
    assert counter_findings([LINE, GONE], counters(**{name: value})) == findings


def test_an_end_that_is_counted_under_another_reason_is_found() -> None:
    """Check sums that agree: one request ended well for its client and the log, and is counted as a failure."""
    assert counter_findings([LINE, GONE], counters(**{STOPPED: 0.0, LOST: 1.0})) == ["ends that are counted otherwise"]


def test_a_path_with_a_model_in_it_is_counted_under_its_template() -> None:
    route = 'lightwell_http_requests_total{method="GET",route="/v1/models/{model_id:path}%s",status="200"}'
    of_model = {route % rest: 1.0 for rest in ("", "/parameters")}
    lines = [
        replace(LINE, method="GET", path=f"/v1/models/soak{rest}", engine_requests=0, generated_tokens=0)
        for rest in ("", "/parameters")
    ]
    none = dict.fromkeys(("lightwell_requests_submitted_total", "lightwell_generation_tokens_total"), 100.0)
    assert not findings(books.check_counters, lines, none, none | of_model)


FAILED = replace(WHOLE, finish=(), error_code="worker_lost")
FULL = replace(WHOLE, finish=(), status=429, error_code="queue_full")
UNTOLD = replace(WHOLE, finish=())


@pytest.mark.parametrize(
    ("outcome", "changes"),
    [
        # A failed stream with a log line of success, and the reverse.
        (FAILED, {}),
        (FAILED, {"error": "worker_lost"}),
        (WHOLE, {"error": "worker_lost", "finish": ()}),
        (FAILED, {"error": "engine_error", "finish": ()}),
        # Choices with another end, or unknown to the log; answers without choices.
        (replace(WHOLE, finish=("length",)), {}),
        (replace(WHOLE, finish=("stop", "stop")), {}),
        (replace(WHOLE, finish=("stop", "length")), {"engine_requests": 2}),
        (UNTOLD, {"finish": ("abort",)}),
        (UNTOLD, {"finish": ()}),
        # Refused, although part of the request ran and has no end.
        (FULL, {"status": 429, "error": "queue_full", "finish": ()}),
    ],
)
def test_a_line_that_tells_another_end_than_the_client_saw_is_found(outcome: Outcome, changes: dict[str, Any]) -> None:
    assert log_findings([outcome], [replace(LINE, **changes)]) == ["ends on which client and log differ"]


@pytest.mark.parametrize(
    ("outcome", "changes"),
    [
        (replace(WHOLE, finish=("stop", "length", "stop")), {"engine_requests": 3, "finish": ("length", "stop")}),
        (UNTOLD, {"engine_requests": 2, "finish": ("done",)}),
        (UNTOLD, {"engine_requests": 0, "finish": ()}),
        (FAILED, {"error": "worker_lost", "finish": ()}),
        (FAILED, {"engine_requests": 3, "error": "worker_lost", "finish": ("stop", "abort")}),
        (FULL, {"status": 429, "error": "queue_full", "finish": ("abort",)}),  # of two inputs the second found no room
    ],
)
def test_ends_that_client_and_log_tell_alike_are_no_findings(outcome: Outcome, changes: dict[str, Any]) -> None:
    assert not log_findings([outcome], [replace(LINE, **changes)])


def test_requests_of_one_answer_may_end_in_several_ways_but_no_other() -> None:
    line = replace(LINE, engine_requests=4, error="worker_lost", finish=("abort",))

    for aborted, lost, stopped in ((1, 3, 0), (3, 1, 0), (4, 0, 0), (0, 4, 0), (1, 2, 1)):
        counted = {ABORTED: aborted, STOPPED: stopped, LOST: lost}
        is_possible = aborted > 0 and lost > 0 and not stopped
        assert bool(findings(books.check_ends, [FAILED], [line], [KILL], {}, counted)) != is_possible


def test_a_lost_worker_may_be_counted_for_a_client_that_left_at_that_moment_only() -> None:
    for outcome, may_be in ((LEFT, True), (replace(LEFT, began=20.0, ended=21.0), False)):
        ended = findings(books.check_ends, [outcome], [replace(GONE, finish=())], [KILL], {}, {LOST: 1.0})
        assert bool(ended) != may_be


def test_the_failures_that_the_books_know_are_those_that_operators_are_told_of() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    table = text.partition("| reason | status |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == FAILURES


def test_a_server_that_refuses_everything_is_found() -> None:
    refused = replace(WHOLE, status=429, error_code="queue_full", retry_after=1.0, finish=())
    assert answered_findings([refused] * 3 + [WHOLE]) == ["too few answers"]
    assert answered_findings([refused] * 3) == ["too few answers", "kinds of questions without any answer"]
    assert answered_findings([WHOLE, replace(refused, kind="lens")]) == ["kinds of questions without any answer"]
    assert answered_findings([]) == ["too few answers"]


def test_who_was_hit_by_a_fault_is_no_refusal_that_counts_against_the_server() -> None:
    unready = replace(WHOLE, status=503, error_code="not_ready", retry_after=1.0, finish=())
    assert not answered_findings([WHOLE] + [unready] * 3)
    assert answered_findings([WHOLE] + [replace(unready, began=20.0, ended=21.0)] * 3) == ["too few answers"]


def test_what_an_idle_server_holds_and_restarts_without_a_kill_are_found() -> None:
    idle = dict.fromkeys((*books.HELD, books.INTEGRITY), 0.0)
    assert not findings(books.check_idle, idle)
    assert not findings(books.check_faults, [KILL], {}, {"lightwell_worker_restarts_total": 1.0})
    assert findings(books.check_idle, {**idle, "lightwell_inflight_capture_bytes": 8.0})
    assert findings(books.check_faults, [KILL], {}, {"lightwell_worker_restarts_total": 2.0})
    assert "the server's own books contradict each other" in findings(books.check_idle, {**idle, books.INTEGRITY: 1.0})


def test_the_log_is_read_past_what_is_no_request(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "request_id": "a", "method": "POST", "path": "/x", "status": 499, "engine_requests": 2, "generated_tokens": 5,
    }  # fmt: skip
    ended = {**fields, "request_id": "b", "status": 200, "finish": "stop,length", "error": "worker_lost"}
    log = tmp_path / "log"
    log.write_text(
        "\n".join(["no JSON", "[1]", json.dumps({"message": "loading"}), json.dumps(fields), json.dumps(ended)])
    )
    assert books.read_log(log) == [
        LogLine("a", "POST", "/x", 499, 2, 5),
        LogLine("b", "POST", "/x", 200, 2, 5, ("stop", "length"), "worker_lost"),
    ]


def test_a_leak_is_a_growth_and_noise_is_none() -> None:
    def growing(per_sample: int) -> list[Sample]:
        return [Sample(2.0 * i, (300 << 20) + per_sample * i + (i % 7 << 20), 40 + i % 5) for i in range(200)]

    assert not growth_of(1, "worker", growing(0)).problems
    assert growth_of(1, "worker", growing(1 << 19)).problems
    files = [Sample(2.0 * i, 300 << 20, 40 + i // 4) for i in range(200)]
    assert growth_of(1, "worker", files).problems


def test_memory_that_nobody_lived_long_enough_to_show_is_told() -> None:
    watch = Watch(Server("127.0.0.1", 1, os.getpid()))

    def lived(pid: int, name: str, seconds: float) -> None:
        watch.names[pid], watch.samples[pid] = name, [Sample(at, 1 << 20, 9) for at in (0.0, seconds)]

    assert watch.unjudged() == [API_PROCESS, WORKER]
    lived(1, API_PROCESS, 2 * MIN_LIFE)
    lived(2, WORKER, MIN_LIFE / 2)
    lived(3, WORKER, MIN_LIFE - 1)
    assert watch.unjudged() == [WORKER]
    lived(4, WORKER, MIN_LIFE)
    assert not watch.unjudged()
