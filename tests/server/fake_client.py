"""A small engine behind the EngineClient's contract, in process: known tokens, known arrays, scripted failures.

It answers a prompt with the ids `script` (then repeats them), so tests know every byte of an answer before they ask.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import sizes
from lightwell.model.hooks.points import BY_NAME
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.admission import Admission
from lightwell.server.dispatch.lora_registry import LoraRegistry
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import adds_to_token
from lightwell.server.engine.messages.outputs import (
    Array,
    EngineInfo,
    EngineStats,
    PromptLogprobs,
    RequestOutput,
    Timing,
    TokenLogprobs,
)
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    ClassifyTask,
    EmbedTask,
    EngineRequest,
    GenerateTask,
    Intervention,
    PointCapture,
    SparseTask,
    Task,
    TraceTask,
)
from lightwell.server.http.errors import ApiError
from lightwell.server.ipc.messages import is_bare
from lightwell.server.observability.metrics import ClientCounters, WorkerNumbers

NUM_LAYERS, NUM_HEADS, HIDDEN_SIZE = 3, 4, 8
INFO = EngineInfo(max_model_len=64, num_blocks=8, block_size=16, dtype="float32", device="cpu", batch_invariant=True)


@dataclass
class Submitted:
    """A request as the routes submitted it."""

    task: Task
    prompt_token_ids: tuple[int, ...]
    deadline: float | None
    capture_bytes: int
    handle: "FakeHandle"
    encoder_token_ids: tuple[int, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    priority: int = 0
    second_segment: int | None = None

    @classmethod
    def of(cls, request: EngineRequest, request_context: RequestContext, handle: "FakeHandle") -> "Submitted":
        return cls(
            request.task,
            request.prompt_token_ids,
            request_context.deadline,
            request.capture_bytes,
            handle,
            request.encoder_token_ids,
            request.interventions,
            request_context.priority,
            request.second_segment,
        )


class FakeHandle:
    """Outputs made beforehand; `gate` holds back the outputs from `gate_at` on until it is set."""

    def __init__(
        self,
        outputs: Sequence[RequestOutput],
        failure: ApiError | None,
        gate: asyncio.Event | None,
        request_context: RequestContext,
    ) -> None:
        self.request_context = request_context
        self._outputs = deque(outputs)
        self._failure = failure
        self._gate = gate
        self.is_closed = False
        self.was_aborted = False
        self.num_read = 0
        self.on_token: Callable[[int, RequestOutput | None], bool] | None = None

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self.is_closed:
            await self._wait()
            if not self._outputs:
                break
            self.num_read += 1
            output = self._outputs.popleft()
            token_id = output.token_id
            if token_id is None or not adds_to_token(output) or self.on_token is None:
                return output
            if not self.on_token(token_id, None if is_bare(output) else output):
                return output
        if self.is_closed:
            raise StopAsyncIteration
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Return when the next output is there, or the end."""
        if self._gate is not None:
            await self._gate.wait()
        await asyncio.sleep(0)

    def close(self, *, is_complete: bool = False) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.was_aborted = bool(self._outputs) or self._failure is not None


