"""The engine: requests in, steps out. Joins policy (scheduler) and numbers (model runner) and keeps each request's
clock.

Knows nothing of HTTP, sockets or text. Use it from one thread:

    engine = Engine.from_folder(EngineConfig(model=folder))
    engine.add_request(request)
    while engine.has_work:
        for output in engine.step().outputs: ...
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from model.config import ModelConfig
from model.inside import weights
from model.inside.live_weights import LiveWeights
from model.kv_cache import KVCache
from model.layers.compiler_cache import tolerate_full_disks
from model.loader import load_model, resolve_device, resolve_dtype
from model.registry import read_config
from model.transformer import Transformer
from server.engine.block_manager import BlockManager
from server.engine.config import EngineConfig
from server.engine.failure import failure_of
from server.engine.findings import Findings
from server.engine.inspector import Inspector
from server.engine.isolation import run_isolated
from server.engine.look_budget import LookBudget
from server.engine.memory import num_cache_blocks
from server.engine.memory_limit import give_back_memory
from server.engine.model_runner import ModelRunner, StepResult
from server.engine.needs import Stacks
from server.engine.outputs import (
    Array,
    EngineInfo,
    EngineStats,
    FinishReason,
    RequestOutput,
    StepOutput,
    Timing,
    TokenLogprobs,
)
from server.engine.request import EngineRequest, WeightsTask
from server.engine.scheduler import Schedule, Scheduler, SchedulerConfig
from server.engine.sequence import Sequence
from server.engine.state import engine_state
from server.engine.threads import use_threads
from server.engine.warm_up import warm_up

logger = logging.getLogger(__name__)

_LOOK_TOKENS = {"cpu": 32, "cuda": 256}
"""Most rows of looks beside running text; how many there are is measured (`server.engine.look_budget`)."""


@dataclass(slots=True)
class _Tracked:
    """One request in the engine."""

    sequence: Sequence
    findings: Findings
    timing: Timing


class Engine:
    """One model, one cache, one continuously batched loop."""

    def __init__(self, model: Transformer, cache: KVCache, config: EngineConfig, max_model_len: int) -> None:
        self._model = model
        self._stacks = stacks_of(model.config)
        self._runner = ModelRunner(model, cache)
        self._blocks = BlockManager(cache.num_blocks, cache.block_size)
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_look_tokens=config.max_look_tokens,
                enable_prefix_caching=config.enable_prefix_caching,
            ),
            self._blocks,
        )
        self._look_budget = LookBudget(config.max_look_tokens) if config.max_look_tokens else None
        live = LiveWeights(model)
        self._inspector = Inspector(
            lambda task, check: weights.answer(model.config, live, task.question, task.options, check)
        )
        self._tracked: dict[int, _Tracked] = {}
        self._pending: list[RequestOutput] = []
        """Ends that came between steps: the next step reports them."""
        self._counted = EngineStats()
        self.info = EngineInfo(
            max_model_len=max_model_len,
            max_encoder_len=max_encoder_len(model.config, max_model_len),
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            batch_invariant=model.batch_invariant,
        )

    @classmethod
    def from_folder(cls, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> "Engine":
        """Load `config.model`, size the cache and run one step, so that the first request meets a warm engine.

        Raises ModelLoadError (a ValueError) for a folder or settings that cannot be served.
        """
        model_config = read_config(config.model)
        tolerate_full_disks()
        use_threads(config.threads, model_config.num_matrix_parameters)
        device = resolve_device(config.device)
        dtype = resolve_dtype(config.dtype, model_config, device)
        max_model_len = config.max_model_len or model_config.max_model_len
        model = load_model(
            config.model,
            model_config,
            dtype,
            device,
            max_model_len=max_model_len,
            batch_invariant=config.batch_invariant,
            progress=progress,
        )
        num_blocks = num_cache_blocks(config, model_config, dtype, device, max_model_len)
        cache = KVCache(model_config, num_blocks, config.block_size, dtype, device)
        config = replace(config, max_look_tokens=config.max_look_tokens or _LOOK_TOKENS[device.type])
        warm_up(model, cache, max_model_len)
        return cls(model, cache, config, max_model_len)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to compute or to report."""
        return self._scheduler.has_work or bool(self._pending) or self._inspector.has_results

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from another thread, when there is something to report that no step has brought."""
        self._inspector.call_when_ready(wake)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. One that finds no memory for what it captures ends with the next step.

        Raises ValueError when it cannot run: too long for the cache, an empty prompt, a uid in use, or an intervention
        that makes no sense. The engine is then as it was, and so it is after any other exception.
        """
        if isinstance(request.task, WeightsTask):  # needs no step
            self._inspector.add(request)
            return
        seq = Sequence(request, self._stacks)
        self._scheduler.add(seq)
        tracked = _Tracked(seq, Findings(), Timing(request.arrival_time))
        try:
            tracked.findings = Findings.of(seq, self._model)
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises the latter
            self._tracked[request.uid] = tracked
            give_back_memory()
            self._scheduler.finish(seq, "memory")
            self._pending.append(self._ending(request.uid, "memory", f"no memory for what it captures: {error}"))
        except Exception:
            self._scheduler.finish(seq, "error")
            raise
        else:
            self._tracked[request.uid] = tracked

    def abort(self, uid: int) -> None:
        """End a request early; its blocks are free at once and the next step reports it. Unknown uids are ignored."""
        seq = self._scheduler.abort(uid)
        if seq is not None:
            self._pending.append(self._ending(uid, "abort"))
        else:
            self._inspector.abort(uid)

    def step(self) -> StepOutput:
        """Run one step. Where it fails, only those whose fault it is end, with finish_reason "error" or "memory".

        Raises what the network raises when it can no longer do anything: the engine is then of no more use.
        """
        outputs, self._pending = self._pending + self._inspector.take_results(), []
        for seq in self._scheduler.expired(time.monotonic()):
            outputs.append(self._ending(seq.uid, "deadline"))
        if not self._scheduler.has_work:
            return StepOutput(outputs=tuple(outputs), stats=self.stats())
        schedule = self._scheduler.schedule(None if self._look_budget is None else self._look_budget.tokens)
        now = time.monotonic()
        findings: dict[int, Findings] = {}
        for seq in schedule.sequences:
            tracked = self._tracked[seq.uid]
            findings[seq.uid] = tracked.findings
            if tracked.timing.scheduled is None:
                tracked.timing = replace(tracked.timing, scheduled=now)
        result = run_isolated(self._runner, schedule, findings)
        outputs.extend(self._book(schedule, result))
        if self._look_budget is not None and schedule.has_text and not result.failures:
            self._look_budget.note(time.monotonic() - now, schedule.work)
        return StepOutput(outputs=tuple(outputs), stats=self.stats(schedule.num_tokens))

    @property
    def capture_bytes(self) -> int:
        """What unfinished requests have gathered, or have room for. Asks all of them: not for every step."""
        return sum(tracked.findings.num_bytes for tracked in self._tracked.values())

    def stats(self, iteration_tokens: int = 0) -> EngineStats:
        """A snapshot of gauges and counters, `inflight_capture_bytes` aside: those are in flight until they are sent,
        which the engine does not see.
        """
        return replace(
            self._counted,
            num_requests_running=self._scheduler.num_running,
            num_requests_waiting=self._scheduler.num_waiting,
            kv_cache_usage_ratio=self._blocks.usage,
            num_preemptions_total=self._scheduler.num_preemptions,
            prefix_cache_queries_total=self._blocks.prefix_cache_queries,
            prefix_cache_hits_total=self._blocks.prefix_cache_hits,
            iteration_tokens=iteration_tokens,
        )

    def check_integrity(self) -> None:
        """Check the books against each other, between two steps. Raises AssertionError with the facts."""
        self._scheduler.check_integrity()
        known = {seq.uid for seq in self._scheduler.sequences}
        if known != self._tracked.keys():
            raise AssertionError(f"requests {sorted(known)} are scheduled, but {sorted(self._tracked)} are tracked")
        if self._look_budget is not None:
            self._look_budget.check_integrity()

    def state(self) -> dict[str, Any]:
        """What it is doing, for a debug dump: no tokens."""
        return engine_state(self._scheduler, self._look_budget) | {"capture_bytes": self.capture_bytes}

    def _book(self, schedule: Schedule, result: StepResult) -> list[RequestOutput]:
        """Commit a step that ran and write what each request is to be told."""
        now = time.monotonic()
        outputs = []
        for uid, failure in result.failures.items():
            self._scheduler.abort(uid, failure.reason)
            outputs.append(self._ending(uid, failure.reason, failure.message))
        self._scheduler.commit(schedule, result.tokens)
        for seq in schedule.sequences:
            if seq.uid not in result.failures and (seq.uid in result.tokens or seq.is_finished):
                outputs.append(self._output_or_end(seq, result, now))
        captured = sum(len(array.data) for output in outputs for array in output.tensors.values())
        self._count(
            generation_tokens_total=len(result.tokens),
            computed_tokens_total=schedule.num_tokens,
            engine_steps_total=1,
            capture_bytes_total=captured,
            capture_seconds_total=result.attention_seconds,
        )
        return outputs

    def _output_or_end(self, seq: Sequence, result: StepResult, now: float) -> RequestOutput:
        """What a request is to be told; its end when that cannot be put together, as for want of memory."""
        try:
            return self._output(seq, result, now)
        except Exception as error:
            named = {"request_id": seq.request.request_id}
            logger.warning("the answer of request %d failed", seq.uid, exc_info=True, extra={"fields": named})
            failure = failure_of(error)
        self._scheduler.finish(seq, failure.reason)
        return self._ending(seq.uid, failure.reason, failure.message)

    def _output(self, seq: Sequence, result: StepResult, now: float) -> RequestOutput:
        uid, tracked = seq.uid, self._tracked[seq.uid]
        token = result.tokens.get(uid)
        tensors: dict[str, Array] = dict(result.rows.get(uid, {}))
        scored: list[TokenLogprobs | None] | None = None
        found = tracked.findings
        is_first = token is None or seq.num_generated_tokens == 1
        if is_first:  # the prompt is done, and so is all that it gave
            tracked.timing = replace(tracked.timing, first_token=now)
            self._count(prompt_tokens_total=seq.num_read_tokens)
            tensors.update(found.arrays())
            scored = found.prompt_logprobs
            tracked.findings = Findings(patches=found.patches)
        if seq.is_finished:
            tracked.timing = replace(tracked.timing, finished=now)
        output = RequestOutput(
            uid=uid,
            token_id=token,
            logprobs=result.logprobs.get(uid),
            prompt_logprobs=None if scored is None else tuple(scored),
            tensors=tensors,
            finish_reason=seq.finish_reason,
            stop_token_id=token if seq.finish_reason == "stop" else None,
            num_cached_tokens=seq.num_cached_tokens,
            timing=tracked.timing if is_first or seq.is_finished else None,
        )
        if seq.is_finished:  # last: what fails before is the end of one that is still tracked
            del self._tracked[uid]
        return output

    def _ending(self, uid: int, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """The last word on a request that did not complete."""
        tracked = self._tracked.pop(uid)
        timing = replace(tracked.timing, finished=time.monotonic())
        return RequestOutput(uid=uid, finish_reason=reason, error=error, timing=timing)

    def _count(self, **increments: float) -> None:
        current = {name: getattr(self._counted, name) + value for name, value in increments.items()}
        self._counted = replace(self._counted, **current)


def stacks_of(config: ModelConfig) -> Stacks:
    """The blocks of a model's stacks."""
    if config.kind == "encoder":
        return Stacks(decoder=0, encoder=config.num_layers)
    return Stacks(decoder=config.num_layers, encoder=0 if config.encoder is None else config.encoder.num_layers)


def max_encoder_len(config: ModelConfig, max_model_len: int) -> int:
    """Most tokens that the encoder reads; 0 where there is none."""
    if config.kind == "encoder":
        return max_model_len
    return 0 if config.encoder is None else min(max_model_len, config.encoder.max_model_len)
