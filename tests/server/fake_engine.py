"""A real engine without a network: tokens by a rule, tensors of the requested size, steps of any duration.

It runs in the server's real worker process. These environment variables set how it behaves: FAKE_STEP_SECONDS,
FAKE_LOAD_HANGS (a file: the worker that finds it removes it, and its load never ends), FAKE_READY_ERROR (just before
it is ready).
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.messages.outputs import Array, EngineInfo, EngineStats, RequestOutput, StepOutput, Timing
from lightwell.server.engine.messages.request import EmbedTask, EngineRequest, GenerateTask

CRASH_TOKEN = 66
"""First token of a prompt that makes the step raise."""
REFUSED_TOKEN = 67
FAILING_TOKEN = 68
"""First token of a prompt that ends its own request with an error."""
BROKEN_TOKEN = 70
"""First token of a prompt that is an error of the engine's own, before any step."""
MISCOUNTING_TOKEN = 71
"""First token of a prompt that makes the counters contradict each other from then on."""
STUCK_TOKEN = 69
"""First token of a prompt that makes the step sleep for an hour."""


def expected_tokens(prompt: tuple[int, ...], count: int) -> list[int]:
    return [(sum(prompt) + 7 * i) % 200 for i in range(count)]


class FakeEngine:
    def __init__(self, config: EngineConfig) -> None:
        self._max_num_seqs = config.max_num_seqs
        self._step_seconds = float(os.environ.get("FAKE_STEP_SECONDS", "0.002"))
        self._requests: dict[int, EngineRequest] = {}
        self._counts: dict[int, int] = {}
        self._is_miscounting = False
        self._steps = self._prompt_tokens = self._generated = 0

    @classmethod
    def from_folder(cls, config: EngineConfig, progress: Callable[[int, int], None]) -> "FakeEngine":
        hangs = Path(os.environ.get("FAKE_LOAD_HANGS", "no-such-file"))
        is_stuck = hangs.exists()
        hangs.unlink(missing_ok=True)  # before the progress report, at which a test kills this worker
        progress(1, 2)
        if is_stuck:
            time.sleep(3600)
        progress(2, 2)
        return cls(config)

    @property
    def info(self) -> EngineInfo:
        if "FAKE_READY_ERROR" in os.environ:  # it is read just before the worker is ready
            raise RuntimeError(os.environ["FAKE_READY_ERROR"])
        return EngineInfo(max_model_len=4096, num_blocks=1 << 20, block_size=32, dtype="float32", device="cpu")

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def _nothing(self, argument: object = None) -> None:
        """Do nothing: short steps answer everything here, without grammars and within memory."""

    call_when_ready = prepare_grammars = send_early = call_when_short = watch_aborts = watch_requests = _nothing

    def add_request(self, request: EngineRequest) -> None:
        if request.prompt_token_ids[0] == REFUSED_TOKEN:
            raise ValueError("the fake engine refuses prompts that begin with 67")
        if request.prompt_token_ids[0] == BROKEN_TOKEN:
            raise KeyError("the fake engine stumbles over prompts that begin with 70")
        self._is_miscounting = self._is_miscounting or request.prompt_token_ids[0] == MISCOUNTING_TOKEN
        self._requests[request.uid] = request
        self._counts[request.uid] = 0

    def abort(self, uid: int) -> None:
        self._requests.pop(uid, None)

    def state(self) -> dict[str, Any]:
        return {"running": [{"uid": uid, "request_id": each.request_id} for uid, each in self._requests.items()]}

    def check_integrity(self) -> None:
        if self._is_miscounting:
            raise AssertionError("lost: {3: 1},\nas the fake engine was told to say")

    def step(self) -> StepOutput:
        running = list(self._requests.values())[: self._max_num_seqs]
        first_tokens = {request.prompt_token_ids[0] for request in running}
        if CRASH_TOKEN in first_tokens:
            raise RuntimeError("the fake engine crashes on prompts that begin with 66")
        time.sleep(3600 if STUCK_TOKEN in first_tokens else self._step_seconds)
        self._steps += 1
        outputs = tuple(self._advance(request) for request in running)
        for output in outputs:
            if output.finish_reason is not None:
                del self._requests[output.uid]
        return StepOutput(others=outputs, stats=self.stats())

    def _advance(self, request: EngineRequest) -> RequestOutput:
        uid, now = request.uid, time.monotonic()
        timing = Timing(arrival=request.arrival_time, scheduled=now, first_token=now, finished=now)
        if request.deadline is not None and now > request.deadline:
            return RequestOutput(uid=uid, finish_reason="deadline", timing=timing)
        if request.prompt_token_ids[0] == FAILING_TOKEN:
            return RequestOutput(uid=uid, finish_reason="error", error="a fake failure", timing=timing)
        task = request.task
        if isinstance(task, EmbedTask):
            array = Array("float32", (4,), bytes(16))
            return RequestOutput(uid=uid, tensors={"embedding": array}, finish_reason="done", timing=timing)
        assert isinstance(task, GenerateTask), f"this fake does not answer a {type(task).__name__}"
        return self._next_token(request, task, timing)

    def _next_token(self, request: EngineRequest, task: GenerateTask, timing: Timing) -> RequestOutput:
        count = self._counts[request.uid]
        if count == 0:
            self._prompt_tokens += len(request.prompt_token_ids)
        self._counts[request.uid] = count + 1
        self._generated += 1
        token = expected_tokens(request.prompt_token_ids, count + 1)[-1]
        is_last = count + 1 == task.sampling.max_tokens
        return RequestOutput(
            uid=request.uid,
            token_id=token,
            finish_reason="length" if is_last else None,
            timing=timing if is_last else None,
        )

    def stats(self) -> EngineStats:
        running = min(len(self._requests), self._max_num_seqs)
        return EngineStats(
            num_requests_running=running,
            num_requests_waiting=len(self._requests) - running,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generated,
            engine_steps_total=self._steps,
            iteration_tokens=running,
        )
