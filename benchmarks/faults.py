"""Fault table: injects typical faults into a real server under load and reports the outcome of every request.

    python -m benchmarks.faults [--only WORD ...] [--clients 8]

Each fault gets a separate server, on a copy of the default model. The fault occurs while clients send requests with
known answers. The table shows the clients' outcomes, the time without readiness, the metrics and the number of lost
requests. A request is lost if its client did not learn its result or the server's counters do not show its end. Each
row lists the differences from `FAULTS`; the exit status is 1 if there is one.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.fault_judge import Evidence, Expected, judge, metrics_text, num_lost
from benchmarks.fault_load import (
    CULPRIT,
    CUT,
    DECODE,
    ENDED,
    EVERYTHING,
    LOOK,
    PICTURES,
    PREFILL,
    REFUSED,
    Load,
    Outcome,
    error,
)
from benchmarks.fault_subject import PATIENCE, Subject, Watch, idle_metrics, start, wait_for, wait_mapped
from benchmarks.questions import Question

_RESTARTS = "lightwell_worker_restarts_total"
SETTLE_SECONDS = 1.0
"""Seconds of load before a fault and after the server is ready again."""
END_SECONDS = 20.0
"""Seconds within which a server with a grace of one second ends."""


def kill_while_loading(subject: Subject) -> None:
    """Kill the worker, then its successors: one as it imports torch, and one as it reads the weights."""
    pid = subject.kill_worker()
    for name in ("libtorch", "model.safetensors"):
        pid = subject.next_worker(pid)
        wait_mapped(pid, name)
        os.kill(pid, signal.SIGKILL)


def kill_again_and_again(subject: Subject) -> None:
    """Kill each worker as soon as it is ready, until the server gives up."""
    while subject.process.poll() is None:
        if subject.is_ready():
            with contextlib.suppress(ProcessLookupError, AssertionError):
                subject.kill_worker()
        time.sleep(0.05)


def stop_for_a_while(subject: Subject) -> None:
    """Stop the worker until it is called hung, then let it continue."""
    pid = subject.worker()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not subject.is_ready(), "the silence is noticed")
    time.sleep(SETTLE_SECONDS / 2)
    os.kill(pid, signal.SIGCONT)


def stop_for_good(subject: Subject) -> None:
    os.kill(subject.worker(), signal.SIGSTOP)


def stop_while_loading(subject: Subject) -> None:
    pid = subject.next_worker(subject.kill_worker())
    wait_mapped(pid, "libtorch")
    os.kill(pid, signal.SIGSTOP)


def remove_socket(subject: Subject) -> None:
    """Remove the socket, as a cleaner of /tmp does."""
    folders = list(subject.tmp.glob("lightwell-*"))
    assert folders, "the socket has a folder"
    for folder in folders:
        shutil.rmtree(folder)
    time.sleep(SETTLE_SECONDS)


def remove_socket_and_kill(subject: Subject) -> None:
    """Remove the socket and kill the worker: the next worker needs a socket."""
    remove_socket(subject)
    subject.kill_worker()


def overwrite_weights(subject: Subject) -> None:
    """Overwrite the weights in place, like `cp`. A running server must not be affected; a new one must reject them."""
    weights = subject.model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-(1 << 20) :] = bytes(1 << 20)
    with weights.open("r+b") as file:
        file.write(content)
    time.sleep(SETTLE_SECONDS)
    subject.kill_worker()


def truncate_weights(subject: Subject) -> None:
    os.truncate(subject.model / "model.safetensors", 4096)
    time.sleep(SETTLE_SECONDS)
    subject.kill_worker()


def remove_model(subject: Subject) -> None:
    shutil.rmtree(subject.model)
    time.sleep(SETTLE_SECONDS)
    subject.kill_worker()


def wait(subject: Subject) -> None:
    """Do nothing: the culprit's request causes the fault."""
    time.sleep(2 * SETTLE_SECONDS)


def end_beside_an_unread_answer(subject: Subject) -> None:
    """Send SIGTERM while a client reads nothing of a long answer. Raises subprocess.TimeoutExpired when the server has
    not ended within END_SECONDS.
    """
    body = json.dumps(PICTURES.body).encode()
    head = f"POST {PICTURES.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with socket.create_connection(("127.0.0.1", subject.port)) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        assert select.select([client], [], [], END_SECONDS)[0], "the answer begins"
        subject.process.terminate()
        subject.process.wait(END_SECONDS)


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    act: Callable[[Subject], object]
    """Causes the fault; returns when it is over, if it ends by itself."""
    expected: Expected
    questions: tuple[Question, ...] = EVERYTHING
    is_idle: bool = False
    """True if no client sends requests during the fault."""
    arguments: tuple[str, ...] = ()
    culprit: Question | None = None
    """The request that is sent once, in addition to the load."""
    room: int | None = None
    """Bytes that the worker may allocate after it is ready, or None for no limit."""
    is_disk_full: bool = False
    """True if the log is written to a full disk."""

    def start(self, folder: Path, port: int | None = None) -> AbstractContextManager[Subject]:
        return start(folder, self.arguments, room=self.room, is_disk_full=self.is_disk_full, port=port)


