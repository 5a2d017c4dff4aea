"""The engine: requests in, steps out. It joins policy (scheduler, memory retries) and numbers (model runner).

Use it from one thread:

    engine = Engine.from_folder(EngineConfig(model=folder))
    engine.add_request(request)
    while engine.has_work:
        for output in engine.step().outputs: ...
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from lightwell.model.analysis import weights
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.grammar.vocabulary import read_vocabulary
from lightwell.server.engine.active_request import ActiveRequests
from lightwell.server.engine.adapters import Adapters
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.execution.fault_isolation import run_isolated
from lightwell.server.engine.execution.model_runner import ModelRunner
from lightwell.server.engine.execution.run_ahead import RunAhead, Step
from lightwell.server.engine.execution.step_cancellation import CancellationCheck, StepCancelled
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.info import engine_info
from lightwell.server.engine.intake import Intake
from lightwell.server.engine.loading import device_runner_for, draft_model_of, load, speculation_of
from lightwell.server.engine.messages.outputs import (
    EngineStats,
    Failure,
    RequestOutput,
    StepOutput,
    failure_of,
    raise_exit,
)
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.engine.scheduling.block_manager import BlockManager
from lightwell.server.engine.scheduling.prompt_budget import ON_A_CARD, ON_A_CPU
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.scheduler import Scheduler
from lightwell.server.engine.scheduling.scheduler_config import SchedulerConfig
from lightwell.server.engine.scheduling.speculation import FIXED, Speculation
from lightwell.server.engine.scheduling.step_budgets import QUIET_SECONDS, StepBudgets
from lightwell.server.engine.sequence import Sequence
from lightwell.server.engine.state import engine_state
from lightwell.server.engine.tensor_parallel.load import weights_of

logger = logging.getLogger(__name__)


class Engine:
    """One model, one cache, one continuously batched loop."""

    def __init__(self, model: Transformer, cache: KVCache, config: EngineConfig, max_model_len: int) -> None:
        self._model = model
        self._runner = ModelRunner(model, cache, device_runner_for(model, cache, config, max_model_len))
        on_cpu = model.device.type == "cpu"
        caching = config.enable_prefix_caching and model.config.reuses_prefixes
        self._blocks = BlockManager(
            cache.num_blocks,
            cache.block_size,
            cache.num_sequences,
            # A GPU computes a few more tokens in the time that it needs to start a copy of each layer.
            copies_blocks=caching and on_cpu and config.tensor_parallel == 1,
        )
        speculation = Speculation(speculation_of(model, config))
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_capture_tokens=config.max_capture_tokens,
                enable_prefix_caching=caching,
                rotary_switch=model.rotary_switch,
                takes_forced=on_cpu,  # on a GPU a step of single tokens runs faster, as a graph
            ),
            self._blocks,
            speculation,
        )
        self._draft_model = draft_model_of(model, cache, config)
        limits = ON_A_CPU if on_cpu else ON_A_CARD
        ranks = config.tensor_parallel
        self._block_bytes = ranks * KVCache.bytes_per_block(model.cache_config, cache.block_size, model.dtype)
        self._state_bytes = ranks * model.cache_config.state_bytes(model.dtype.itemsize) // 2
        self._budgets = StepBudgets(config.max_capture_tokens, limits, speculation)
        self._ahead = RunAhead(self._plan, self._scheduler.leave_rows)
        self._committed = 0.0
        """CLOCK_MONOTONIC seconds at which the last step was committed."""
        self._can_cancel = on_cpu  # `server.engine.execution.step_cancellation` gives the reason
        self._new_aborts: Callable[[], Iterable[int]] = lambda: ()
        self._has_request: Callable[[], bool] = lambda: False
        self._requested = -math.inf
        """CLOCK_MONOTONIC seconds at which a request other than a batch row was last scheduled."""
        self._must_complete = False
        """Whether the next step must complete: the last one was cancelled despite an active request."""
        self.adapters = Adapters(model, config.adapters, config.max_lora_rank)
        self._active = ActiveRequests(self._scheduler, model, self.adapters)
        live = weights_of(model)
        self._intake = Intake(
            self._active,
            lambda task, check: weights.answer(model.config, live, task.question, task.options, check),
            lambda: read_vocabulary(config.model, model.config.vocab_size, model.config.eos_token_ids),
        )
        self._memory_retry = self._intake.memory_retry
        self._outputs: list[RequestOutput] = []
        """The outputs of the next report, also of requests that end between steps."""
        self._tokens: dict[int, int] = {}
        """The tokens of the next report that come with nothing else, by uid."""
        self._send: Callable[[StepOutput], None] | None = None
        self._counted: dict[str, Any] = {}
        """The counters of `EngineStats`, by field name."""
        self.info = engine_info(model, cache, max_model_len, speculation.mode)

    @classmethod
    def from_folder(cls, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> "Engine":
        """Load `config.model`, size the cache and run one step, so that the first request finds a warm engine.

        Raises ModelLoadError (a ValueError) for a folder or settings that cannot be served.
        """
        return cls(*load(config, progress))

    @property
    def has_work(self) -> bool:
        """Return whether `step` has anything to compute or to report."""
        return bool(self._scheduler.has_work or self._ahead.is_running or self._outputs or self._intake.has_work)

    def close(self) -> None:
        """End the engine's threads, which hold the network: its memory is free once the engine is."""
        self._intake.close()

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from another thread, when there is an output that needs no step."""
        self._intake.call_when_ready(wake)

    def prepare_grammars(self) -> None:
        """Start to read the vocabulary of grammars, so that the first grammar need not wait for it."""
        self._intake.grammars.warm_up()

    def watch_aborts(self, new_aborts: Callable[[], Iterable[int]]) -> None:
        """Call `new_aborts` while a step runs: it returns the uids that were aborted since its last call, and a step
        with too few active requests is cancelled. The caller may also call `abort` for these uids, and must do so for
        requests that were not added yet.
        """
        self._new_aborts = new_aborts

    def watch_requests(self, has_request: Callable[[], bool]) -> None:
        """Call `has_request` while a step of batch rows runs: if it returns True, the step is cancelled."""
        self._has_request = has_request

    def send_early(self, send: Callable[[StepOutput], None]) -> None:
        """Call `send` with outputs that are known before their step has run; otherwise the step reports them."""
        self._send = send

    def call_when_short(self, let_answers_go: Callable[[], object]) -> None:
        """Call `let_answers_go` when memory is short: it returns when the answers of earlier steps are sent and freed,
        or when that takes too long.
        """
        self._memory_retry.call_when_short(let_answers_go)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. Without memory for its captures, it waits for memory or ends with the next step.

        Raises ValueError if the request cannot run: too long for the cache, an empty prompt, a token that the network
        lacks, a uid in use, or an invalid intervention. After any exception the engine is unchanged.
        """
        self._intake.add(request)

    def abort(self, uid: int) -> None:
        """End a request early, and free its blocks. The next step reports the end. Unknown uids are ignored."""
        if uid in self._active:
            self._outputs.append(self._active.end(uid, "abort"))
        else:
            self._intake.abort(uid)

    def step(self) -> StepOutput:
        """Run one step. If it fails, only the requests that caused it end, with finish_reason "error" or "memory".

        Raises the exception of a network that can compute nothing more: the engine is then unusable.
        """
        self._expire()
        step = self._ahead.take()
        if step is None:
            return self._report()
        schedule = step.schedule
        wanted = CancellationCheck(
            schedule,
            self._new_aborts,
            self._scheduler.next_deadline,
            must_complete=self._must_complete,
            has_request=self._has_request,
            is_asking=self._can_cancel,
        )
        self._send_first_forced(schedule)
        run = partial(self._ahead.run, self._runner, step, wanted)
        try:
            with self._memory_retry.reserve():
                result = run_isolated(self._runner, schedule, step.captures, wanted, run)
        except StepCancelled:
            self._cancel(schedule, wanted.aborted)
            return self._report()
        self._commit(step, result)
        self._ahead.go_on(result)
        return self._report(schedule.num_tokens - schedule.num_drafts + schedule.num_accepted(result.tokens))

    @property
    def capture_bytes(self) -> int:
        """Return the bytes that unfinished requests have captured or reserved. It reads all of them, so don't call it
        in every step.
        """
        return sum(active.captures.num_bytes for active in self._active.values())

    def stats(self, iteration_tokens: int = 0) -> EngineStats:
        """Return gauges and counters, except `inflight_capture_bytes`, which depends on the sending of captures."""
        return EngineStats(
            **self._counted,
            num_requests_running=self._scheduler.num_running,
            num_requests_waiting=self._scheduler.num_waiting + len(self._memory_retry),
            kv_cache_usage_ratio=self._blocks.usage,
            kv_cache_committed_bytes=self._blocks.num_committed_blocks * self._block_bytes
            + self._blocks.num_committed_states * self._state_bytes,
            num_preemptions_total=self._scheduler.num_preemptions,
            prefix_cache_queries_total=self._blocks.prefix_cache_queries,
            prefix_cache_hits_total=self._blocks.prefix_cache_hits,
            grammars_compiled_total=self._intake.grammars.num_compiled,
            grammars_cached_total=self._intake.grammars.num_cached,
            grammar_compile_seconds_total=self._intake.grammars.compile_seconds,
            iteration_tokens=iteration_tokens,
        )

    def check_integrity(self) -> None:
        """Check the engine's state for contradictions, between two steps. Raises AssertionError with the facts."""
        self._scheduler.check_integrity()
        known = {seq.uid for seq in self._scheduler.sequences}
        if known != self._active.keys():
            raise AssertionError(f"requests {sorted(known)} are scheduled, but {sorted(self._active)} are tracked")
        self._budgets.check_integrity()
        unreported = {output.uid for output in self._outputs}
        self._memory_retry.check_integrity(known | self._intake.uids | unreported)

    def state(self) -> dict[str, Any]:
        """Return the engine's state for a debug dump, without tokens."""
        return engine_state(self._scheduler, self._budgets.captures) | {
            "num_steps_abandoned": self.stats().steps_abandoned_total,
            "set_aside": self._memory_retry.uids,
            "capture_bytes": self.capture_bytes,
        }

    def _expire(self) -> None:
        """Begin the requests that no longer need to wait, and end those without further steps."""
        self._intake.take_ready()
        self._outputs += self._intake.ends
        self._intake.ends = []
        self._outputs += [self._active.end(seq.uid, "deadline") for seq in self._scheduler.expired(time.monotonic())]
        self._memory_retry.forget(*[output.uid for output in self._outputs])

    def _plan(self) -> Step | None:
        """Schedule the next step, or return None if there is nothing to compute."""
        if not self._scheduler.has_work:
            return None
        began = time.monotonic()
        if self._scheduler.has_requests:
            self._requested = began
        self._predict()
        is_quiet = self._can_cancel and began - self._requested > QUIET_SECONDS
        schedule = self._budgets.schedule(self._scheduler, is_quiet=is_quiet)
        self._runner.cache.copy_blocks(schedule.copies)
        return Step(schedule, self._active.captures_of(schedule, began), began)

    def _predict(self) -> None:
        """Let the draft model predict the next tokens of all texts. Without memory for it, there are no drafts."""
        if self._draft_model is None:
            return
        sequences = self._scheduler.with_room_for(FIXED)
        try:
            self._draft_model.predict(sequences, FIXED)
        except Exception:
            logger.warning("the draft model failed; the step has no drafts", exc_info=True)
            for seq in sequences:
                seq.num_predicted_tokens = 0

    def _send_first_forced(self, schedule: Schedule) -> None:
        """Send the tokens that grammars force at the beginning of texts, before their first step."""
        tokens = [
            (seq.uid, token) for seq in schedule.sequences if seq.first_forced for token in seq.pop_first_forced()
        ]
        if tokens:
            self._outputs += [RequestOutput(uid=uid, token_id=token) for uid, token in tokens]
            self._count(generation_tokens_total=len(tokens), forced_tokens_total=len(tokens))
            if self._send is not None:
                self._send(self._report())

    def _cancel(self, schedule: Schedule, aborted: Iterable[int]) -> None:
        """Account for a cancelled step: end its aborted requests. The others keep their state from before the step."""
        for uid in aborted:
            self.abort(uid)
        self._expire()
        self._must_complete = not all(seq.is_finished for seq in schedule.sequences)
        self._count(steps_abandoned_total=1)

    def _commit(self, step: Step, result: StepResult) -> None:
        """Commit a step that ran, and collect its outputs."""
        schedule, now = step.schedule, time.monotonic()
        began, self._committed = max(step.began, self._committed), now
        self._must_complete = False
        if result.failures:
            self._scheduler.leave_rows()
        failures = {uid: each for uid, each in result.failures.items() if uid in self._active}  # else aborted since
        short = {uid: failure for uid, failure in failures.items() if failure.reason == "memory"}
        ends = [(uid, failure) for uid, failure in failures.items() if uid not in short]
        outputs = [self._active.end(uid, failure.reason, failure.message) for uid, failure in ends]
        if step.is_advanced and short:
            schedule.of(short).retreat()
        settle = self._scheduler.settle if step.is_advanced else self._scheduler.commit
        settle(schedule.without(short), result.tokens)
        self._tokens, others = self._active.plain_tokens(schedule, result)
        for seq in others:
            if seq.uid not in short and (seq.uid in result.tokens or seq.is_finished):
                outputs += self._outputs_or_end(seq, result, now)
        if short or self._memory_retry.is_trying:
            outputs += self._retry_or_end(schedule, short)
        self._memory_retry.forget(*self._tokens, *[output.uid for output in outputs])
        captured = sum(len(array.data) for output in outputs if output.tensors for array in output.tensors.values())
        num_accepted = schedule.num_accepted(result.tokens)
        self._count(
            generation_tokens_total=len(self._tokens) + sum([output.token_id is not None for output in outputs]),
            forced_tokens_total=max(0, len(outputs) - len({output.uid for output in outputs}) - num_accepted),
            drafts_accepted_total=num_accepted,
            drafts_rejected_total=schedule.num_drafts - num_accepted,
            computed_tokens_total=schedule.num_tokens,
            engine_steps_total=1,
            capture_bytes_total=captured,
            capture_seconds_total=result.attention_seconds,
        )
        self._outputs += outputs
        if not result.failures:
            self._budgets.note(time.monotonic() - began, schedule)

    def _outputs_or_end(self, seq: Sequence, result: StepResult, now: float) -> list[RequestOutput]:
        """Return a request's outputs, or its end if that fails; none if the request waits to begin again."""
        active = self._active[seq.uid]
        is_first = not active.has_answered
        try:
            outputs = active.answer(result, now)
        except BaseException as error:
            raise_exit(error)
            named = {"request_id": seq.request.request_id}
            logger.warning("the answer of request %d failed", seq.uid, exc_info=True, extra={"fields": named})
            failure = failure_of(error)
            if self._memory_retry.should_withdraw(seq.uid, failure, is_gathering=active.is_gathering):
                self._memory_retry.add(self._active.withdraw(seq.uid))
                return []
            return [self._active.end(seq.uid, failure.reason, failure.message)]
        if is_first:  # the prompt is complete
            self._count(prompt_tokens_total=len(seq.encoder_token_ids) + seq.num_prompt_tokens)
        if seq.is_finished:
            del self._active[seq.uid]
        return outputs

    def _retry_or_end(self, schedule: Schedule, short: Mapping[int, Failure]) -> list[RequestOutput]:
        """Queue the requests of a step without memory again, or end them after their last try."""
        scheduled = [seq.uid for seq in schedule.sequences]
        holders = [uid for uid, active in self._active.items() if active.is_gathering]
        others_gather = self._intake.has_questions
        decision = self._memory_retry.decide(short, holders, scheduled, others_gather=others_gather)
        for uid in decision.requeued:
            self._memory_retry.add(self._active.withdraw(uid))
        ends = [self._active.end(uid, "memory", short[uid].message) for uid in decision.ending]
        if decision.is_hopeless:
            self._memory_retry.run_with_reserve(self._runner.check)
        return ends

    def _report(self, num_tokens: int = 0) -> StepOutput:
        """Return all collected outputs. num_tokens: the tokens that the step computed."""
        outputs, self._outputs = tuple(self._outputs), []
        tokens, self._tokens = self._tokens, {}
        return StepOutput(stats=self.stats(num_tokens), others=outputs, tokens=tokens)

    def _count(self, **increments: float) -> None:
        for name, value in increments.items():
            self._counted[name] = self._counted.get(name, 0) + value
