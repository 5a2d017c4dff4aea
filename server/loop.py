"""The worker's main loop: take what came, run one engine step, send one message. Then again.

A step that raises ends the worker loudly: what the engine holds can no longer be trusted, and the API process fails
the requests and starts another worker. Knows nothing of HTTP, and of the engine only its few calls.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from litserve.loops import LitLoop

from server import messages
from server.engine.outputs import EngineInfo, EngineStats, RequestOutput, StepOutput
from server.engine.request import EngineRequest
from server.link import WorkerLink

logger = logging.getLogger(__name__)

IDLE_INTERVAL = 0.5
"""Seconds between two heartbeats of an idle worker."""
_BEAT = messages.encode(messages.Heartbeat())


class EngineLike(Protocol):
    """What the loop needs of an engine."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def has_work(self) -> bool: ...
    def call_when_ready(self, wake: Callable[[], None]) -> Any: ...
    def add_request(self, request: EngineRequest) -> Any: ...
    def abort(self, uid: int) -> Any: ...
    def step(self) -> StepOutput: ...
    def stats(self) -> EngineStats: ...


class EngineLoop(LitLoop):  # type: ignore[misc]  # litserve ships no types
    """LitServe's entry into the loop; it ends with the process."""

    def __call__(self, lit_api: Any, device: str, worker_id: int, *unused: object) -> None:
        try:
            run_engine(lit_api.engine, lit_api.link)
        except ConnectionError:
            lit_api.leave()  # the API process is gone, and with it everyone who waits
        except BaseException:
            logger.exception("worker %d ends: its engine failed", worker_id)
            logging.shutdown()
            os._exit(1)


def run_engine(engine: EngineLike, link: WorkerLink) -> None:
    """Until the link ends (ConnectionError) or the engine raises."""
    engine.call_when_ready(link.wake)  # what is answered beside the steps must not wait for one
    while True:
        taken = _take_messages(engine, link, 0.0 if engine.has_work else IDLE_INTERVAL)
        if engine.has_work:
            step, stepped = engine.step(), True
        elif taken.is_any:  # an abort freed something: the gauges must not wait for the next request
            step, stepped = StepOutput(outputs=(), stats=engine.stats()), False
        else:
            link.send(_BEAT)
            continue
        step = replace(step, outputs=(*taken.failures, *step.outputs))
        message, buffers = messages.step_message(step, taken.refusals, stepped=stepped)
        link.send(messages.encode(message), buffers)


@dataclass(slots=True)
class _Taken:
    """What became of the messages that came between two steps."""

    is_any: bool
    refusals: list[messages.Refusal] = field(default_factory=list)
    failures: list[RequestOutput] = field(default_factory=list)
    """Of requests that the engine could not even begin."""


def _take_messages(engine: EngineLike, link: WorkerLink, timeout: float) -> _Taken:
    """Give the engine all that has come. What it fails to take in must not cost the others their worker."""
    frames = link.poll(timeout)
    taken = _Taken(bool(frames))
    for frame in frames:
        message = messages.decode_to_worker(frame.header)
        if isinstance(message, messages.Abort):
            engine.abort(message.uid)
            continue
        try:
            engine.add_request(messages.engine_request(message, frame.buffers))
        except ValueError as error:
            taken.refusals.append(messages.Refusal(message.uid, str(error)))
        except Exception as error:
            logger.exception("request %d could not be begun", message.uid)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            taken.failures.append(RequestOutput(uid=message.uid, finish_reason="error", error=reason))
    return taken
