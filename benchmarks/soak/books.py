"""Consistency checks of a soak: clients' outcomes, the log and the counters must agree.

Every request has an id, so clients' outcomes and log lines are compared one by one. The counters have no ids; they must
equal the sums of the log's lines. If a client disconnects, several ends are right: these rules are documented here and
in `benchmarks.soak.ends`. This module is independent of the sending of requests.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak import ends
from benchmarks.soak.clients import Outcome
from benchmarks.soak.ends import LogLine
from benchmarks.soak.faults import Fault

FAULT_CODES = ("worker_lost", "worker_hung", "not_ready")
CROWDED = 429
QUIET = "quiet-"
"""Prefix of the ids of requests before and after the soak, which are not compared."""
_HTTP_COUNTER = re.compile(r'lightwell_http_requests_total\{method="(\w+)",route="([^"]*)",status="(\d+)"\}')
_PROBES = ("/health", "/metrics")
"""Routes without access log."""
MAX_EXAMPLES = 5


@dataclass
class Findings:
    """Mismatches and errors: counts by kind, with a few examples of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if len(self.examples[kind]) < MAX_EXAMPLES:
            self.examples[kind].append(example)


def read_log(path: Path) -> list[LogLine]:
    """Return the lines about requests, of a log in JSON. All other lines are skipped, the quiet ones too."""
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        event = _as_json(text)
        if "status" in event and "path" in event and not str(event.get("request_id", QUIET)).startswith(QUIET):
            lines.append(
                LogLine(
                    str(event["request_id"]), str(event["method"]), str(event["path"]), int(event["status"]),
                    int(event["engine_requests"]), int(event["generated_tokens"]),
                    tuple(event["finish"].split(",")) if "finish" in event else (), event.get("error"),
                )
            )  # fmt: skip
    return lines


