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
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from threading import Thread
from typing import Any

import torch

from model.analysis import weights
from model.checkpoint.registry import read_config
from model.kv_cache import KVCache
from model.loading.loader import load_model, resolve_device, resolve_dtype, resolve_quantization
from model.network.transformer import Transformer
from server.engine.active_request import ActiveRequest, unbegun
from server.engine.captures.request_captures import RequestCaptures
from server.engine.config import EngineConfig
from server.engine.execution.cuda_graphs import graphs_for
from server.engine.execution.fault_isolation import run_isolated
from server.engine.execution.kernel_choice import choose_kernels
from server.engine.execution.model_runner import ModelRunner, StepResult
from server.engine.execution.step_cancellation import CancellationCheck, StepCancelled
from server.engine.execution.threads import use_threads
from server.engine.execution.warm_up import warm_up
from server.engine.execution.weight_queries import WeightQueries
from server.engine.failure import Failure, failure_of
from server.engine.info import engine_info, stacks_of
from server.engine.memory.kv_cache_size import num_cache_blocks
from server.engine.memory.memory_limit import give_back_memory, reserve
from server.engine.memory.memory_retry import MemoryRetry
from server.engine.outputs import EngineStats, FinishReason, RequestOutput, StepOutput, Timing
from server.engine.request import EngineRequest, WeightsTask
from server.engine.scheduling.block_manager import BlockManager
from server.engine.scheduling.capture_budget import CaptureBudget
from server.engine.scheduling.prompt_budget import PromptBudget
from server.engine.scheduling.scheduler import Schedule, Scheduler, SchedulerConfig
from server.engine.sequence import Sequence
from server.engine.state import engine_state
from server.engine.tensor_parallel.load import load_shared, weights_of
from server.engine.tensor_parallel.ranks import Ranks

logger = logging.getLogger(__name__)

_CAPTURE_TOKENS = {"cpu": 32, "cuda": 256}
"""Most rows of looks beside running text; `capture_budget` measures how many there are."""


