"""The only file that imports LitServe: it starts worker processes, in each of which a plain object runs.

What is used of LitServe:
- device assignment: from an accelerator, its cards and a number of workers LitServe says where each worker computes;
- worker processes: `inference_worker` runs in each. It calls `LitAPI.setup` with that device, and then the `LitLoop`.

What is not used, and why. Measured with LitServe 0.2.19 on two cores: 32 streams of 400 tokens each, an engine that
takes 2 ms per step and could give 15,000 tokens/s.
- Its queues carry one message per token through a manager process: 5,300 to 5,900 tokens/s, and 132 to 150 us of CPU
  time per token. One message per step over a Unix socket (`server.ipc.link`) gives 13,900 to 14,400 tokens/s for 16 us.
  A request of one token takes 0.67 to 0.70 ms there and 0.36 ms here (engine step: 0.1 ms). The ZeroMQ queues
  (`fast_queue`) are never made: the argument for them goes to a field of another name.
- Its admission: the queue has no bound, and callbacks cannot refuse a request. All workers share the queue, so that a
  cancellation would reach any of them. `server.dispatch` refuses what does not fit, sends each request to one worker,
  and frees the place of a client that leaves within 9 ms.
- Its restart of workers polls every 2 s. With workers killed (SIGKILL) the requests in flight hang for ever, and so
  does the first request after the kill of an idle worker. `server.lifecycle.supervisor` waits for the processes
  themselves: requests in flight fail after 5 to 8 ms, and a worker with a trivial model is ready again after 0.4 s.
- Its signals: SIGTERM ends the main process, while the API, worker and manager processes serve on as orphans.
  `server.lifecycle.drain` lets requests finish and leaves no process.
- Its readiness: the port opens only after setup, and /health answers 200 for a worker that was killed, until the poll.
- Its FastAPI application and routes: a spec's endpoints take neither tags nor media types, and what guards them guards
  /health too. `server.routes` has its own.

- Its start of a process: only when its job is known. `server.lifecycle.worker_process` starts the first one earlier.

It knows neither routes nor the engine: it is handed a `Worker`. litserve is pinned, and
tests/server/lifecycle/test_litserve_adapter.py holds what is relied on.
"""

import os
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

import litserve as ls
from litserve.loops import LitLoop, inference_worker

from server.lifecycle import worker_process


class Worker(Protocol):
    """The code that runs in a worker process. It is pickled at each start, as it is at that time."""

    def setup(self, worker_id: int, device: str) -> None:
        """Get ready to run on a device, such as "cpu" or "cuda:1". It must not raise: LitServe would log the exception
        and end the process as if all were well.
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
        """Start worker `worker_id`, which counts from 0, in a process of its own. Raises OSError if the machine has no
        memory, files or processes left for it.
        """
        device = self._inference_workers_config_for_api(self.lit_api.api_path)[worker_id]
        device = device if isinstance(device, str) else device[0]
        # No queue, no transport and no table of states: the worker has its own link.
        arguments = self.lit_api, device, worker_id, None, None, {}, self._callback_runner, False
        return worker_process.take().run(inference_worker, *arguments)


class _WorkerApi(ls.LitAPI):  # type: ignore[misc]  # litserve ships no types
    """Carries the worker into its process, where LitServe calls `setup`."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(api_path="/engine", stream=True, loop=_WorkerLoop())
        self.worker = worker

    def setup(self, device: str) -> None:
        self.worker.setup(int(os.environ["LITSERVE_WORKER_ID"]), device)


class _WorkerLoop(LitLoop):  # type: ignore[misc]  # litserve ships no types
    """Runs the worker once it is set up."""

    def __call__(self, lit_api: Any, device: str, worker_id: int, *unused: object) -> None:
        lit_api.worker.run(worker_id)