def _as_json(text: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def check_outcomes(outcomes: Iterable[Outcome], faults: Sequence[Fault], found: Findings) -> None:
    """Check the clients' outcomes: no hang, no broken answer, no wrong status, no wrong number."""
    for outcome in outcomes:
        said = (
            f"{outcome.request_id} ({outcome.behaviour}, {outcome.kind}): {outcome.status} {outcome.error_code or ''}"
        )
        if outcome.note:
            found.add("hangs, broken answers and wrong ids", f"{said} {outcome.note}")
        if outcome.difference:
            found.add("answers that differ from the quiet ones", f"{said} {outcome.difference}")
        if outcome.status is None or outcome.end != "whole":
            continue
        is_excused = _is_excused(outcome, faults)
        if outcome.status in (CROWDED, 503) and outcome.retry_after is None:
            found.add("refusals without Retry-After", said)
        if outcome.status == 200 and outcome.error_code is not None and not is_excused:
            found.add("streams that failed without a fault", said)
        elif outcome.status not in (outcome.expected_status, CROWDED) and not is_excused:
            found.add("statuses that nothing explains", f"{said}; expected {outcome.expected_status}")


def _is_excused(outcome: Outcome, faults: Sequence[Fault]) -> bool:
    return outcome.error_code in FAULT_CODES and any(fault.may_hit(outcome) for fault in faults)


def check_answered(outcomes: Iterable[Outcome], faults: Sequence[Fault], found: Findings) -> None:
    """Check that the server does not only reject: of the requests that waited, and that no fault hit, half got their
    answer, and each kind of question got one.
    """
    patient = [one for one in outcomes if one.behaviour == "patient" and not _is_excused(one, faults)]
    answered = [one for one in patient if one.end == "whole" and one.status == 200 and one.error_code is None]
    if 2 * len(answered) < len(patient) or not patient:
        found.add("too few answers", f"{len(answered)} to {len(patient)} patient requests")
    for kind in sorted({one.kind for one in patient} - {one.kind for one in answered}):
        found.add("kinds of questions without any answer", kind)


def check_log(outcomes: Sequence[Outcome], lines: Sequence[LogLine], found: Findings) -> None:
    """Check that each request has one line with its client's status and, for complete answers, the client's end.

    If a client disconnected before the head of its answer, the line may have any status. If it disconnected with a
    reset, or before its request was complete, the server may not have seen it, and the line may be missing.
    """
    by_id: dict[str, list[LogLine]] = defaultdict(list)
    for line in lines:
        by_id[line.request_id].append(line)
    for outcome in outcomes:
        mine = by_id.pop(outcome.request_id, [])
        said = f"{outcome.request_id} ({outcome.behaviour}, {outcome.kind}): client {outcome.status} {outcome.end}"
        may_be_unknown = outcome.end == "left" and outcome.status is None and (outcome.is_rude or not outcome.is_sent)
        if len(mine) != 1 and not (may_be_unknown and not mine):
            found.add("requests without their one line in the log", f"{said}, {len(mine)} lines")
        elif mine and outcome.status is not None and mine[0].status != outcome.status:
            found.add("statuses on which client and log differ", f"{said}, log {mine[0].status}")
        elif mine and outcome.end == "whole" and (difference := ends.difference(outcome, mine[0])):
            found.add("ends on which client and log differ", f"{said}, {difference}")
    for request_id in by_id:
        found.add("lines of the log that no client knows", request_id)


def is_logged(name: str) -> bool:
    """Return whether a value of /metrics counts HTTP requests that are in the log."""
    match = _HTTP_COUNTER.fullmatch(name)
    return match is not None and not match[2].startswith(_PROBES)


def check_counters(
    lines: Sequence[LogLine], before: Mapping[str, float], after: Mapping[str, float], found: Findings
) -> None:
    """Check that the counters equal the log's lines exactly: HTTP by route and status, and the engine's counters.

    `before` and `after` are all values of /metrics of the idle server, before and after the logged requests.
    """
    counted: Counter[tuple[str, str, int]] = Counter()
    for name, value in after.items():
        match = _HTTP_COUNTER.fullmatch(name)
        if match is not None and is_logged(name):
            counted[match[1], match[2], int(match[3])] = round(value - before.get(name, 0))
    routes = {route for _, route, _ in counted}
    logged = Counter((line.method, _route_of(line.path, routes), line.status) for line in lines)
    for key in sorted((counted | logged).keys()):
        if counted[key] != logged[key]:
            found.add("HTTP counters that differ from the log", f"{key}: counted {counted[key]}, logged {logged[key]}")
    ended = engine_ends(before, after)
    submitted = delta("lightwell_requests_submitted_total", before, after)
    logged_requests = sum(line.engine_requests for line in lines)
    if not sum(ended.values()) == submitted == logged_requests:
        sums = f"submitted {submitted}, ended {sum(ended.values())} ({dict(ended)}), logged {logged_requests}"
        found.add("engine requests that are not accounted for", sums)
    generated = delta("lightwell_generation_tokens_total", before, after)
    told = sum(line.generated_tokens for line in lines)
    if told > generated:
        found.add("more tokens logged than generated", f"logged {told}, counted {generated}")


def _route_of(path: str, routes: Iterable[str]) -> str:
    """Return the route template of a path as in the counters' labels; the longest if several match."""
    fitting = [route for route in routes if re.fullmatch(re.sub(r"\\{.*?\\}", ".+", re.escape(route)), path)]
    return max(fitting, key=len, default="unmatched")


def check_ends(
    outcomes: Sequence[Outcome],
    lines: Sequence[LogLine],
    faults: Sequence[Fault],
    before: Mapping[str, float],
    after: Mapping[str, float],
    found: Findings,
) -> None:
    """Check the counters of ends, reason by reason, against the sums of the clients' outcomes and the log's lines."""
    by_id = {outcome.request_id: outcome for outcome in outcomes}
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in lines:
        bounds = ends.bounds(line, by_id.get(line.request_id), faults)
        least += bounds.least
        most += bounds.most
    ended = engine_ends(before, after)
    for reason in sorted(ended.keys() | most.keys()):
        if not least[reason] <= ended[reason] <= most[reason]:
            told = f"{least[reason]} to {most[reason]}" if least[reason] < most[reason] else str(most[reason])
            found.add("ends that are counted otherwise", f"{reason}: counted {ended[reason]}, told {told}")


def engine_ends(before: Mapping[str, float], after: Mapping[str, float]) -> Counter[str]:
    """Return how the engine's requests ended between two readings: finish reasons, and codes of failures."""
    ended: Counter[str] = Counter()
    for name in after:
        match = re.fullmatch(r'lightwell_request_(success|failed)_total\{\w+="(\w+)"\}', name)
        if match is not None:
            ended[match[2]] += delta(name, before, after)
    return +ended


def delta(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> int:
    return round(after[name] - before.get(name, 0))


HELD = (
    "lightwell_num_requests_running",
    "lightwell_num_requests_waiting",
    "lightwell_kv_cache_usage_ratio",
    "lightwell_inflight_capture_bytes",
)
"""Gauges that an idle server shows as 0."""
INTEGRITY = "lightwell_integrity_failures_total"
"""Counts the times that the server found its own counters to contradict each other, which it checks when idle."""


def check_idle(values: Mapping[str, float], found: Findings) -> None:
    """Check that all resources of requests are released, and that the server's own check of its counters agrees."""
    for name in HELD:
        if values[name] != 0:
            found.add("held by an idle server", f"{name} {values[name]:g}")
    if values[INTEGRITY] != 0:
        found.add("the server's own books contradict each other", f"{INTEGRITY} {values[INTEGRITY]:g}; see its log")


def check_faults(
    faults: Sequence[Fault], before: Mapping[str, float], after: Mapping[str, float], found: Findings
) -> None:
    """Check that each killed worker was started again, and no other."""
    kills = sum(fault.kind == "kill" for fault in faults)
    restarts = delta("lightwell_worker_restarts_total", before, after)
    if kills != restarts:
        found.add("restarts that no kill explains", f"{kills} kills, {restarts} restarts")
    for fault in faults:
        if not fault.is_healed:
            found.add("faults that did not heal", f"a {fault.kind}: not ready for {fault.ready - fault.began:.0f} s")