class Engine:
    """One model, one cache, one continuously batched loop."""

    def __init__(self, model: Transformer, cache: KVCache, config: EngineConfig, max_model_len: int) -> None:
        self._model = model
        self._stacks = stacks_of(model.config)
        self._runner = ModelRunner(model, cache, graphs_for(model, cache, config, max_model_len))
        self._blocks = BlockManager(cache.num_blocks, cache.block_size)
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_capture_tokens=config.max_capture_tokens,
                enable_prefix_caching=config.enable_prefix_caching,
            ),
            self._blocks,
        )
        self._capture_budget = CaptureBudget(config.max_capture_tokens) if config.max_capture_tokens else None
        self._prompt_budget = PromptBudget()
        live = weights_of(model)
        self._weight_queries = WeightQueries(
            lambda task, check: weights.answer(model.config, live, task.question, task.options, check)
        )
        self._questions: dict[int, EngineRequest] = {}
        """What the inspector was asked and has not answered."""
        self._memory_retry = MemoryRetry()
        self._let_answers_go: Callable[[], object] = lambda: None
        self._asks = model.device.type == "cpu"  # `server.engine.execution.step_cancellation` says why
        self._new_aborts: Callable[[], Iterable[int]] = lambda: ()
        self._must_complete = False
        """The last step was given up though somebody wanted it."""
        self._active: dict[int, ActiveRequest] = {}
        self._pending: list[RequestOutput] = []
        """Ends that came between steps: the next step reports them."""
        self._counted: dict[str, Any] = {}
        """What `EngineStats` counts, by its fields' names."""
        self.info = engine_info(model, cache, max_model_len)

    @classmethod
    def from_folder(cls, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> "Engine":
        """Load `config.model`, size the cache and run one step, so that the first request meets a warm engine.

        Raises ModelLoadError (a ValueError) for a folder or settings that cannot be served.
        """
        model_config = read_config(config.model)
        use_threads(config.threads, model_config.num_matrix_parameters, config.tensor_parallel, config.num_workers)
        device = resolve_device(config.device)
        if device.index is not None:  # one of several cards: compiled kernels run on the current one
            torch.cuda.set_device(device)
        dtype = resolve_dtype(config.dtype, model_config, device)
        quantize = resolve_quantization(config.quantize, dtype)
        kernels = choose_kernels(config, dtype, device)
        max_model_len = config.max_model_len or model_config.max_model_len
        model: Transformer
        ranks: Ranks | None = None
        if config.tensor_parallel > 1:
            model, ranks = load_shared(config, model_config, dtype, device, kernels, max_model_len, progress)
        else:
            # Also before: tables as long as a context that has no room would fill the memory.
            num_cache_blocks(config, model_config, dtype, device, max_model_len)
            model = load_model(
                config.model,
                model_config,
                dtype,
                device,
                max_model_len=max_model_len,
                kernels=kernels,
                batch_invariant=config.batch_invariant,
                quantize=quantize,
                progress=progress,
            )
        num_blocks = num_cache_blocks(config, model.cache_config, dtype, device, max_model_len)
        cache = KVCache(model.cache_config, num_blocks, config.block_size, dtype, device)
        Thread(target=cache.touch, daemon=True).start()  # gigabytes take seconds, for which nobody has to wait
        config = replace(config, max_capture_tokens=config.max_capture_tokens or _CAPTURE_TOKENS[device.type])
        warm_up(model, cache, max_model_len, config.max_num_seqs, config.max_num_batched_tokens)
        if ranks is not None:
            ranks.settle(config.worker_memory)
        return cls(model, cache, config, max_model_len)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to compute or to report."""
        if self._scheduler.has_work or self._pending or self._weight_queries.has_results:
            return True
        return self._memory_retry.may_begin(self._is_anyone_gathering)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from another thread, when there is something to report that no step has brought."""
        self._weight_queries.call_when_ready(wake)

    def watch_aborts(self, new_aborts: Callable[[], Iterable[int]]) -> None:
        """Ask `new_aborts`, while a step runs, which uids were aborted since it was last asked: a step that too few
        want is given up. Whoever answers may still call `abort` for them, and must for those not known yet.
        """
        self._new_aborts = new_aborts

    def call_when_short(self, let_answers_go: Callable[[], object]) -> None:
        """Call it where memory is short: it returns when nothing holds answers of earlier steps any more, or when that
        takes too long.
        """
        self._let_answers_go = let_answers_go

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. One that finds no memory for what it captures waits for it, or ends with the next step.

        Raises ValueError when it cannot run: too long for the cache, an empty prompt, a token that the network lacks, a
        uid in use, or an intervention that makes no sense. The engine is then as it was, and so it is after any other
        exception.
        """
        if request.uid in self._memory_retry:
            raise ValueError(f"request uid {request.uid} is already in use")
        must_wait = self._memory_retry.is_memory_short
        if must_wait and isinstance(request.task, WeightsTask):
            self._memory_retry.add(request, is_to_blame=False)
            return
        self._begin(request)
        if must_wait and request.uid in self._active and self._active[request.uid].is_gathering:
            self._leave(request.uid, is_to_blame=False)

    def _begin(self, request: EngineRequest) -> None:
        """As `add_request`, whoever waits."""
        if isinstance(request.task, WeightsTask):  # needs no step
            self._weight_queries.add(request)
            self._questions[request.uid] = request
            return
        self._check_tokens(request)
        seq = Sequence(request, self._stacks)
        self._scheduler.add(seq)
        try:
            captures = RequestCaptures.of(seq, self._model)
        except (MemoryError, RuntimeError) as error:  # torch's allocator raises the latter
            self._scheduler.finish(seq, "memory")
            self._without_memory(request, f"no memory for what it captures: {error}")
        except Exception:
            self._scheduler.finish(seq, "error")
            raise
        else:
            self._active[request.uid] = ActiveRequest(seq, captures, Timing(request.arrival_time))

    def _check_tokens(self, request: EngineRequest) -> None:
        """Raise ValueError for a token that the network lacks: on a GPU it would end the worker."""
        size = self._model.config.vocab_size
        for ids in (request.prompt_token_ids, request.encoder_token_ids):
            if ids and not 0 <= min(ids) <= max(ids) < size:
                wrong = next(token for token in ids if not 0 <= token < size)
                raise ValueError(f"request {request.uid}: there is no token {wrong}; 0 to {size - 1} are accepted")

    def abort(self, uid: int) -> None:
        """End a request early; its blocks are free at once and the next step reports it. Unknown uids are ignored."""
        seq = self._scheduler.abort(uid)
        if seq is not None:
            self._pending.append(self._ending(uid, "abort"))
        elif (request := self._memory_retry.remove(uid)) is not None:
            self._pending.append(unbegun(request, "abort"))
        else:
            self._weight_queries.abort(uid)

    def step(self) -> StepOutput:
        """Run one step. Where it fails, only those whose fault it is end, with finish_reason "error" or "memory".

        Raises what the network raises when it can no longer do anything: the engine is then of no more use.
        """
        outputs = self._take_ends()
        if not self._scheduler.has_work:
            return StepOutput(outputs=tuple(outputs), stats=self.stats())
        capture_tokens = None if self._capture_budget is None else self._capture_budget.tokens
        schedule = self._scheduler.schedule(capture_tokens, self._prompt_budget.tokens)
        now = time.monotonic()
        captures: dict[int, RequestCaptures] = {}
        for seq in schedule.sequences:
            active = self._active[seq.uid]
            captures[seq.uid] = active.captures
            if active.timing.scheduled is None:
                active.timing = replace(active.timing, scheduled=now)
        deadline, must_complete = self._scheduler.next_deadline, self._must_complete
        wanted = CancellationCheck(schedule, self._new_aborts, deadline, must_complete=must_complete)
        try:
            with reserve() if self._memory_retry.is_trying else nullcontext():
                result = run_isolated(self._runner, schedule, captures, wanted if self._asks else lambda: None)
        except StepCancelled:
            outputs.extend(self._cancel_step(schedule, wanted.aborted))
            return StepOutput(outputs=tuple(outputs), stats=self.stats())
        self._must_complete = False
        outputs.extend(self._book(schedule, result))
        if not result.failures:
            self._note_seconds(time.monotonic() - now, schedule)
        return StepOutput(outputs=tuple(outputs), stats=self.stats(schedule.num_tokens))

    @property
    def capture_bytes(self) -> int:
        """What unfinished requests have gathered, or have room for. Asks all of them: not for every step."""
        return sum(active.captures.num_bytes for active in self._active.values())

    def stats(self, iteration_tokens: int = 0) -> EngineStats:
        """A snapshot of gauges and counters, `inflight_capture_bytes` aside: those are in flight until they are sent,
        which the engine does not see.
        """
        return EngineStats(
            **self._counted,
            num_requests_running=self._scheduler.num_running,
            num_requests_waiting=self._scheduler.num_waiting + len(self._memory_retry),
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
        if known != self._active.keys():
            raise AssertionError(f"requests {sorted(known)} are scheduled, but {sorted(self._active)} are tracked")
        if self._capture_budget is not None:
            self._capture_budget.check_integrity()
        self._prompt_budget.check_integrity()
        unreported = {output.uid for output in self._pending}
        self._memory_retry.check_integrity(known | self._questions.keys() | unreported)

    def state(self) -> dict[str, Any]:
        """What it is doing, for a debug dump: no tokens."""
        state = engine_state(self._scheduler, self._capture_budget)
        state |= {"num_steps_abandoned": self.stats().steps_abandoned_total, "set_aside": self._memory_retry.uids}
        return state | {"capture_bytes": self.capture_bytes}

    def _note_seconds(self, seconds: float, schedule: Schedule) -> None:
        """Tell the budgets what a step took."""
        work = schedule.work
        if self._capture_budget is not None and schedule.has_text:
            self._capture_budget.note(seconds, work)
        if not work.num_capture_tokens and not schedule.encodes:
            num_decodes = schedule.num_decodes
            self._prompt_budget.note(seconds, num_decodes, work.num_text_tokens - num_decodes)

    def _take_ends(self) -> list[RequestOutput]:
        """Of those who need no step, or no more."""
        self._take_answers()
        self._use_room()
        outputs, self._pending = self._pending, []
        for seq in self._scheduler.expired(time.monotonic()):
            outputs.append(self._ending(seq.uid, "deadline"))
        self._memory_retry.forget(*[output.uid for output in outputs])
        return outputs

    def _cancel_step(self, schedule: Schedule, aborted: Iterable[int]) -> list[RequestOutput]:
        """Book a step that was given up: the ends of those who left. The others are where they were before it."""
        for uid in aborted:
            self.abort(uid)
        outputs = self._take_ends()
        self._must_complete = not all(seq.is_finished for seq in schedule.sequences)
        self._count(steps_abandoned_total=1)
        return outputs

    def _book(self, schedule: Schedule, result: StepResult) -> list[RequestOutput]:
        """Commit a step that ran and write what each request is to be told."""
        now = time.monotonic()
        outputs = []
        short = {uid: failure for uid, failure in result.failures.items() if failure.reason == "memory"}
        for uid, failure in result.failures.items():
            if uid not in short:
                self._scheduler.abort(uid, failure.reason)
                outputs.append(self._ending(uid, failure.reason, failure.message))
        self._scheduler.commit(schedule.without(short), result.tokens)
        for seq in schedule.sequences:
            if seq.uid not in result.failures and (seq.uid in result.tokens or seq.is_finished):
                output = self._output_or_end(seq, result, now)
                if output is not None:
                    outputs.append(output)
        if short or self._memory_retry.is_trying:
            outputs.extend(self._share_memory(schedule, short))
        self._memory_retry.forget(*[output.uid for output in outputs])
        captured = sum(len(array.data) for output in outputs if output.tensors for array in output.tensors.values())
        self._count(
            generation_tokens_total=sum([output.token_id is not None for output in outputs]),
            computed_tokens_total=schedule.num_tokens,
            engine_steps_total=1,
            capture_bytes_total=captured,
            capture_seconds_total=result.attention_seconds,
        )
        return outputs

    def _output_or_end(self, seq: Sequence, result: StepResult, now: float) -> RequestOutput | None:
        """What a request is to be told; its end when that cannot be put together. None when that was for want of memory
        and it is set aside.
        """
        active = self._active[seq.uid]
        is_first = not active.has_answered
        try:
            output = active.answer(result, now)
        except Exception as error:
            named = {"request_id": seq.request.request_id}
            logger.warning("the answer of request %d failed", seq.uid, exc_info=True, extra={"fields": named})
            failure = failure_of(error)
            if failure.reason == "memory" and active.is_gathering and not self._memory_retry.is_last_try(seq.uid):
                self._leave(seq.uid)
                return None
            self._scheduler.finish(seq, failure.reason)
            return self._ending(seq.uid, failure.reason, failure.message)
        if is_first:  # the prompt is done, and so is all that it gave
            self._count(prompt_tokens_total=seq.num_read_tokens)
        if seq.is_finished:
            del self._active[seq.uid]
        return output

    def _share_memory(self, schedule: Schedule, short: dict[int, Failure]) -> list[RequestOutput]:
        """Let those of a step who found no memory try again, and end those who have."""
        holders = [uid for uid, active in self._active.items() if active.is_gathering]
        decision = self._memory_retry.decide(short, holders, [seq.uid for seq in schedule.sequences])
        for uid in decision.requeued:
            self._leave(uid)
        for uid in decision.ending:
            self._scheduler.abort(uid, "memory")
        if decision.ending and not self._is_anyone_gathering():
            self._give_back()
            with reserve():
                self._runner.check()  # where nobody holds what is missing, the next ones would fare no better
        return [self._ending(uid, "memory", short[uid].message) for uid in decision.ending]

    def _use_room(self) -> None:
        """Begin those set aside for whom there is room, and end those who are late."""
        if self._memory_retry.is_trying:
            self._give_back()
        for request in self._memory_retry.expired(time.monotonic()):
            self._pending.append(unbegun(request, "deadline"))
        while (first := self._memory_retry.next(self._is_anyone_gathering)) is not None:
            self._give_back()
            if self._memory_retry.has_had_its_tries(first.uid):
                self._pending.append(unbegun(first, "memory", "no memory for it beside what others write"))
                continue
            try:
                self._begin(first)
            except Exception as error:
                logger.exception("request %d could not begin anew", first.uid)
                failure = failure_of(error)
                self._pending.append(unbegun(first, failure.reason, failure.message))

    def _take_answers(self) -> None:
        """Of the inspector."""
        for output in self._weight_queries.take_results():
            request = self._questions.pop(output.uid)
            if output.finish_reason == "memory":
                self._without_memory(request, output.error or "")
            else:
                self._pending.append(output)

    def _without_memory(self, request: EngineRequest, error: str) -> None:
        """Set one aside that holds nothing, or end it where that was its last try."""
        self._give_back()
        if self._memory_retry.is_last_try(request.uid):
            self._pending.append(unbegun(request, "memory", error))
        else:
            self._memory_retry.add(request)

    def _leave(self, uid: int, *, is_to_blame: bool = True) -> None:
        """Set one aside that has begun: all it holds is free at once, and it has told its client nothing yet."""
        seq = self._active.pop(uid).sequence
        self._scheduler.finish(seq, "memory")
        self._memory_retry.add(seq.request, is_to_blame=is_to_blame)
        named = {"request_id": seq.request.request_id}
        logger.warning("memory is short: request %d waits to begin anew", uid, extra={"fields": named})

    def _is_anyone_gathering(self) -> bool:
        return bool(self._questions) or any(active.is_gathering for active in self._active.values())

    def _give_back(self) -> None:
        self._let_answers_go()
        give_back_memory()

    def _ending(self, uid: int, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """The last word on a request that did not complete."""
        return self._active.pop(uid).ending(reason, error)

    def _count(self, **increments: float) -> None:
        for name, value in increments.items():
            self._counted[name] = self._counted.get(name, 0) + value
