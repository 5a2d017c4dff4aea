"""Faults during the soak: the worker is killed, or stopped for a moment, at random times.

Kills are spaced so that the supervisor continues to restart the worker (`server.lifecycle.supervisor` gives up after
five ends within a minute).
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.soak.clients import Outcome
from benchmarks.soak.watch import MIN_LIFE, MUST_JUDGE
from tests.support.processes import Server, worker_pid
from tests.support.wire import Wire

SETTLING = 1.0
"""Seconds around a fault in which its failures are still its own."""
LEAST_SPACING = 20.0
"""Seconds from the beginning of one fault to the next, at least, and from when it is healed: at most three in a
minute.
"""
SPARED = 1 / 3
"""The last part of a soak, in which no worker is killed: one must live long for its memory to be judged."""
_STARTING = 60.0
"""Seconds that a killed worker's successor may take before its life counts."""
_POLL = 0.05
_READY_WITHIN = 120.0


@dataclass
class Fault:
    """One fault. Times are on CLOCK_MONOTONIC."""

    kind: Literal["kill", "stop"]
    began: float
    ready: float
    """Time at which /health/ready answered 200 again (kill), or the worker was continued (stop)."""
    is_healed: bool = True

    def may_hit(self, outcome: Outcome) -> bool:
        """Return whether this fault can have caused the request's outcome, by their times."""
        return outcome.ended >= self.began - SETTLING and outcome.began <= self.ready + SETTLING


def last_kill(seconds: float) -> float:
    """Return the second after which no worker is killed, in a soak of `seconds`. In a long soak the last worker lives
    long enough to judge its memory.
    """
    return seconds - max(SPARED * seconds, MIN_LIFE + _STARTING if seconds >= MUST_JUDGE else 0)


def fault_times(seed: int, seconds: float, mean_spacing: float) -> Iterator[tuple[float, Literal["kill", "stop"]]]:
    """Return seconds from the beginning at which a fault is due, and its kind; the first is a kill, soon."""
    draw = random.Random(f"faults {seed}")
    moment, kind = min(LEAST_SPACING, seconds / 3), "kill"
    while moment < seconds - 1:
        yield moment, ("kill" if kind == "kill" and moment < last_kill(seconds) else "stop")
        moment += LEAST_SPACING + draw.expovariate(1 / max(1.0, mean_spacing - LEAST_SPACING))
        kind = draw.choice(("kill", "kill", "stop"))


def put_off(
    moment: float, kind: Literal["kill", "stop"], seconds: float, healed: float
) -> tuple[float, Literal["kill", "stop"]]:
    """Return a planned fault moved after one that was healed at `healed`: late enough, and no kill where none may
    come any more.
    """
    moment = max(moment, healed + LEAST_SPACING)
    return moment, (kind if moment < last_kill(seconds) else "stop")


async def inflict(server: Server, seed: int, seconds: float, mean_spacing: float, faults: list[Fault]) -> None:
    """Inject every fault of the plan and add each to `faults` after the recovery; return after the last.

    If workers start slowly, for example under other load, faults are delayed. Otherwise the supervisor would give up,
    because the last workers together were ready for less than a minute (`server.lifecycle.supervisor`).
    """
    draw, begun = random.Random(f"stops {seed}"), time.monotonic()
    for planned, plan in fault_times(seed, seconds, mean_spacing):
        moment, kind = put_off(planned, plan, seconds, faults[-1].ready - begun) if faults else (planned, plan)
        if moment >= seconds - 1:
            return
        await asyncio.sleep(begun + moment - time.monotonic())
        pid = worker_pid(server.pid)
        if pid is None:  # no worker yet after the last fault; that fault reports the missing recovery
            continue
        fault = Fault(kind, time.monotonic(), float("inf"))
        faults.append(fault)
        if kind == "stop":
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(draw.uniform(0.3, 3))
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL)
            fault.is_healed = await _is_ready_again(server)
        fault.ready = time.monotonic()


async def _is_ready_again(server: Server) -> bool:
    """Wait until the server has noticed, and is ready again; return False when it is not in time."""
    give_up, was_unready = time.monotonic() + _READY_WITHIN, False
    while time.monotonic() < give_up:
        wire = await Wire.open(server.host, server.port)
        status = (await wire.ask("GET", "/health/ready")).head.status
        wire.close()
        was_unready |= status == 503
        if was_unready and status == 200:
            return True
        await asyncio.sleep(_POLL)
    return False
