"""What the API process and a worker say to each other, as msgpack headers with the bytes of tensors beside them.

The engine's dataclasses are taken apart here and put together again at the other end. Knows nothing of sockets
(`server.ipc.link`), of HTTP or of the engine's work.
"""

from collections.abc import Sequence
from typing import Any, overload

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
from server.engine.request import (
    AttentionTask,
    EmbedTask,
    EngineRequest,
    GenerateTask,
    HeadScoresTask,
    Intervention,
    LensTask,
    Op,
    Task,
    TraceTask,
    WeightsTask,
)

Buffer = bytes | bytearray | memoryview

LOGPROBS_PIECE = 64
"""Positions of a prompt whose log-probabilities travel, are read and are written together: a millisecond or a few."""


class MessageError(ValueError):
    """A message that cannot be understood: the worker that sent it is treated as lost."""


class WireIntervention(msgspec.Struct, array_like=True, frozen=True):
    """An `Intervention`; its value is the number, or an array whose bytes are buffer number `buffer` of the frame."""

    stack: Stack
    layer: int | None
    point: str
    op: Op
    heads: tuple[int, ...] | None
    positions: tuple[int, ...] | None
    number: float
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    buffer: int = 0


class WireWeights(msgspec.Struct, array_like=True, frozen=True):
    """A `WeightsTask`: msgpack does not tell tuples of numbers from tuples of pairs."""

    question: str
    options: dict[str, Any]


class NewRequest(msgspec.Struct, tag="new", array_like=True, frozen=True):
    """API to worker: start this request. Exactly one of the tasks is set (msgpack tells no dataclasses apart)."""

    uid: int
    prompt_token_ids: tuple[int, ...]
    arrival_time: float
    deadline: float | None
    generate: GenerateTask | None = None
    attention: AttentionTask | None = None
    embed: EmbedTask | None = None
    trace: TraceTask | None = None
    lens: LensTask | None = None
    heads: HeadScoresTask | None = None
    weights: WireWeights | None = None
    encoder_token_ids: tuple[int, ...] = ()
    interventions: tuple[WireIntervention, ...] = ()
    priority: int = 0
    client: str = ""
    request_id: str = ""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """API to worker: nobody waits for this request any more."""

    uid: int


class Describe(msgspec.Struct, tag="describe", array_like=True, frozen=True):
    """API to worker: say what you are doing, in a `Described` with the same number."""

    number: int


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """Worker to API, first: who I am. The model is not loaded yet."""

    worker_id: int
    pid: int


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """Worker to API: how far the weights are read, in the loader's own units."""

    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Worker to API: the engine takes requests."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """Worker to API, last: the engine could not be made. One line."""

    message: str


class Heartbeat(msgspec.Struct, tag="beat", array_like=True, frozen=True):
    """Worker to API: the engine loop turns, with nothing to do."""


class Described(msgspec.Struct, tag="described", array_like=True, frozen=True):
    """Worker to API: the engine's state between two steps (`server.engine.state`)."""

    number: int
    state: dict[str, Any]


class IntegrityFailed(msgspec.Struct, tag="broken", array_like=True, frozen=True):
    """Worker to API, last: the engine's books contradict each other. One line."""

    message: str


