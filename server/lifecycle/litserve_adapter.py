"""Worker processes of LitServe, which run a plain object. No other file imports LitServe.

Two parts of LitServe are used:
- device assignment: LitServe gives each worker its device, from an accelerator, its cards and a number of workers;
- worker processes: `inference_worker` calls `LitAPI.setup` with that device, and then the `LitLoop`.

Other parts are not used, for these reasons (LitServe 0.2.19, two cores, 32 streams of 400 tokens, steps of 2 ms):
- Queues: a manager process carries one message per token: 5,300 to 5,900 tokens/s, and 132 to 150 us of CPU time per
  token. One message per step over a Unix socket (`server.ipc.link`) gives 13,900 to 14,400 tokens/s for 16 us.
- Admission: the queue has no bound, and all workers share it. `server.dispatch` refuses requests that do not fit, sends
  each to one worker, and frees the place of a client that leaves within 9 ms.
- Start of a process: only when its job is known. `server.lifecycle.worker_process` starts the first one earlier.
- Restart: workers are polled every 2 s, and requests of a killed worker hang. `server.lifecycle.supervisor` waits for
  the processes: these requests fail after 5 to 8 ms, and a worker with a small model is ready again after 0.4 s.
- Signals: after SIGTERM the API, worker and manager processes remain. `server.lifecycle.drain` leaves no process.
- Readiness: the port opens only after setup, and /health answers 200 for a killed worker until the next poll.
- Routes: endpoints have no tags and no media types, and /health needs the same key. `server.dialects` has its own.

litserve is pinned, and tests/server/lifecycle/test_litserve_adapter.py tests the parts that are used.
"""

import os
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

import litserve as ls
from litserve.loops import LitLoop, inference_worker

from lightwell.server.lifecycle import worker_process


class Worker(Protocol):
    """The code that runs in a worker process. It is pickled at each start, as it is at that time."""

    def setup(self, worker_id: int, device: str) -> None:
        """Prepare for a device, such as "cpu" or "cuda:1". It must not raise: LitServe would log the exception and end
        the process as if it had succeeded.
        """

    def run(self, worker_id: int) -> None:
        """Run, once set up. The process ends when this returns."""


class WorkerLauncher(ls.LitServer):  # type: ignore[misc]  # litserve ships no types
    """Starts worker processes: one on each card, or `num_workers` on the CPU."""

    def __init__(
        self, worker: Worker, *, accelerator: Literal["cpu", "cuda"], cards: Sequence[int] = (), num_workers: int = 1
    ) -> None:
        super().__init__(
            _WorkerApi(worker),
            accelerator=accelerator,
            devices=list(cards) or 1,  # a CPU is one device of several workers
            workers_per_device=1 if cards else num_workers,
            timeout=False,
        )

    def launch(self, worker_id: int) -> BaseProcess:
        """Start worker `worker_id`, counted from 0, as a process. Raises OSError without memory, files or processes."""
        device = self._inference_workers_config_for_api(self.lit_api.api_path)[worker_id]
        device = device if isinstance(device, str) else device[0]
        # No queue, no transport and no table of states: the worker has its own link.
        arguments = self.lit_api, device, worker_id, None, None, dict[str, str](), self._callback_runner, False
        return worker_process.take().run(inference_worker, *arguments)


class _WorkerApi(ls.LitAPI):  # type: ignore[misc]  # litserve ships no types
    """Brings the worker into its process, where LitServe calls `setup`."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(api_path="/engine", stream=True, loop=_WorkerLoop())
        self.worker = worker

    def setup(self, device: str) -> None:
        self.worker.setup(int(os.environ["LITSERVE_WORKER_ID"]), device)


class _WorkerLoop(LitLoop):  # type: ignore[misc]  # litserve ships no types
    def __call__(self, lit_api: Any, device: str, worker_id: int, *unused: object) -> None:
        lit_api.worker.run(worker_id)
