"""Runs the real engine around a network that only takes its time: what is between engines can be measured on few cores.

Scheduling, blocks, prefix cache, preemption and counters are the server's own. A step sleeps as long as
`benchmarks.simulation.step_times` says and brings each stream a token that names the worker. It generates and nothing
else, and its numbers mean nothing. `benchmarks.timed_server` serves it.
"""

import os
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import replace

import torch

from benchmarks.simulation.step_times import StepTimes
from benchmarks.timed_server import FIRST_TOKEN, STEP_TIMES
from model.checkpoint.registry import read_config
from model.kv_cache import KVCache
from model.loading.loader import load_model
from server.engine.captures.request_captures import RequestCaptures
from server.engine.config import EngineConfig
from server.engine.engine import Engine
from server.engine.execution.model_runner import ModelRunner
from server.engine.execution.step_result import StepResult
from server.engine.memory.kv_cache_size import num_cache_blocks
from server.engine.request import EngineRequest, GenerateTask
from server.engine.sequence import Chunk, Sequence

_PIECE = 0.005
"""Seconds between two checks whether the step is still wanted: a network checks between its blocks."""


class TimedRunner(ModelRunner):
    """A runner that computes nothing, for as long as its step times say."""

    step_times: StepTimes
    token_id: int

    def run(
        self,
        chunks: ReadOnlySequence[Chunk],
        captures: Mapping[int, RequestCaptures],
        encodes: ReadOnlySequence[Sequence] = (),
        check: Callable[[], None] = lambda: None,
    ) -> StepResult:
        """Take the time of these chunks. Raises what `check` raises."""
        ends = time.monotonic() + self.step_times.seconds(*work_of(chunks))
        check()
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, _PIECE))
            check()
        return StepResult(
            tokens={chunk.sequence.uid: self.token_id for chunk in chunks if chunk.sequence.needs_sample(chunk)}
        )

    def check(self) -> None:
        """Check nothing: it is always able to do nothing."""


def work_of(chunks: ReadOnlySequence[Chunk]) -> tuple[int, int, int]:
    """Return the prompt tokens, decoding sequences and the keys these attend to: the arguments of `StepTimes.seconds`.

    What a preempted sequence computes again counts as prompt.
    """
    decodes = [chunk for chunk in chunks if chunk.num_tokens == 1 and chunk.start >= chunk.sequence.num_prompt_tokens]
    num_prompt_tokens = sum(chunk.num_tokens for chunk in chunks) - len(decodes)
    return num_prompt_tokens, len(decodes), sum(chunk.end for chunk in decodes)


class TimedEngine(Engine):
    """An engine around a timed network; see the module."""

    @classmethod
    def from_folder(cls, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> "TimedEngine":
        """Create an engine for any decoder, whose cache has as many blocks as that model's would have and takes no
        memory.

        Raises:
            KeyError: the environment holds no step times.
            ValueError: they make no sense, or the folder cannot be served.
        """
        step_times = StepTimes.from_json(os.environ[STEP_TIMES])
        model_config = read_config(config.model)
        dtype, device = torch.float32, torch.device("cpu")
        max_model_len = config.max_model_len or model_config.max_model_len
        model = load_model(config.model, model_config, dtype, device, max_model_len=max_model_len, progress=progress)
        num_blocks = num_cache_blocks(config, model_config, dtype, device, max_model_len)
        cache = KVCache(model_config, num_blocks, config.block_size, dtype, torch.device("meta"))
        engine = cls(model, cache, replace(config, max_capture_tokens=config.max_capture_tokens or 32), max_model_len)
        runner = TimedRunner(model, cache)
        runner.step_times = step_times
        runner.token_id = FIRST_TOKEN + int(os.environ.get("LITSERVE_WORKER_ID", "0"))
        engine._runner = runner
        return engine

    def add_request(self, request: EngineRequest) -> None:
        """Add a request like the real one. Raises ValueError for what needs a network: anything but plain text."""
        task = request.task
        is_plain = isinstance(task, GenerateTask) and task.attention is None and not request.interventions
        if not is_plain:
            raise ValueError(f"the timed engine has no network, and a {type(task).__name__} asks for its numbers")
        assert isinstance(task, GenerateTask)
        if task.sampling.logprobs is not None or task.sampling.prompt_logprobs is not None:
            raise ValueError("logprobs: the timed engine has no network, and so no log-probabilities")
        super().add_request(request)
