"""The fault table: a few of its faults for real, and a judge that finds each way in which a fault can do harm."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fault_judge import Evidence, Expected, judge, metrics_text, num_lost
from benchmarks.fault_load import CUT, DIFFERENT, ENDED, REFUSED, RIGHT, SILENCE, Outcome, error
from benchmarks.faults import FAULTS, GAVE_UP, LOST, REPLACED, UNNOTICED, run

LOST_WORKER = Outcome("503", "worker_lost")
RESTARTS = "lightwell_worker_restarts_total"
WORKER_LOST = 'lightwell_request_failed_total{reason="worker_lost"}'
ENGINE_ERROR = 'lightwell_request_failed_total{reason="engine_error"}'


def values(changes: Mapping[str, float]) -> dict[str, float]:
    """Return /metrics of an idle server that has answered ten requests."""
    return {
        RESTARTS: 0.0,
        WORKER_LOST: 0.0,
        ENGINE_ERROR: 0.0,
        "lightwell_requests_submitted_total": 10.0,
        'lightwell_request_success_total{finish_reason="length"}': 10.0,
        "lightwell_num_requests_running": 0.0,
        "lightwell_num_requests_waiting": 0.0,
        "lightwell_kv_cache_usage_ratio": 0.0,
        "lightwell_inflight_capture_bytes": 0.0,
        **changes,
    }


def evidence(after: Mapping[str, float] | None = None, **changes: Any) -> Evidence:
    """Return evidence of a killed worker under load: one request was lost with it, and its client got an error."""
    killed = {RESTARTS: 1.0, WORKER_LOST: 1.0, "lightwell_requests_submitted_total": 11.0}
    seen = Evidence(
        outcomes={RIGHT: 40, LOST_WORKER: 1, Outcome("503", "not_ready"): 5},
        before=values({}),
        after=values(killed | dict(after or {})),
        least_up=0.0,
        was_unready=True,
    )
    return replace(seen, **changes)


QUIET = evidence(outcomes={RIGHT: 40}, after={RESTARTS: 0, WORKER_LOST: 0, "lightwell_requests_submitted_total": 10},
                 least_up=None, was_unready=False)  # fmt: skip


def test_what_is_promised_is_no_problem() -> None:
    assert not judge(REPLACED, evidence())
    assert not judge(UNNOTICED, QUIET)
    assert not judge(GAVE_UP, evidence(exit_status=1, last_line="lightwell: error: the worker ended 5 times, ..."))
    assert metrics_text(evidence()) == (
        'worker_up 0 meanwhile, worker_restarts_total +1, request_failed_total{reason="worker_lost"} +1'
    )
    assert metrics_text(QUIET) == "nothing"


@pytest.mark.parametrize("outcome", [SILENCE, REFUSED, ENDED, CUT])
def test_a_client_that_was_not_told_the_end_is_lost_unless_its_server_was_the_victim(outcome: Outcome) -> None:
    seen = evidence(outcomes={RIGHT: 40, LOST_WORKER: 1, outcome: 2})
    assert num_lost(REPLACED, seen) == 2
    assert judge(REPLACED, seen) == ["requests lost: 2"]
    assert num_lost(Expected(allowed=LOST | {outcome}), seen) == 0


@pytest.mark.parametrize(
    ("expected", "seen", "problem"),
    [
        (REPLACED, evidence(outcomes={LOST_WORKER: 1, DIFFERENT: 1}), "clients were told 1 x 200 but another answer"),
        (UNNOTICED, replace(QUIET, outcomes={Outcome("503", "not_ready"): 9}), "clients were told 9 x 503 not_ready"),
        (
            REPLACED,
            evidence(outcomes={LOST_WORKER: 1, Outcome("503 without Retry-After", "not_ready"): 1}),
            "clients were told 1 x 503 without Retry-After not_ready",
        ),
        (UNNOTICED, replace(QUIET, was_unready=True), "the server was not ready for a time"),
        (REPLACED, evidence(was_unready=False, least_up=None), "the server was always ready"),
        (REPLACED, evidence(least_up=1.0), "worker_up stayed 1 while the server was not ready"),
        (REPLACED, evidence({RESTARTS: 2}), "workers started again: 2, not 1"),
        (UNNOTICED, replace(QUIET, after=values({RESTARTS: 1})), "workers started again: 1, not 0"),
        (REPLACED, evidence({"lightwell_requests_submitted_total": 12}), "requests lost: 1"),
        (REPLACED, evidence(outcomes={RIGHT: 40}), "request_failed_total counts 1 x worker_lost, clients 0"),
        (REPLACED, evidence({"lightwell_num_requests_running": 1}), "lightwell_num_requests_running is 1 when idle"),
        (REPLACED, evidence(exit_status=1), "exit status 1, not None"),
        (GAVE_UP, evidence(exit_status=0, last_line="the worker ended 5 times"), "exit status 0, not 1"),
        (GAVE_UP, evidence(exit_status=1), "the last line of the log does not say 'the worker ended 5 times': ''"),
        (replace(UNNOTICED, grows=(RESTARTS,)), QUIET, f"{RESTARTS} did not grow"),
    ],
)
def test_each_way_to_break_a_promise_is_found(expected: Expected, seen: Evidence, problem: str) -> None:
    assert judge(expected, seen) == [problem]


def test_the_request_that_is_the_fault_must_be_told_so_and_its_neighbours_must_not() -> None:
    expected = replace(UNNOTICED, culprit=error(500, "engine_error"))
    failed = values({ENGINE_ERROR: 1, "lightwell_requests_submitted_total": 11})
    seen = replace(QUIET, after=failed, culprit=Outcome("500", "engine_error"))
    assert not judge(expected, seen)
    assert judge(expected, replace(QUIET, culprit=RIGHT)) == [
        "the request itself was told 200, not 200 with error event engine_error or 500 engine_error"
    ]
    all_failed = values({ENGINE_ERROR: 4, "lightwell_requests_submitted_total": 14})
    assert judge(expected, replace(seen, after=all_failed, outcomes={Outcome("500", "engine_error"): 3})) == [
        "clients were told 3 x 500 engine_error"
    ]


@pytest.mark.nightly
def test_a_real_fault_that_breaks_its_promise_is_found() -> None:
    killed = next(fault for fault in FAULTS if fault.name == "worker killed while it writes")
    row = run(replace(killed, expected=replace(UNNOTICED, num_restarts=1)), clients=2)
    assert "the server was not ready for a time" in row.problems
    assert any("worker_lost" in problem for problem in row.problems)
