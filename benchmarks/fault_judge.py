"""Verdict on a fault: compares clients' outcomes, readiness and counters with the documented behaviour.

Independent of the fault injection (`benchmarks.faults`) and of the load (`benchmarks.fault_load`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.fault_load import CUT, ENDED, REFUSED, RIGHT, SILENCE, Outcome
from benchmarks.soak.books import HELD, delta, engine_ends
from lightwell.server.observability.metrics import FAILURES

_LOSSES = frozenset({SILENCE, REFUSED, ENDED, CUT})
"""Outcomes with which a client does not learn the result of its request."""
_RESTARTS = "lightwell_worker_restarts_total"
_SUBMITTED = "lightwell_requests_submitted_total"
_SHOWN = (
    _RESTARTS,
    "lightwell_request_failed_total",
    "lightwell_requests_refused_total",
    "lightwell_integrity_failures_total",
    "lightwell_log_lines_dropped_total",
)
"""Counters shown in the table, by their growth."""


@dataclass(frozen=True)
class Expected:
    """The promise for one fault. By default no client notices it."""

    allowed: frozenset[Outcome] = frozenset()
    """Outcomes that clients may get in addition to right answers."""
    culprit: frozenset[Outcome] = frozenset()
    """Allowed outcomes of the request that causes the fault."""
    stays_ready: bool = True
    """False if it must have been not ready for a time, with `worker_up` 0."""
    num_restarts: int = 0
    """Expected number of worker restarts if the server continues."""
    exit_status: int | None = None
    """The status with which the server is to end, or None if it lives on and is ready in the end."""
    last_words: str = ""
    """Text that the last line of the log must contain if the server has ended."""
    grows: tuple[str, ...] = ()
    """Counters that must grow, in addition to the counters of requests and restarts."""


@dataclass(frozen=True)
class Evidence:
    outcomes: Mapping[Outcome, int]
    before: Mapping[str, float]
    """All values of /metrics while nothing was wrong."""
    after: Mapping[str, float]
    """The last values that could be read; of an idle server, where it lives on."""
    least_up: float | None
    """The least `worker_up` while the server was not ready, or None if there was no such time or no answer."""
    was_unready: bool
    culprit: Outcome | None = None
    exit_status: int | None = None
    last_line: str = ""


def num_lost(expected: Expected, seen: Evidence) -> int:
    """Return the number of requests without a known end, by the clients or by the server's counters."""
    lost = sum(count for outcome, count in seen.outcomes.items() if outcome in _LOSSES - expected.allowed)
    return lost + (0 if expected.exit_status is not None else abs(num_open(seen.before, seen.after)))


def num_open(before: Mapping[str, float], after: Mapping[str, float]) -> int:
    """Return the number of engine requests that were submitted between two readings and not counted as ended."""
    return delta(_SUBMITTED, before, after) - sum(engine_ends(before, after).values())


def metrics_text(seen: Evidence) -> str:
    """Return the metrics that an operator's dashboard shows of the fault, as text."""
    grown = {name: delta(name, seen.before, seen.after) for name in seen.after if name.startswith(_SHOWN)}
    parts = [f"{name.removeprefix('lightwell_')} +{count}" for name, count in grown.items() if count]
    if seen.least_up is not None:
        parts.insert(0, f"worker_up {seen.least_up:g} meanwhile")
    return ", ".join(parts) or "nothing"


def judge(expected: Expected, seen: Evidence) -> list[str]:
    """Return all that is not as promised, each in a few words."""
    problems = _of_clients(expected, seen)
    if num_lost(expected, seen):
        problems.append(f"requests lost: {num_lost(expected, seen)}")
    if seen.exit_status != expected.exit_status:
        problems.append(f"exit status {seen.exit_status}, not {expected.exit_status}")
    if expected.last_words not in seen.last_line:
        problems.append(f"the last line of the log does not say {expected.last_words!r}: {seen.last_line!r}")
    if seen.was_unready == expected.stays_ready:
        problems.append(f"the server was {'not ready for a time' if seen.was_unready else 'always ready'}")
    if seen.least_up and expected.exit_status != 0:  # a server that shuts down keeps its worker until it exits
        problems.append("worker_up stayed 1 while the server was not ready")
    if expected.exit_status is None:
        problems += _of_counters(expected, seen)
    problems += [f"{name} did not grow" for name in expected.grows if not delta(name, seen.before, seen.after)]
    return problems


def _of_clients(expected: Expected, seen: Evidence) -> list[str]:
    """Return the problems with the clients' outcomes. A lost request is one of them."""
    problems = [
        f"clients were told {count} x {outcome}"
        for outcome, count in seen.outcomes.items()
        if count and outcome not in expected.allowed | {RIGHT} | _LOSSES
    ]
    if seen.culprit not in (expected.culprit or {None}):
        told = " or ".join(sorted(map(str, expected.culprit)))
        problems.append(f"the request itself was told {seen.culprit}, not {told or 'nothing'}")
    return problems


def _of_counters(expected: Expected, seen: Evidence) -> list[str]:
    """Return the problems with the counters of a server that continues: they must match the clients' outcomes, and
    no request may hold blocks or memory.
    """
    problems = []
    num_restarts = delta(_RESTARTS, seen.before, seen.after)
    if num_restarts != expected.num_restarts:
        problems.append(f"workers started again: {num_restarts}, not {expected.num_restarts}")
    ends = engine_ends(seen.before, seen.after)
    for code in FAILURES:
        told = sum(count for outcome, count in seen.outcomes.items() if outcome.code == code)
        is_culprits = seen.culprit is not None and seen.culprit.code == code
        # One request of the culprit may make several engine requests, and each may fail.
        if ends[code] < told + is_culprits or (ends[code] > told and not is_culprits):
            problems.append(f"request_failed_total counts {ends[code]} x {code}, clients {told + is_culprits}")
    problems += [f"{name} is {seen.after[name]:g} when idle" for name in HELD if seen.after[name]]
    return problems
