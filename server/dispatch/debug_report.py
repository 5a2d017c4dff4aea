"""Debug reports: requests in flight, admission, and the state of each worker.

A report contains names, numbers and ids; no tokens, so no prompts.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightwell.server.dispatch.admission import Admission
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.dispatch.worker_state import WorkerState
from lightwell.server.ipc import messages
from lightwell.server.ipc.stack_dumps import read_stacks, stacks_file

_PATIENCE = 1.0
"""Seconds that a worker has to answer between two of its steps; after that its stacks are read instead."""


class WorkerQuestions:
    """Asks workers for their state. `send` hands a message to a worker."""

    def __init__(self, send: Callable[[WorkerState, messages.ToWorker], None]) -> None:
        self._send = send
        self._number = 0
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, workers: Sequence[WorkerState], socket_path: str) -> list[dict[str, Any]]:
        """Return the state of each worker: its own answer, or the facts that are visible from outside."""
        return list(await asyncio.gather(*(self._describe(worker, socket_path) for worker in workers)))

    def take(self, answer: messages.Described) -> None:
        """Take a worker's answer; one that comes too late does no harm."""
        future = self._open.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer.state)

    async def _describe(self, worker: WorkerState, socket_path: str) -> dict[str, Any]:
        seen: dict[str, Any] = {
            "worker": worker.worker_id,
            "pid": worker.pid,
            "ready": worker.is_ready,
            "reason": "ready" if worker.is_ready else worker.reason(),
            "silent_for": round(worker.silent_for, 3),
            "stalled_for": round(worker.stalled_for, 3),
        }
        if worker.protocol is None or worker.pid is None:
            return seen
        self._number += 1
        number, pid = self._number, worker.pid
        self._open[number] = answer = asyncio.get_running_loop().create_future()
        self._send(worker, messages.Describe(number))
        try:
            return seen | {"engine": await asyncio.wait_for(answer, _PATIENCE)}
        except TimeoutError:
            if worker.pid != pid:  # it ended meanwhile; another process may have its number
                return seen | {"engine": None}
            stacks = await read_stacks(pid, stacks_file(socket_path, worker.worker_id))
            return seen | {"engine": None, "process_state": _process_state(pid), "stacks": stacks}
        finally:
            self._open.pop(number, None)


def request_state(worker_id: int, handle: RequestHandle) -> dict[str, Any]:
    """Return one request in flight, as this process sees it."""
    record = handle.request_context.record
    state: dict[str, Any] = {"uid": handle.uid, "worker": worker_id, "tokens": handle.cost.num_tokens}
    state["capture_bytes"] = handle.cost.capture_bytes
    if record is not None:
        state |= {"request_id": record.request_id, "path": record.path, "key": record.key}
        state["age"] = round(time.monotonic() - record.started, 3)
    return state


def admission_state(admission: Admission) -> dict[str, dict[str, Any]]:
    """Return the used amount and the limit of each budget; None is no limit yet."""
    budgets = {
        "requests": admission.requests,
        "tokens": admission.tokens,
        "blocks": admission.blocks,
        "capture_bytes": admission.capture,
    }
    return {
        name: {"used": budget.used, "limit": budget.limit if math.isfinite(budget.limit) else None}
        for name, budget in budgets.items()
    }


def _process_state(pid: int) -> str | None:
    """Return the process state in the kernel's words: "S (sleeping)", "T (stopped)"."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), None)
