"""Soak test: many clients with varied behaviour on one server; its worker is killed at random times.

First each question of a pool is sent to the idle server. Then the clients send them in random order for `--minutes`:
some read slowly, some disconnect, some send invalid requests. At the end the counters must account for every request
(`benchmarks.soak.books`), every complete answer must equal the idle server's bit for bit, memory and open files must be
flat, and all resources must be released. Of the patient requests that no fault hit, half must have been answered, and
each kind of question once. Memory is judged only for processes that lived five minutes; a soak of less than ten
minutes may have none, which is reported. In the last third no worker is killed, so that one can be judged. The test
prints Markdown tables; if a check fails, it prints the reason and the exit status is 1.

    python -m benchmarks.soak --minutes 30 --clients 64
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.questions import Question, first_difference, meaning
from benchmarks.soak import books
from benchmarks.soak.acts import MODEL, content_of, headers_of, pool
from benchmarks.soak.books import Findings
from benchmarks.soak.clients import Client, Outcome
from benchmarks.soak.faults import Fault, inflict
from benchmarks.soak.watch import MIN_LIFE, MUST_JUDGE, Watch
from tests.support.processes import Server, num_open_files, serve, worker_pid
from tests.support.wire import Wire, scrape

SERVE = [
    "--max-num-seqs", "24", "--kv-cache-memory", "8MiB", "--log-format", "json", "--send-timeout", "30",
    "--served-model-name", MODEL,
]  # fmt: skip
"""Arguments of the server: few slots and little cache, so that requests queue and are preempted."""
_SETTLE_WITHIN = 30.0
_BOOKS_CHECKED = 4.0
"""Seconds of idleness after which the server has checked its own counters: both processes check after two seconds (a
tick of `server.lifecycle.drain`, a heartbeat of `server.worker.loop` later), and count problems at once.
"""
_FILES_SLACK = 2
_LAST_LOG = 2000
"""Characters of the log that are shown when a server has ended."""


@dataclass(frozen=True)
class Soak:
    outcomes: Sequence[Outcome]
    faults: Sequence[Fault]
    watch: Watch
    before: Mapping[str, float]
    after: Mapping[str, float]
    found: Findings


async def ask_alone(server: Server, questions: Sequence[Question]) -> list[object]:
    """Return the answer to each question, on an idle server."""
    answers = []
    wire = await Wire.open(server.host, server.port)
    for number, question in enumerate(questions):
        headers = {**headers_of(question), "X-Request-Id": f"{books.QUIET}{number}"}
        answer = await wire.ask(question.method, question.path, content_of(question), headers)
        if answer.head.status != 200:
            raise RuntimeError(f"{question.kind}: {answer.head.status} {answer.body[:300]!r}")
        answers.append(meaning(question, answer.body))
    wire.close()
    return answers


async def settled(server: Server, log: Path) -> dict[str, float]:
    """Return all values of /metrics after all resources are released, counters and log are stable, and the server has
    checked its own counters; or the last values after a time limit.
    """
    give_up, last, num_bytes = time.monotonic() + _SETTLE_WITHIN, dict[str, float](), 0
    while True:
        values = await scrape(server.host, server.port)
        counted = {name: value for name, value in values.items() if books.is_logged(name)}
        is_still = counted == last and num_bytes == log.stat().st_size
        if (is_still and not any(values[name] for name in books.HELD)) or time.monotonic() > give_up:
            await asyncio.sleep(_BOOKS_CHECKED)
            return await scrape(server.host, server.port)
        last, num_bytes = counted, log.stat().st_size
        await asyncio.sleep(0.5)


async def soak(
    server: Server,
    log: Path,
    questions: Sequence[Question],
    *,
    seconds: float,
    clients: int,
    seed: int,
    kill_every: int,
) -> Soak:
    """Run everything, on a server that logs JSON into `log`."""
    found = Findings()
    expected = await ask_alone(server, questions)
    before, files = await settled(server, log), _open_files(server)
    outcomes: list[Outcome] = []
    faults: list[Fault] = []
    watch = Watch(server)
    watching = asyncio.create_task(watch.run())
    until = time.monotonic() + seconds
    breaking = asyncio.create_task(inflict(server, seed, seconds, kill_every, faults))
    everybody = [Client(server, questions, expected, outcomes.append) for _ in range(clients)]
    acting = asyncio.gather(breaking, *(client.run(seed, number, until) for number, client in enumerate(everybody)))
    await _while_it_lives(server, log, acting)
    watching.cancel()
    after = await settled(server, log)
    lines = books.read_log(log)
    books.check_idle(after, found)
    books.check_outcomes(outcomes, faults, found)
    books.check_answered(outcomes, faults, found)
    books.check_log(outcomes, lines, found)
    books.check_counters(lines, before, after, found)
    books.check_ends(outcomes, lines, faults, before, after, found)
    books.check_faults(faults, before, after, found)
    await _check_quiet_again(server, questions, expected, found)
    for growth in watch.growths():
        for problem in growth.problems:
            found.add("not flat", problem)
    for name in watch.unjudged() if seconds >= MUST_JUDGE else ():
        found.add("memory that was not judged", f"{name}: none lived {MIN_LIFE:.0f} s")
    for name, count in _open_files(server).items():
        if count > files[name] + _FILES_SLACK:
            found.add("not flat", f"open files of {name}: {files[name]} before, {count} after")
    return Soak(outcomes, faults, watch, before, after, found)


async def _while_it_lives(server: Server, log: Path, acting: Awaitable[object]) -> None:
    """Wait for `acting`. Raises RuntimeError with the log's end as soon as the server's process ends."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(server.pid)
    loop.add_reader(descriptor, ended.set)
    whichever = (asyncio.ensure_future(ended.wait()), asyncio.ensure_future(acting))
    try:
        await asyncio.wait(whichever, return_when=asyncio.FIRST_COMPLETED)
        if ended.is_set():
            raise RuntimeError(f"the server ended in the midst of its soak:\n{log.read_text()[-_LAST_LOG:]}")
        await acting
    finally:
        for each in whichever:
            each.cancel()
        await asyncio.gather(*whichever, return_exceptions=True)  # or those who act would be left in the midst of it
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _check_quiet_again(
    server: Server, questions: Sequence[Question], expected: Sequence[object], found: Findings
) -> None:
    answers = await ask_alone(server, questions)
    for question, one, other in zip(questions, expected, answers, strict=True):
        if one != other:
            found.add("answers that differ after the soak", f"{question.kind}: {first_difference(one, other)}")


