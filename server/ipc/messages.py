"""Defines the messages between the API process and a worker, as msgpack headers with the bytes of tensors next to them.

The engine's dataclasses are taken apart here and put together again at the other end. It knows nothing of sockets
(`server.ipc.link`), of HTTP or of the engine's work.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import msgspec

from model.hooks.points import Stack
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
from server.engine.request import EngineRequest, Intervention, Op, Task
from server.ipc.adapter_messages import AdapterLoaded, DropAdapter, LoadAdapter
from server.ipc.frames import Buffer
from server.ipc.prompt_logprobs import PromptLogprobs, WireLogprobs, wire_logprobs

T = TypeVar("T")


class MessageError(ValueError):
    """Raised for a message that cannot be understood: the worker that sent it is treated as lost."""


class WireArray(msgspec.Struct, array_like=True, frozen=True):
    """A tensor whose bytes are buffer number `buffer` of the frame."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int


class WireIntervention(msgspec.Struct, array_like=True, frozen=True):
    """An `Intervention` whose array, if it has one, travels next to the message."""

    stack: Stack
    layer: int | None
    point: str
    op: Op
    value: float | WireArray
    heads: tuple[int, ...] | None
    positions: tuple[int, ...] | None


class NewRequest(msgspec.Struct, tag="new", array_like=True, frozen=True):
    """API to worker: start this request."""

    uid: int
    prompt_token_ids: tuple[int, ...]
    arrival_time: float
    deadline: float | None
    task_name: str
    """The task's class: msgpack does not distinguish dataclasses."""
    task: msgspec.Raw
    encoder_token_ids: tuple[int, ...] = ()
    interventions: tuple[WireIntervention, ...] = ()
    priority: int = 0
    client: str = ""
    request_id: str = ""
    second_segment: int | None = None
    adapter: int = 0
    cache_salt: str = ""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """API to worker: this request is no longer wanted."""

    uid: int


class Describe(msgspec.Struct, tag="describe", array_like=True, frozen=True):
    """API to worker: report your state, in a `Described` with the same number."""

    number: int


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """Worker to API, first: the worker's identity. The model is not loaded yet."""

    worker_id: int
    pid: int


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """Worker to API: how much of the weights is read, in the loader's own units."""

    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Worker to API: the engine takes requests."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """Worker to API, last: why the engine could not be built, in one line."""

    message: str


class Heartbeat(msgspec.Struct, tag="beat", array_like=True, frozen=True):
    """Worker to API: the engine loop runs, with nothing to do, or a step or a load has made progress."""

    is_idle: bool = True


class Described(msgspec.Struct, tag="described", array_like=True, frozen=True):
    """Worker to API: the engine's state between two steps (`server.engine.state`)."""

    number: int
    state: dict[str, Any]


class IntegrityFailed(msgspec.Struct, tag="broken", array_like=True, frozen=True):
    """Worker to API, last: how the engine's counters contradict each other, in one line."""

    message: str


class WireOutput(msgspec.Struct, array_like=True, frozen=True):
    """A `RequestOutput` without the bytes of its tensors and without the log-probabilities of its prompt."""

    uid: int
    token_id: int | None
    logprobs: TokenLogprobs | None
    prompt_logprobs: WireLogprobs | None
    tensors: tuple[WireArray, ...]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    error: str | None
    num_cached_tokens: int
    timing: Timing | None


class RequestRefused(msgspec.Struct, array_like=True, frozen=True):
    """A request that the engine refused; the message says why."""

    uid: int
    message: str