@dataclass
class FakeEngine:
    """The client. Change its fields to script it."""

    script: tuple[int, ...] = (104, 105)
    """Token ids of every completion; a longer one repeats them."""
    eos_after: int | None = None
    """Number of tokens after which to end with the first end-of-text id, or None for no such end."""
    refuse: ApiError | None = None
    """Error that `submit` raises, from the `refuse_from`-th call on."""
    refuse_from: int = 0
    full: ApiError | None = None
    """Error that `check_room` raises."""
    full_of_text: ApiError | None = None
    """Error that `check_room` raises for requests that do more than capture."""
    admission: Admission = field(default_factory=lambda: Admission.of(Settings(), 1))
    """The counters that the routes read; `submit` does not change them."""
    fail_after: int | None = None
    """Number of tokens after which to fail with `failure`, or None."""
    failure: ApiError | None = None
    gate: asyncio.Event | None = None
    is_ready: bool = True
    live: bool = True
    draining: bool = False
    counts: ClientCounters = field(default_factory=ClientCounters)
    config: ModelConfig | None = None
    """The network's config, for the sizes of traced points; a site sets it."""
    submitted: list[Submitted] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Bytes that count as captured until the answer is sent."""
    counters: EngineStats = field(default_factory=EngineStats)
    engine_info: EngineInfo = INFO
    adapters: LoraRegistry = field(default_factory=lambda: LoraRegistry(Settings(), (), lambda worker, message: None))

    async def submit(self, request: EngineRequest, request_context: RequestContext) -> FakeHandle:
        if self.refuse is not None and len(self.submitted) >= self.refuse_from:
            raise self.refuse
        task = request.task
        fails = self.fail_after is not None or (self.failure is not None and not isinstance(task, GenerateTask))
        outputs = []
        if isinstance(task, GenerateTask) or not fails:
            outputs = self._outputs(task, request.prompt_token_ids, request.encoder_token_ids)
        handle = FakeHandle(outputs[: self.fail_after], self.failure if fails else None, self.gate, request_context)
        self.submitted.append(Submitted.of(request, request_context, handle))
        return handle

    def check_room(
        self, num_requests: int = 1, *, request_context: RequestContext, is_inspection: bool = False
    ) -> None:
        if self.full is not None:
            raise self.full
        if self.full_of_text is not None and not is_inspection:
            raise self.full_of_text

    def end_background(self) -> None:
        """A fake engine has no rows of its own."""

    def hold_capture(self, num_bytes: int, *, request_context: RequestContext) -> None:
        self.held.append(num_bytes)

    async def describe(self) -> dict[str, Any]:
        return {"in_flight": len(self.submitted)}

    def ready(self) -> bool:
        return self.is_ready

    def worker_numbers(self) -> list[WorkerNumbers]:
        return [WorkerNumbers(self.is_ready, self.counters, len(self.submitted))]

    def reason(self) -> str:
        return "ready" if self.is_ready else "worker 0 is starting"

    def stats(self) -> EngineStats:
        return self.counters

    def info(self) -> EngineInfo:
        return self.engine_info

    def _outputs(self, task: Task, ids: tuple[int, ...], encoder_ids: tuple[int, ...] = ()) -> list[RequestOutput]:
        now = time.monotonic()
        timing = Timing(now, now, now, now)
        if isinstance(task, GenerateTask):
            return [self._token(task, ids, encoder_ids, i, timing) for i in range(self._num_tokens(task))]
        tensors = self._tensors(task, ids, encoder_ids)
        return [RequestOutput(uid=0, tensors=tensors, finish_reason="done", timing=timing)]

    def _tensors(self, task: Task, ids: tuple[int, ...], encoder_ids: tuple[int, ...]) -> dict[str, Array]:
        if isinstance(task, TraceTask):
            assert self.config is not None
            return {point.name: _array(traced(self.config, point, len(ids), len(encoder_ids))) for point in task.points}
        if isinstance(task, AttentionTask):
            part = task.capture.part
            num_queries = len(encoder_ids) if part == "encoder" and encoder_ids else len(ids)
            return capture_arrays(task.capture, num_queries, len(encoder_ids) if part == "cross" else num_queries)
        if isinstance(task, EmbedTask):
            return {"embedding": embedding(task, encoder_ids or ids)}
        if isinstance(task, ClassifyTask):
            assert self.config is not None
            assert self.config.classifier is not None
            return {"logits": logits(self.config.classifier.num_labels, ids)}
        assert isinstance(task, SparseTask), f"this fake does not answer a {type(task).__name__}"
        words = sorted(set(ids))
        return {
            "sparse.indices": _array(np.array(words, np.int32)),
            "sparse.values": _array(np.array(words, np.float32) / 4),
        }

    def _num_tokens(self, task: GenerateTask) -> int:
        if self.eos_after is None:
            return task.sampling.max_tokens
        return min(self.eos_after + 1, task.sampling.max_tokens)

    def _token(
        self, task: GenerateTask, ids: tuple[int, ...], encoder_ids: tuple[int, ...], i: int, timing: Timing
    ) -> RequestOutput:
        sampling = task.sampling
        is_last = i == self._num_tokens(task) - 1
        token_id = self.script[i % len(self.script)]
        reason = None
        if is_last:
            reason = "length"
            if self.eos_after is not None and i == self.eos_after:
                token_id, reason = (sampling.stop_token_ids or sampling.eos_token_ids)[0], "stop"
        tensors: dict[str, Array] = {}
        if task.attention is not None:
            num_keys = len(encoder_ids) if task.attention.part == "cross" else None
            tensors |= row_arrays(task.attention, len(ids) + i, num_keys)
            if i == 0 and task.attention_prompt:
                prompt = capture_arrays(task.attention, len(ids), num_keys)
                tensors |= {name.replace("attention", "attention.prompt"): value for name, value in prompt.items()}
        prompt_logprobs = None
        if i == 0 and sampling.prompt_logprobs is not None:
            scores = (None, *(logprobs(each, sampling.prompt_logprobs) for each in ids[1:]))
            prompt_logprobs = PromptLogprobs.of(scores)
        return RequestOutput(
            uid=0,
            token_id=token_id,
            logprobs=None
            if sampling.logprobs is None
            else logprobs(token_id, sampling.logprobs, sampling.logprob_token_ids),
            prompt_logprobs=prompt_logprobs,
            tensors=tensors,
            finish_reason=reason,
            stop_token_id=token_id if reason == "stop" else None,
            num_cached_tokens=2 if i == 0 or is_last else 0,
            timing=timing if is_last else None,
        )


def logprobs(token_id: int, num_top: int, wanted: Sequence[int] = ()) -> TokenLogprobs:
    """Return logprobs in which the token itself is the likeliest, at -0.5. The next ones are `wanted`, or the ids from
    65 on.
    """
    if wanted:
        return TokenLogprobs.of(token_id, -0.5, 1, tuple((each, -1.5 - i) for i, each in enumerate(wanted)))
    top = [(token_id, -0.5), *((65 + i, -1.5 - i) for i in range(num_top))][:num_top]
    return TokenLogprobs.of(token_id, -0.5, 1, tuple(top))


def number(layer: int, head: int, query: int, key: int) -> float:
    """Return the attention of the fake network: a multiple of 1/1024, exact in float16; no query sees later keys."""
    return 0.0 if key > query else (layer * 64 + head * 16 + query * 4 + key) / 1024


def _array(value: np.ndarray) -> Array:
    return Array(value.dtype.name, value.shape, value.tobytes())


def traced(config: ModelConfig, capture: PointCapture, length: int, encoder_length: int = 0) -> np.ndarray:
    """Return the values of the fake network at a point: 1000 (layer + 1) plus the index in the flattened array,
    divided by 8 (exact in float16 for small arrays); scores of later keys are masked.
    """
    point = BY_NAME[capture.point]
    own = encoder_length if capture.stack == "encoder" and config.kind == "encoder-decoder" else length
    shape = sizes(config, capture.stack, point, own, encoder_length)
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8
    whole += 0 if capture.layer is None else 1000 * (capture.layer + 1)
    if capture.point == "attn.hook_attn_scores":
        whole = np.where(np.arange(own) > np.arange(own)[:, None], np.float32("-inf"), whole)
    chosen = {"position": capture.positions, "query": capture.positions, "key": capture.keys}
    chosen |= {"head": capture.heads, "kv_head": capture.heads}
    for axis, name in enumerate(point.axes):
        indices = chosen.get(name)
        if indices is not None:
            whole = whole.take(indices, axis)
    return whole.astype(capture.dtype)


def capture_arrays(capture: AttentionCapture, num_queries: int, num_keys: int | None = None) -> dict[str, Array]:
    """Return arrays as the engine makes them, [first axis, query, key]."""
    queries = range(num_queries) if capture.queries is None else capture.queries
    keys = range(num_keys or num_queries) if capture.keys is None else capture.keys
    full = np.array([[[number(la, h, q, k) for k in keys] for q in queries] for la, h in capture.pairs], np.float32)
    if capture.reduce is not None:
        layers = list(dict.fromkeys(layer for layer, _ in capture.pairs))
        of_layer = [[i for i, (layer, _) in enumerate(capture.pairs) if layer == each] for each in layers]
        full = np.stack([getattr(full[chosen], capture.reduce)(axis=0) for chosen in of_layer])
    if capture.kind == "scores":
        full = np.where(np.array([[k > q for k in keys] for q in queries]), np.float32("-inf"), full)
    if capture.resize is not None:
        full = np.zeros((full.shape[0], capture.resize, capture.resize), np.float32)
    return _finished(capture, full, np.array(list(keys), np.int32))


def row_arrays(capture: AttentionCapture, length: int, num_keys: int | None = None) -> dict[str, Array]:
    """Return the row of a generated token: query = the last of `length` positions, [first axis, key]."""
    num_keys = num_keys or length
    rows = [[number(layer, head, length - 1, key) for key in range(num_keys)] for layer, head in capture.pairs]
    return _finished(capture, np.array(rows, np.float32), np.arange(num_keys, dtype=np.int32))


def _finished(capture: AttentionCapture, full: np.ndarray, keys: np.ndarray) -> dict[str, Array]:
    if capture.top_k is None:
        return {"attention": _array(full.astype(capture.dtype))}
    order = np.argsort(-full, axis=-1, kind="stable")[..., : capture.top_k]
    values, indices = np.take_along_axis(full, order, -1), keys[order].astype(np.int32)
    missing = [(0, 0)] * (full.ndim - 1) + [(0, max(0, capture.top_k - full.shape[-1]))]
    values, indices = np.pad(values, missing), np.pad(indices, missing, constant_values=-1)
    return {"attention": _array(values.astype(capture.dtype)), "attention.indices": _array(indices)}


def logits(num_labels: int, ids: tuple[int, ...]) -> Array:
    """Return logits that depend on all tokens: -1 to 1 for the first label, and less for each that follows."""
    first = sum(i * (place + 1) for place, i in enumerate(ids)) % 2001 / 1000 - 1
    return _array(np.array([first - label for label in range(num_labels)], np.float32))


def embedding(task: EmbedTask, ids: tuple[int, ...]) -> Array:
    """Return vectors that contain the token and the layer: [token, d] for pooling none, else the last token's."""
    layer = -1 if task.layer is None else task.layer
    rows = np.array([[i + layer + 0.25 * j for j in range(task.dimensions or HIDDEN_SIZE)] for i in ids], np.float32)
    return _array(rows if task.pooling == "none" else rows[-1])