def _open_files(server: Server) -> dict[str, int]:
    worker = worker_pid(server.pid)
    return {
        "the API process": num_open_files(server.pid),
        "the worker": 0 if worker is None else num_open_files(worker),
    }


def report(result: Soak, seconds: float) -> bool:
    print("| client | requests | 200 | refused | 429, 503 | failed streams | left | broken |")
    print("|---|---|---|---|---|---|---|---|")
    by_behaviour: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes:
        by_behaviour.setdefault(outcome.behaviour, []).append(outcome)
    for behaviour, mine in sorted(by_behaviour.items()):
        print(f"| {behaviour} | {_counts(mine)} |")
    print(f"| **all** | {_counts(result.outcomes)} |")
    print("\n| fault | at s | ready again after s |\n|---|---|---|")
    begun = min(outcome.began for outcome in result.outcomes)
    for fault in result.faults:
        print(f"| {fault.kind} | {fault.began - begun:.0f} | {fault.ready - fault.began:.1f} |")
    print("\n| process | lived s | MiB allocated at half its life | then | at most | open files | then |")
    print("|---|---|---|---|---|---|---|")
    for growth in result.watch.growths():
        memory = f"{growth.num_bytes / 2**20:.0f} | {growth.more_bytes / 2**20:+.1f} | {growth.most_bytes / 2**20:.0f}"
        files = f"{growth.num_files:.0f} | {growth.more_files:+.1f}"
        print(f"| {growth.name} {growth.pid} | {growth.seconds:.0f} | {memory} | {files} |")
    for name in result.watch.unjudged():
        print(f"\nNot judged: the memory of {name}; none lived {MIN_LIFE:.0f} s.")
    ends = books.engine_ends(result.before, result.after)
    submitted = books.delta("lightwell_requests_submitted_total", result.before, result.after)
    preempted = books.delta("lightwell_num_preemptions_total", result.before, result.after)
    told = ", ".join(f"{name} {count}" for name, count in sorted(ends.items()))
    print(f"\nEngine: {submitted} requests; {told}; {preempted} preemptions.", end=" ")
    print(f"{len(result.outcomes) / seconds:.0f} HTTP requests a second.")
    for kind, count in result.found.counts.items():
        print(f"\nWRONG: {kind}: {count}")
        for example in result.found.examples[kind]:
            print(f"  {example}")
    if not result.found.counts:
        print("\nNothing is wrong: clients, log and counters agree on every request.")
    return not result.found.counts


def _counts(outcomes: Sequence[Outcome]) -> str:
    ends = Counter(outcome.end for outcome in outcomes)
    whole = [outcome for outcome in outcomes if outcome.end == "whole"]
    good = sum(outcome.status == 200 and outcome.error_code is None for outcome in whole)
    failed = sum(outcome.status == 200 and outcome.error_code is not None for outcome in whole)
    later = sum(outcome.status in (429, 503) for outcome in whole)
    refused = len(whole) - good - failed - later
    return f"{len(outcomes)} | {good} | {refused} | {later} | {failed} | {ends['left']} | {ends['broken']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=60, help="mean seconds between two faults (at least 20)")
    parser.add_argument("--log", type=Path, help="where the server's log is kept; else it is thrown away")
    parser.add_argument("serve", nargs="*", help="arguments for `lightwell serve` (after --)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "log"
        with serve([*SERVE, *options.serve], log_file=log) as server:
            seconds = 60 * options.minutes
            drawn = {"clients": options.clients, "seed": options.seed, "kill_every": options.kill_every}
            result = asyncio.run(soak(server, log, pool(), seconds=seconds, **drawn))
    print(f"{options.minutes:g} minutes, {options.clients} clients, seed {options.seed}\n")
    sys.exit(0 if report(result, seconds) else 1)


if __name__ == "__main__":
    main()
