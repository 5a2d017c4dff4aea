"""A worker that a test plays in its own process, over the real socket to the engine client."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace

from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats, RequestOutput, StepOutput
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.ipc import messages
from lightwell.server.ipc.link import WorkerLink
from lightwell.server.ipc.messages import Hello, Ready, RequestRefused, ToWorker

PATIENCE = 300.0
"""Seconds after which a message or a condition is taken to never come."""
INFO = EngineInfo(max_model_len=128, num_blocks=8, block_size=16, dtype="float32", device="cpu")


def generate(max_tokens: int = 4) -> GenerateTask:
    return GenerateTask(sampling=SamplingParams(max_tokens=max_tokens, seed=0))


ONE = EngineRequest(prompt_token_ids=(1,), task=generate())
"""A request of one token, for several."""


class PlayedWorker:
    """A worker that sends the messages that the test chooses."""

    def __init__(self, client: EngineClient, worker_id: int = 0) -> None:
        self.client = client
        self.worker_id = worker_id
        self.link = WorkerLink.connect(client.socket.path)
        self.inbox: list[ToWorker] = []
        self.say(Hello(worker_id, os.getpid()))

    def say(self, message: messages.FromWorker) -> None:
        self.link.send(*messages.encode(message))

    async def become_ready(self) -> None:
        self.say(Ready(INFO))
        await until(lambda: self.client.workers[self.worker_id].is_ready)

    def step(
        self, *outputs: RequestOutput, refusals: tuple[RequestRefused, ...] = (), stepped: bool = True, **stats: int
    ) -> None:
        step = StepOutput(others=outputs, stats=replace(EngineStats(), **stats))
        self.say(messages.step_message(step, refusals, stepped=stepped))

    async def receive(self) -> ToWorker:
        end = time.monotonic() + PATIENCE
        while not self.inbox:
            assert time.monotonic() < end, "no whole message came from the client"
            frames = await asyncio.to_thread(self.link.poll, 1.0)
            self.inbox += [messages.decode_to_worker(frame.header, frame.buffers) for frame in frames]
        return self.inbox.pop(0)


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {PATIENCE} s"
        await asyncio.sleep(0.002)


async def outputs_of(handle: RequestHandle) -> list[RequestOutput]:
    return [output async for output in handle]