class StepMessage(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """Worker to API: everything that one engine step brought. It is also sent without outputs when a gauge changed."""

    outputs: tuple[WireOutput, ...]
    stats: EngineStats
    refusals: tuple[RequestRefused, ...] = ()
    stepped: bool = True
    """Whether an engine step caused the message; False if only gauges changed, or its tokens are those that grammars
    force before a prompt is read.
    """
    token_uids: tuple[int, ...] = ()
    """Uids of requests to which the step brought a token and nothing else: they are in no other output."""
    token_ids: tuple[int, ...] = ()
    """The tokens of these requests, in the same order."""


ToWorker = NewRequest | Abort | Describe | LoadAdapter | DropAdapter
FromWorker = (
    Hello | Loading | Ready | LoadFailed | Heartbeat | StepMessage | Described | AdapterLoaded | IntegrityFailed
)

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_tasks: dict[str, msgspec.msgpack.Decoder[Task]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(Task)
}


def encode(message: ToWorker | FromWorker) -> bytes:
    return _encoder.encode(message)


def decode_to_worker(header: Buffer) -> ToWorker:
    """Decode a message to a worker. Raises MessageError."""
    return _decode(_to_worker, header, "a message to a worker")


def decode_from_worker(header: Buffer) -> FromWorker:
    """Decode a message from a worker. Raises MessageError."""
    return _decode(_from_worker, header, "a message of a worker")


def _decode(decoder: msgspec.msgpack.Decoder[T], encoded: Buffer | msgspec.Raw, what: str) -> T:
    try:
        return decoder.decode(encoded)
    except msgspec.MsgspecError as error:
        raise MessageError(f"not {what}: {error}") from None


_AS_THEY_ARE = tuple(
    name for name in NewRequest.__struct_fields__ if name not in ("task_name", "task", "interventions")
)
"""Fields of an `EngineRequest` that its message has too."""


def new_request(request: EngineRequest) -> tuple[NewRequest, list[Buffer]]:
    """Return the message, and the bytes of the interventions' arrays in the order in which it numbers them."""
    buffers: list[Buffer] = []
    message = NewRequest(
        task_name=type(request.task).__name__,
        task=msgspec.Raw(_encoder.encode(request.task)),
        interventions=tuple([_wire_intervention(wish, buffers) for wish in request.interventions]),
        **{name: getattr(request, name) for name in _AS_THEY_ARE},
    )
    return message, buffers


def engine_request(message: NewRequest, buffers: Sequence[Buffer]) -> EngineRequest:
    """Return the inverse of `new_request`. Raises MessageError for a malformed task, or a buffer that is missing."""
    return EngineRequest(
        task=_task(message),
        interventions=tuple([_intervention(wire, buffers) for wire in message.interventions]),
        **{name: getattr(message, name) for name in _AS_THEY_ARE},
    )


def _task(message: NewRequest) -> Task:
    decoder = _tasks.get(message.task_name)
    if decoder is None:
        raise MessageError(f"request {message.uid} has a task {message.task_name!r}; known are {', '.join(_tasks)}")
    return _decode(decoder, message.task, f"a {message.task_name}")


def _wire_intervention(wish: Intervention, buffers: list[Buffer]) -> WireIntervention:
    value = _wire_array(wish.point, wish.value, buffers) if isinstance(wish.value, Array) else wish.value
    return WireIntervention(wish.stack, wish.layer, wish.point, wish.op, value, wish.heads, wish.positions)


def _intervention(wire: WireIntervention, buffers: Sequence[Buffer]) -> Intervention:
    value = _array(wire.value, buffers) if isinstance(wire.value, WireArray) else wire.value
    places = {"heads": wire.heads, "positions": wire.positions}
    return Intervention(stack=wire.stack, layer=wire.layer, point=wire.point, op=wire.op, value=value, **places)


def step_message(
    step: StepOutput, refusals: Sequence[RequestRefused] = (), *, stepped: bool = True
) -> tuple[StepMessage, list[Buffer]]:
    """Return one message for one step, and the tensors' bytes in the order in which the message numbers them."""
    buffers: list[Buffer] = []
    outputs, token_uids, token_ids = [], [], []
    told: set[int] = set()  # a request may have several tokens, and the bare ones are read before all others
    for output in step.outputs:
        if output.token_id is None or not is_bare(output) or output.uid in told:
            told.add(output.uid)
            outputs.append(_wire_output(output, buffers))
        else:
            token_uids.append(output.uid)
            token_ids.append(output.token_id)
    message = StepMessage(tuple(outputs), step.stats, tuple(refusals), stepped, tuple(token_uids), tuple(token_ids))
    return message, buffers


def is_bare(output: RequestOutput) -> bool:
    """Return whether an output says no more than its token. The number of tokens from the prefix cache was sent with
    the first output, and is sent again with the last.
    """
    return (
        output.timing is None
        and output.logprobs is None
        and output.finish_reason is None
        and not output.tensors
        and output.prompt_logprobs is None
        and output.error is None
    )


def _wire_output(output: RequestOutput, buffers: list[Buffer]) -> WireOutput:
    return WireOutput(
        output.uid,
        output.token_id,
        output.logprobs,
        None if output.prompt_logprobs is None else wire_logprobs(output.prompt_logprobs, buffers),
        tuple(_wire_array(name, array, buffers) for name, array in output.tensors.items()),
        output.finish_reason,
        output.stop_token_id,
        output.error,
        output.num_cached_tokens,
        output.timing,
    )


def request_output(wire: WireOutput, buffers: Sequence[Buffer]) -> RequestOutput:
    """Return the output that `step_message` encoded. Raises MessageError if a buffer is missing."""
    return RequestOutput(
        uid=wire.uid,
        token_id=wire.token_id,
        logprobs=wire.logprobs,
        prompt_logprobs=None if wire.prompt_logprobs is None else _prompt_logprobs(wire.prompt_logprobs, buffers),
        tensors={array.name: _array(array, buffers) for array in wire.tensors},
        finish_reason=wire.finish_reason,
        stop_token_id=wire.stop_token_id,
        error=wire.error,
        num_cached_tokens=wire.num_cached_tokens,
        timing=wire.timing,
    )


def _prompt_logprobs(wire: WireLogprobs, buffers: Sequence[Buffer]) -> PromptLogprobs:
    """Return the log-probabilities over their buffers. Raises MessageError."""
    if not 0 <= wire.buffer <= wire.end <= len(buffers):
        named = f"{wire.buffer} to {wire.end} of {len(buffers)}"
        raise MessageError(f"{wire.length} log-probabilities name buffers {named}")
    return PromptLogprobs(wire.length, buffers[wire.buffer : wire.end])


def _wire_array(name: str, array: Array, buffers: list[Buffer]) -> WireArray:
    """Return what the message says of an array, and add its bytes to `buffers`."""
    buffers.append(array.data)
    return WireArray(name, array.dtype, array.shape, len(buffers) - 1)


def _array(wire: WireArray, buffers: Sequence[Buffer]) -> Array:
    """Return an array over the bytes of a frame, without a copy. Raises MessageError."""
    if not 0 <= wire.buffer < len(buffers):
        raise MessageError(f"tensor {wire.name!r} names buffer {wire.buffer} of {len(buffers)}")
    return Array(wire.dtype, wire.shape, memoryview(buffers[wire.buffer]))