HASTY = ("--worker-timeout", "3")
KILL = Subject.kill_worker
UNAVAILABLE = frozenset({Outcome("503", "not_ready")})
LOST = error(503, "worker_lost") | UNAVAILABLE
HUNG = error(503, "worker_hung") | UNAVAILABLE
NO_MEMORY = error(503, "no_memory")
GIVING_UP = LOST | {Outcome("503", "draining"), ENDED, REFUSED}
"""Allowed outcomes when the supervisor gives up. The server closes its port; answers that have begun are never cut."""
KILLED = UNAVAILABLE | {ENDED, REFUSED, CUT, Outcome("503", "loading")}
"""Allowed outcomes when the server is killed. The next server on the port gets requests while it starts."""

UNNOTICED = Expected()
REPLACED = Expected(allowed=LOST, stays_ready=False, num_restarts=1)
GAVE_UP = Expected(allowed=GIVING_UP, stays_ready=False, exit_status=1, last_words="the worker ended 5 times")
MODEL_CHANGED = replace(GAVE_UP, last_words="model_changed")


def caused(name: str, by: str, outcomes: frozenset[Outcome], expected: Expected = UNNOTICED, **more: Any) -> Fault:
    """Return the fault that a request of `CULPRIT` causes. outcomes: the allowed ones of its client."""
    return Fault(name, wait, replace(expected, culprit=outcomes), culprit=CULPRIT[by], **more)


FAULTS = (
    Fault("worker killed, idle", KILL, REPLACED, is_idle=True),
    Fault("worker killed, all kinds of requests", KILL, REPLACED),
    Fault("worker killed while it reads prompts", KILL, REPLACED, PREFILL),
    Fault("worker killed while it writes", KILL, REPLACED, DECODE),
    Fault("worker killed while it captures", KILL, REPLACED, LOOK),
    Fault("worker killed, and twice while it loads", kill_while_loading, replace(REPLACED, num_restarts=3)),
    Fault("worker killed again and again", kill_again_and_again, GAVE_UP),
    Fault(
        "worker stopped, then continued",
        stop_for_a_while,
        replace(REPLACED, allowed=HUNG, num_restarts=0),
        arguments=HASTY,
    ),
    Fault("worker stopped for good", stop_for_good, replace(REPLACED, allowed=HUNG), arguments=HASTY),
    Fault(
        "worker killed, the next one stopped while it loads",
        stop_while_loading,
        replace(REPLACED, num_restarts=2),
        arguments=("--load-timeout", "40"),  # a worker's first message takes 21 s with a tenth of the machine
    ),
    caused("a step without end", "sticks", HUNG - UNAVAILABLE, replace(REPLACED, allowed=HUNG), arguments=HASTY),
    caused("a request makes the step raise", "raises", error(500, "engine_error")),
    caused("a request finds no memory in the step", "allocates", NO_MEMORY),
    # The load takes little once the server is warm, the look 176 MB.
    caused("a look for which no memory is left", "looks", NO_MEMORY, room=64 << 20),
    caused("the network fails for everyone", "poisons", LOST - UNAVAILABLE, REPLACED),
    Fault("socket folder removed", remove_socket, UNNOTICED),
    Fault("socket folder removed, worker killed", remove_socket_and_kill, REPLACED),
    Fault(
        "no room for the log, worker killed",
        KILL,
        replace(REPLACED, grows=("lightwell_log_lines_dropped_total",)),
        is_disk_full=True,
    ),
    Fault("weights overwritten in place, worker killed", overwrite_weights, MODEL_CHANGED),
    Fault("weights truncated, worker killed", truncate_weights, MODEL_CHANGED),
    Fault("model folder removed, worker killed", remove_model, MODEL_CHANGED),
    Fault(
        "told to end, a client reads nothing",
        end_beside_an_unread_answer,
        Expected(stays_ready=False, exit_status=0),
        is_idle=True,
        arguments=("--shutdown-grace", "1"),
    ),
    Fault(
        "API process killed",
        lambda subject: subject.process.kill(),
        Expected(allowed=KILLED, stays_ready=False, exit_status=-signal.SIGKILL),
    ),
)


