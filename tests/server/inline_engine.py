"""Real engines in this process behind the interface that the routes use: `InlineEngine` runs a request to its end when
it is submitted, `BatchedEngine` runs the requests of one time together.
"""

import asyncio
import threading
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from tokenizers import Tokenizer

from lightwell.model.kernels.choice import ArithmeticChoice, KernelConfig
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import error_of
from lightwell.server.engine.messages.outputs import RequestOutput
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.http.errors import BadRequest
from tests.model.tokenization import tokenizer_folders
from tests.server.engine.driving import build, load
from tests.server.fake_client import INFO, FakeEngine, FakeHandle, Submitted
from tests.server.serving import Site, site
from tests.tiny import make_variant

PATIENCE = 300.0
"""Seconds to wait for a question about the weights, which another thread answers."""


@dataclass
class InlineEngine(FakeEngine):
    """The fake client with a network behind it."""

    folder: Path = field(kw_only=True)
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    options: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Fields of the engine's config, e.g. `max_num_batched_tokens`."""
    arithmetic: ArithmeticChoice = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        network = load(self.folder, self.dtype, kernels=KernelConfig(arithmetic=self.arithmetic))
        self.model_config = network.config
        self.engine = build(network, folder=self.folder, **self.options)
        self.engine_info = replace(self.engine_info, dtype=str(self.dtype).removeprefix("torch."))
        self._answered = threading.Event()
        self.engine.call_when_ready(self._answered.set)

    async def submit(self, request: EngineRequest, request_context: RequestContext) -> FakeHandle:
        if self.refuse is not None:
            raise self.refuse
        request = self._of(request, request_context)
        outputs = self._run(request)
        failure = error_of(outputs[-1])
        handle = FakeHandle(outputs if failure is None else outputs[:-1], failure, None, request_context)
        self.submitted.append(Submitted.of(request, request_context, handle))
        return handle

    def _of(self, request: EngineRequest, request_context: RequestContext) -> EngineRequest:
        """Return the request with the fields that a client of the engine adds."""
        return structs.replace(
            request,
            uid=len(self.submitted),
            arrival_time=time.monotonic(),
            deadline=request_context.deadline,
            cache_salt=request_context.cache_salt,
        )

    def _add(self, request: EngineRequest) -> None:
        try:
            self.engine.add_request(request)
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def _run(self, request: EngineRequest) -> list[RequestOutput]:
        self._answered.clear()
        self._add(request)
        outputs: list[RequestOutput] = []
        while not (outputs and outputs[-1].finish_reason):
            if not self.engine.has_work:
                assert self._answered.wait(PATIENCE), f"no answer to {request.task}"
            outputs += self.engine.step().outputs
        assert outputs[-1].finish_reason not in ("error", "memory"), outputs[-1].error
        return outputs


class RunningHandle(FakeHandle):
    """A request of a `BatchedEngine`: its reader steps the engine while it waits."""

    def __init__(self, engine: "BatchedEngine", uid: int) -> None:
        super().__init__((), None, None, RequestContext())
        self._engine, self._uid = engine, uid
        self.is_finished = False

    def push(self, output: RequestOutput) -> None:
        self.is_finished = output.finish_reason is not None
        self._failure = error_of(output)
        if self._failure is None:
            self._outputs.append(output)

    async def _wait(self) -> None:
        while not (self._outputs or self.is_finished or self.is_closed):
            await self._engine.advance()

    def close(self, *, is_complete: bool = False) -> None:
        super().close()
        if not self.is_finished:
            self.is_finished = True
            self._engine.engine.abort(self._uid)


@dataclass
class BatchedEngine(InlineEngine):
    """An engine that runs its requests together, as a worker does."""

    running: dict[int, RunningHandle] = field(default_factory=dict, kw_only=True)
    most_running: int = field(default=0, kw_only=True)
    """The largest number of requests that ran at one time."""

    async def submit(self, request: EngineRequest, request_context: RequestContext) -> FakeHandle:
        request = self._of(request, request_context)
        self._add(request)
        handle = self.running[request.uid] = RunningHandle(self, request.uid)
        self.submitted.append(Submitted.of(request, request_context, handle))
        self.most_running = max(self.most_running, len(self.running))
        return handle

    async def advance(self) -> None:
        """Run one step, or wait a moment for a question that another thread answers; let other readers run."""
        if not self.engine.has_work:
            await asyncio.sleep(0.001)
            return
        for output in self.engine.step().outputs:
            handle = self.running.pop(output.uid) if output.finish_reason else self.running[output.uid]
            handle.push(output)
        await asyncio.sleep(0)


def engine_with(tokenizer: Tokenizer, folder: Path, **config: Any) -> InlineEngine:
    """Return an engine of a small Llama with this tokenizer, these fields of its config and a context of 1,024 tokens.

    The folder receives the checkpoint.
    """
    size = tokenizer.get_vocab_size()
    make_variant("llama-gqa", folder, vocab_size=size, max_position_embeddings=1024)
    tokenizer_folders.write(folder, tokenizer, tokenizer_config=config)
    return InlineEngine(folder=folder, engine_info=replace(INFO, max_model_len=1024))


def site_of(engine: InlineEngine, template: str) -> AbstractAsyncContextManager[Site]:
    """Return a site of an engine and a chat template, with the tokenizer and the context of the engine."""
    length = engine.engine_info.max_model_len
    return site(engine.folder, engine, template=template, config=engine.model_config, max_model_len=length)