class WireArray(msgspec.Struct, array_like=True, frozen=True):
    """A tensor whose bytes are buffer number `buffer` of the frame."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int


class WireLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """A prompt's log-probabilities, `length` of them in buffers from number `buffer` on, LOGPROBS_PIECE in each.

    The message itself is read at once and holds up the event loop; these are read when they are asked for.
    """

    length: int
    buffer: int


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
    """The engine would not take this request; the message says why."""

    uid: int
    message: str


class StepMessage(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """Worker to API: all that one engine step brought. Also sent without outputs when a gauge changed."""

    outputs: tuple[WireOutput, ...]
    stats: EngineStats
    refusals: tuple[RequestRefused, ...] = ()
    stepped: bool = True
    """False when no engine step stands behind it, only a change of the gauges."""
    token_uids: tuple[int, ...] = ()
    """The requests to which it brought a token and nothing else: they are in no other output."""
    token_ids: tuple[int, ...] = ()
    """Their tokens, in the same order."""


ToWorker = NewRequest | Abort | Describe
FromWorker = Hello | Loading | Ready | LoadFailed | Heartbeat | StepMessage | Described | IntegrityFailed

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_logprobs: msgspec.msgpack.Decoder[tuple[TokenLogprobs | None, ...]] = msgspec.msgpack.Decoder(
    tuple[TokenLogprobs | None, ...]
)


def encode(message: ToWorker | FromWorker) -> bytes:
    return _encoder.encode(message)


def decode_to_worker(header: Buffer) -> ToWorker:
    """Raises MessageError."""
    try:
        return _to_worker.decode(header)
    except msgspec.MsgspecError as error:
        raise MessageError(f"not a message to a worker: {error}") from None


def decode_from_worker(header: Buffer) -> FromWorker:
    """Raises MessageError."""
    try:
        return _from_worker.decode(header)
    except msgspec.MsgspecError as error:
        raise MessageError(f"not a message of a worker: {error}") from None


def new_request(request: EngineRequest) -> tuple[NewRequest, list[Buffer]]:
    """The message, and the bytes of the interventions' arrays in the order in which it numbers them."""
    task = request.task
    buffers: list[Buffer] = []
    message = NewRequest(
        uid=request.uid,
        prompt_token_ids=request.prompt_token_ids,
        arrival_time=request.arrival_time,
        deadline=request.deadline,
        generate=task if isinstance(task, GenerateTask) else None,
        attention=task if isinstance(task, AttentionTask) else None,
        embed=task if isinstance(task, EmbedTask) else None,
        trace=task if isinstance(task, TraceTask) else None,
        lens=task if isinstance(task, LensTask) else None,
        heads=task if isinstance(task, HeadScoresTask) else None,
        weights=WireWeights(task.question, task.options) if isinstance(task, WeightsTask) else None,
        encoder_token_ids=request.encoder_token_ids,
        interventions=tuple(_wire_intervention(wish, buffers) for wish in request.interventions),
        priority=request.priority,
        client=request.client,
        request_id=request.request_id,
    )
    return message, buffers


def engine_request(message: NewRequest, buffers: Sequence[Buffer]) -> EngineRequest:
    """The inverse of `new_request`. Raises MessageError when no task is set, or a buffer is missing."""
    return EngineRequest(
        uid=message.uid,
        prompt_token_ids=message.prompt_token_ids,
        task=_task(message),
        arrival_time=message.arrival_time,
        deadline=message.deadline,
        encoder_token_ids=message.encoder_token_ids,
        interventions=tuple(_intervention(wire, buffers) for wire in message.interventions),
        priority=message.priority,
        client=message.client,
        request_id=message.request_id,
    )


def _task(message: NewRequest) -> Task:
    if message.weights is not None:
        options = {name: _as_tuples(value) for name, value in message.weights.options.items()}
        return WeightsTask(question=message.weights.question, options=options)
    task = message.generate or message.attention or message.embed or message.trace or message.lens or message.heads
    if task is None:
        raise MessageError(f"request {message.uid} has no task")
    return task


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _wire_intervention(wish: Intervention, buffers: list[Buffer]) -> WireIntervention:
    place = (wish.stack, wish.layer, wish.point, wish.op, wish.heads, wish.positions)
    if isinstance(wish.value, Array):
        buffers.append(wish.value.data)
        return WireIntervention(*place, 0.0, wish.value.dtype, wish.value.shape, len(buffers) - 1)
    return WireIntervention(*place, wish.value)


def _intervention(wire: WireIntervention, buffers: Sequence[Buffer]) -> Intervention:
    return Intervention(
        stack=wire.stack,
        layer=wire.layer,
        point=wire.point,
        op=wire.op,
        value=wire.number if wire.dtype is None else _array(wire.point, wire.dtype, wire.shape, wire.buffer, buffers),
        heads=wire.heads,
        positions=wire.positions,
    )