@dataclass(frozen=True)
class Row:
    cells: tuple[str, ...]
    """The clients' outcomes, the time without readiness, the metrics, and the number of lost requests."""
    problems: tuple[str, ...]


def run(fault: Fault, clients: int) -> Row:
    """Break one server. Raises AssertionError when the fault does not end."""
    with TemporaryDirectory(prefix="faults-") as folder, fault.start(Path(folder)) as subject:
        load = Load(subject.url, 0 if fault.is_idle else clients, fault.questions)
        load.learn()
        before, culprit = subject.metrics(), None
        with Watch(subject, before) as watch:
            load.start()
            time.sleep(SETTLE_SECONDS)
            began = time.monotonic()
            if fault.culprit is not None:
                culprit = load.ask_apart(fault.culprit)
            fault.act(subject)
            ready = settle(fault, subject, watch, before[_RESTARTS], began)
            time.sleep(SETTLE_SECONDS)
            load.stop()
        lives = fault.expected.exit_status is None
        problems = load.ask_once_more() if lives else []
        evidence = Evidence(
            outcomes=load.outcomes,
            before=before,
            after=idle_metrics(subject, before) if lives else watch.metrics,
            least_up=watch.least_up,
            was_unready=watch.last_unready > 0,
            culprit=culprit,
            exit_status=subject.process.poll(),
            last_line=subject.last_line(),
        )
        cells = (told(evidence), ready, metrics_text(evidence), str(num_lost(fault.expected, evidence)))
        return Row(cells, (*problems, *judge(fault.expected, evidence)))


def told(seen: Evidence) -> str:
    """Return the clients' outcomes, the most frequent first."""
    counts = sorted(seen.outcomes.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{count} x {outcome}" for outcome, count in counts if count) or "nothing was asked"
    return parts if seen.culprit is None else f"{parts}; the request itself: {seen.culprit}"


def settle(fault: Fault, subject: Subject, watch: Watch, restarts: float, began: float) -> str:
    """Wait for the expected end of a fault and return its duration, as text.

    restarts: the counter of restarts before the fault.
    """
    expected = fault.expected
    if expected.exit_status is None:
        restarts += expected.num_restarts
        wait_for(lambda: subject.metrics()[_RESTARTS] >= restarts, f"{expected.num_restarts} workers are started again")
        wait_for(subject.is_ready, "the server is ready again")
        time.sleep(SETTLE_SECONDS)
        return f"{watch.last_unready - began:.2f} s" if watch.last_unready else "always ready"
    status = subject.process.wait(PATIENCE)
    ended = time.monotonic() - began
    if status < 0:  # killed: its resources must be released without cleanup, and a new server must start
        wait_for(lambda: not list(subject.tmp.glob("lightwell-*")), "the socket's folder is gone")
        began = time.monotonic()
        with fault.start(subject.tmp.parent / "again", subject.port):
            return f"another server on the port: {time.monotonic() - began:.1f} s"
    return f"exit {status} after {ended:.1f} s: `{subject.last_line()[:100]}`"


def main() -> int:
    parser = argparse.ArgumentParser(description="Break a server in the ways operators fear; print what came of it.")
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="faults whose name holds one of these")
    parser.add_argument("--clients", type=int, default=8, help="clients that ask without pause")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if any(word in fault.name for word in options.only)]
    if not chosen:
        parser.error(f"--only {options.only} names no fault; there are: {'; '.join(fault.name for fault in FAULTS)}")
    return 0 if print_table(chosen, options.clients) else 1


def print_table(faults: Sequence[Fault], clients: int) -> bool:
    """Print the rows with their differences from the expected behaviour. Return True if there are none."""
    print("| fault | what clients saw | not ready for | metrics | requests lost | not as promised |")
    print("|---|---|---|---|---|---|", flush=True)
    is_as_promised = True
    for fault in faults:
        row = row_of(fault, clients)
        is_as_promised &= not row.problems
        cells = (fault.name, *row.cells, "; ".join(row.problems) or "nothing")
        print(f"| {' | '.join(cells)} |", flush=True)
    return is_as_promised


def row_of(fault: Fault, clients: int) -> Row:
    """Return the row of `run`; if the fault does not end, that is the row's problem."""
    try:
        return run(fault, clients)
    except (AssertionError, httpx.TransportError, subprocess.TimeoutExpired) as unended:
        return Row(("",) * 4, (repr(unended),))


if __name__ == "__main__":
    sys.exit(main())
