"""Ends of the engine requests of one HTTP request, by its client's outcome and its log line.

One HTTP request may make several engine requests (prompts times `n`, inputs, questions about the weights), with
different ends. docs/operating.md, "Every request is accounted for", lists the ends; this module lists the ends that
each pair of outcome and log line allows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.soak.clients import Outcome
from benchmarks.soak.faults import Fault

FAILURES = frozenset(
    {
        "worker_lost", "worker_hung", "no_memory", "engine_error", "not_finite", "request_refused", "deadline_exceeded",
        "shutting_down", "internal_error",
    }
)  # fmt: skip
"""Error codes of failed engine requests. Any other code is a rejection: submitted engine requests are aborted."""
_OF_LOST_WORKERS = frozenset({"worker_lost", "worker_hung"})


@dataclass(frozen=True)
class LogLine:
    request_id: str
    method: str
    path: str
    status: int
    engine_requests: int
    generated_tokens: int
    finish: tuple[str, ...] = ()
    """Reasons for which its requests of the engine ended, each once however many there were; failures are not
    included.
    """
    error: str | None = None


@dataclass(frozen=True)
class Bounds:
    """How many of a line's requests of the engine ended for each reason, at least and at most."""

    least: Counter[str]
    most: Counter[str]


def difference(outcome: Outcome, line: LogLine) -> str:
    """Return the differences between the line and the client's complete answer as text; empty if they agree."""
    if line.error != outcome.error_code:
        return f"client's error {outcome.error_code}, log's {line.error}"
    told, number = set(line.finish), line.engine_requests
    if outcome.finish:
        agree = told == set(outcome.finish) and number == len(outcome.finish)
    elif outcome.error_code is None:
        agree = told == ({"done"} if number else set())
    elif outcome.error_code in FAILURES:
        agree = len(told) < number  # one is left, at least, that failed
    else:
        agree = bool(told) == bool(number)
    saw = ", ".join(outcome.finish) or outcome.error_code or "an answer without choices"
    return "" if agree else f"client saw {saw}; log: {number} requests of the engine, finish {sorted(told)}"


def bounds(line: LogLine, outcome: Outcome | None, faults: Sequence[Fault]) -> Bounds:
    """Return the bounds of the counters of ends for this line.

    The choices of a complete answer are known one by one. If several engine requests have different ends, only the set
    of ends is known. A client that disconnected while the worker was lost may have seen neither end: then the client
    and the log have at most the abort, but the failure is counted too.
    """
    if outcome is not None and outcome.end == "whole" and outcome.finish:
        exact = Counter(outcome.finish)
        return Bounds(exact, exact)
    certain = set(line.finish)
    if line.error in FAILURES and line.engine_requests > len(certain):
        certain.add(line.error)
    possible = set(certain)
    if outcome is not None and outcome.end != "whole" and any(fault.may_hit(outcome) for fault in faults):
        possible |= _OF_LOST_WORKERS
    spare = line.engine_requests - len(certain)
    if len(possible) == 1:
        least = most = Counter(dict.fromkeys(possible, line.engine_requests))
    else:
        least = Counter(dict.fromkeys(certain, 1))
        most = Counter({reason: (reason in certain) + spare for reason in possible})
    return Bounds(least, most)