def step_message(
    step: StepOutput, refusals: Sequence[RequestRefused] = (), *, stepped: bool = True
) -> tuple[StepMessage, list[Buffer]]:
    """One message for one step, and the tensors' bytes in the order in which the message numbers them."""
    buffers: list[Buffer] = []
    outputs, token_uids, token_ids = [], [], []
    for output in step.outputs:
        if output.token_id is None or not is_bare(output):
            outputs.append(_wire_output(output, buffers))
        else:
            token_uids.append(output.uid)
            token_ids.append(output.token_id)
    message = StepMessage(tuple(outputs), step.stats, tuple(refusals), stepped, tuple(token_uids), tuple(token_ids))
    return message, buffers


def is_bare(output: RequestOutput) -> bool:
    """Whether it says no more than its token. What came from the prefix cache was said with the first one, and is
    again with the last.
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
    tensors: tuple[WireArray, ...] = ()
    if output.tensors:
        first = len(buffers)
        buffers.extend(array.data for array in output.tensors.values())
        tensors = tuple(
            WireArray(name, array.dtype, array.shape, first + i)
            for i, (name, array) in enumerate(output.tensors.items())
        )
    return WireOutput(
        output.uid,
        output.token_id,
        output.logprobs,
        None if output.prompt_logprobs is None else _wire_logprobs(output.prompt_logprobs, buffers),
        tensors,
        output.finish_reason,
        output.stop_token_id,
        output.error,
        output.num_cached_tokens,
        output.timing,
    )


def _wire_logprobs(logprobs: Sequence[TokenLogprobs | None], buffers: list[Buffer]) -> WireLogprobs:
    wire = WireLogprobs(len(logprobs), len(buffers))
    starts = range(0, len(logprobs), LOGPROBS_PIECE)
    buffers.extend(_encoder.encode(logprobs[start : start + LOGPROBS_PIECE]) for start in starts)
    return wire


class _PromptLogprobs(Sequence[TokenLogprobs | None]):
    """Log-probabilities that are read from their buffers when they are asked for, a piece at a time."""

    def __init__(self, length: int, pieces: Sequence[Buffer]) -> None:
        self._length = length
        self._pieces = pieces

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs | None]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs | None] | None:
        positions = range(self._length)[index]
        if isinstance(positions, int):
            return self._piece(positions // LOGPROBS_PIECE)[positions % LOGPROBS_PIECE]
        read = {number: self._piece(number) for number in {position // LOGPROBS_PIECE for position in positions}}
        return [read[position // LOGPROBS_PIECE][position % LOGPROBS_PIECE] for position in positions]

    def _piece(self, number: int) -> tuple[TokenLogprobs | None, ...]:
        return _logprobs.decode(self._pieces[number])


def _prompt_logprobs(wire: WireLogprobs, buffers: Sequence[Buffer]) -> _PromptLogprobs:
    """Raises MessageError."""
    end = wire.buffer - (-wire.length // LOGPROBS_PIECE)
    if not 0 <= wire.buffer <= end <= len(buffers):
        raise MessageError(f"{wire.length} log-probabilities name buffers {wire.buffer} to {end} of {len(buffers)}")
    return _PromptLogprobs(wire.length, buffers[wire.buffer : end])


def request_output(wire: WireOutput, buffers: Sequence[Buffer]) -> RequestOutput:
    """The inverse of what `step_message` did to one output. Raises MessageError when a buffer is missing."""
    tensors = {
        array.name: _array(array.name, array.dtype, array.shape, array.buffer, buffers) for array in wire.tensors
    }
    return RequestOutput(
        uid=wire.uid,
        token_id=wire.token_id,
        logprobs=wire.logprobs,
        prompt_logprobs=None if wire.prompt_logprobs is None else _prompt_logprobs(wire.prompt_logprobs, buffers),
        tensors=tensors,
        finish_reason=wire.finish_reason,
        stop_token_id=wire.stop_token_id,
        error=wire.error,
        num_cached_tokens=wire.num_cached_tokens,
        timing=wire.timing,
    )


def _array(name: str, dtype: str, shape: tuple[int, ...], buffer: int, buffers: Sequence[Buffer]) -> Array:
    """An array over the bytes of a frame, without a copy. Raises MessageError."""
    if not 0 <= buffer < len(buffers):
        raise MessageError(f"tensor {name!r} names buffer {buffer} of {len(buffers)}")
    return Array(dtype, shape, memoryview(buffers[buffer]))
