"""Decides how the requests of the engine ended that one HTTP request made: as its client saw it, and as its log line
says.

One HTTP request may be several requests of the engine (prompts times `n`, inputs, questions about the weights), of
which some may end one way and some another. docs/operating.md, "Every request is accounted for", says which ends there
are; this file says which of them a pair of client and line allows.
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
"""Codes of errors with which requests of the engine fail. Any other is a refusal: what was submitted is aborted."""
_OF_LOST_WORKERS = frozenset({"worker_lost", "worker_hung"})


@dataclass(frozen=True)
class LogLine:
    """What the server's log says of one request."""

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
    """Return how the line disagrees with what the client of a whole answer saw; empty where they agree."""
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
    """Return what the counters of ends may have counted of this line.

    A whole answer's choices are known one by one. Of several requests that ended in several ways only the ways are
    known. A client that left while the worker was lost may have seen neither end: then both it and the log have the
    abort at most, and the failure is counted all the same.
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
