"""Messages between the API process and a worker: msgpack headers, with the bytes of tensors next to them."""

import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from lightwell.server.engine.messages.outputs import (
    Array,
    EngineInfo,
    EngineStats,
    PromptLogprobs,
    RequestOutput,
    StepOutput,
)
from lightwell.server.engine.messages.request import BACKGROUND, EngineRequest
from lightwell.server.ipc.frames import Buffer

T = TypeVar("T")


class MessageError(ValueError):
    """A message cannot be decoded. A worker that sends one is treated as lost; a request of this kind is refused."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """API to worker: this request is no longer wanted."""

    uid: int


class Describe(msgspec.Struct, tag="describe", array_like=True, frozen=True):
    """API to worker: report your state, in a `Described` with the same number."""

    number: int


class LoadAdapter(msgspec.Struct, tag="load-adapter", array_like=True, frozen=True):
    """API to worker: load the LoRA adapter in this folder, under this number."""

    number: int
    folder: str
    root: str | None = None
    """The folder that must contain the adapter's files, after following links; None means any folder."""


class DropAdapter(msgspec.Struct, tag="drop-adapter", array_like=True, frozen=True):
    """API to worker: remove this adapter; requests that have begun keep it."""

    number: int


class AdapterLoaded(msgspec.Struct, tag="adapter", array_like=True, frozen=True):
    """Worker to API: the adapter is loaded, or the reason why it cannot be served, in one line."""

    number: int
    error: str | None


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """Worker to API, first: the worker's identity. The model is not loaded yet."""

    worker_id: int
    pid: int


class Loading(msgspec.Struct, tag="loading", array_like=True, frozen=True):
    """Worker to API: the progress of loading, in the loader's units."""

    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Worker to API: the engine takes requests."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """Worker to API, last: the reason why the engine could not be built, in one line."""

    message: str


class Heartbeat(msgspec.Struct, tag="beat", array_like=True, frozen=True):
    """Worker to API: the engine loop is idle, or a step or a load has made progress."""

    is_idle: bool = True


class Described(msgspec.Struct, tag="described", array_like=True, frozen=True):
    """Worker to API: the engine's state between two steps (`server.engine.state`)."""

    number: int
    state: dict[str, Any]


class IntegrityFailed(msgspec.Struct, tag="broken", array_like=True, frozen=True):
    """Worker to API, last: the contradiction in the engine's state, in one line."""

    message: str


class RequestRefused(msgspec.Struct, array_like=True, frozen=True):
    """A request that the engine rejected, with the reason."""

    uid: int
    message: str


class Admitted(msgspec.Struct, tag="admitted", array_like=True, frozen=True):
    """Main process to API process: the request was handed to a worker."""

    uid: int


class RequestFailed(msgspec.Struct, tag="request-failed", array_like=True, frozen=True):
    """Main process to API process: the request was refused, or ended, with this error (`server.http.errors`)."""

    uid: int
    status: int
    message: str
    error_type: str
    param: str | None
    code: str | None
    retry_after: int | None


class Question(msgspec.Struct, tag="question", array_like=True, frozen=True):
    """Main process to API process or back: a call of the function `name`. Number 0 expects no `Reply`."""

    number: int
    name: str
    value: Any = None


class Reply(msgspec.Struct, tag="reply", array_like=True, frozen=True):
    """The result of the question with this number."""

    number: int
    value: Any


class StepMessage(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """Worker to API: the outputs of one engine step. It is also sent without outputs when a gauge changed."""

    outputs: tuple[RequestOutput, ...]
    stats: EngineStats
    refusals: tuple[RequestRefused, ...] = ()
    stepped: bool = True
    """Whether an engine step caused the message; False if only gauges changed, or grammars forced the tokens before
    their prompt was computed.
    """
    token_uids: tuple[int, ...] = ()
    """Uids of requests with a token and nothing else from this step: they have no other output."""
    token_ids: tuple[int, ...] = ()
    """The tokens of these requests, in the same order."""


ToWorker = EngineRequest | Abort | Describe | LoadAdapter | DropAdapter
FromWorker = (
    Hello
    | Loading
    | Ready
    | LoadFailed
    | Heartbeat
    | StepMessage
    | Described
    | AdapterLoaded
    | IntegrityFailed
    | Admitted
    | RequestFailed
)
BetweenProcesses = Question | Reply


class _SentArray(msgspec.Struct, array_like=True, gc=False):
    """An `Array` in a message."""

    dtype: str
    shape: tuple[int, ...]
    buffer: int


class _SentLogprobs(msgspec.Struct, array_like=True, gc=False):
    """`PromptLogprobs` in a message."""

    length: int
    buffer: int
    end: int


class _Addressed(msgspec.Struct, array_like=True):
    """The beginning of an `EngineRequest` in a message."""

    tag: str
    uid: int


class _Ranked(msgspec.Struct, array_like=True):
    """The beginning of an `EngineRequest` in a message, up to its priority."""

    tag: str
    uid: int
    prompt_token_ids: msgspec.Raw
    task: msgspec.Raw
    encoder_token_ids: msgspec.Raw
    second_segment: msgspec.Raw
    interventions: msgspec.Raw
    capture_bytes: msgspec.Raw
    arrival_time: msgspec.Raw
    deadline: msgspec.Raw
    priority: int


def encode(message: ToWorker | FromWorker | BetweenProcesses) -> tuple[bytes, list[Buffer]]:
    """Return the header of a frame, and its buffers: the bytes of tensors and of a prompt's log-probabilities."""
    buffers: list[Buffer] = []

    def set_aside(value: object) -> tuple[Any, ...]:
        first = len(buffers)
        match value:
            case Array():
                buffers.append(value.data)
                return value.dtype, value.shape, first
            case PromptLogprobs():
                buffers.extend(value.pieces)
                return len(value), first, len(buffers)
        raise NotImplementedError(f"{type(value).__name__} cannot be sent")

    return msgspec.msgpack.Encoder(enc_hook=set_aside).encode(message), buffers


class _Decoder(threading.local, Generic[T]):
    """Reads one kind of message. Each thread has a decoder of its own: each `LLM` of a process reads in its thread."""

    def __init__(self, kind: Any, name: str) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind, dec_hook=self._fetch)
        self._name = name
        self._buffers: Sequence[Buffer] = ()

    def decode(self, header: Buffer, buffers: Sequence[Buffer]) -> T:
        """Return the message of a frame; its tensors are over the frame's buffers, not copies. Raises MessageError."""
        self._buffers = buffers
        try:
            return self._decoder.decode(header)
        except msgspec.MsgspecError as error:
            raise MessageError(f"not {self._name}: {error}") from None
        finally:
            self._buffers = ()

    def _fetch(self, kind: type, sent: Any) -> Array | PromptLogprobs:
        """Return the value that `set_aside` took. Raises ValueError if a buffer is missing."""
        num_buffers = len(self._buffers)
        if kind is Array:
            tensor = msgspec.convert(sent, _SentArray)
            if not 0 <= tensor.buffer < num_buffers:
                raise ValueError(f"a tensor names buffer {tensor.buffer} of {num_buffers}")
            return Array(tensor.dtype, tensor.shape, memoryview(self._buffers[tensor.buffer]))
        scores = msgspec.convert(sent, _SentLogprobs)
        if not 0 <= scores.buffer <= scores.end <= num_buffers:
            raise ValueError(f"log-probabilities name buffers {scores.buffer} to {scores.end} of {num_buffers}")
        return PromptLogprobs(scores.length, self._buffers[scores.buffer : scores.end])


_to_worker: _Decoder[ToWorker] = _Decoder(ToWorker, "a message to a worker")
_from_worker: _Decoder[FromWorker] = _Decoder(FromWorker, "a message of a worker")
_between: _Decoder[BetweenProcesses] = _Decoder(BetweenProcesses, "a question or a reply")
_abort: _Decoder[Abort] = _Decoder(Abort, "an abort")
_ranked: _Decoder[_Ranked] = _Decoder(_Ranked, "a request")
_addressed: _Decoder[_Addressed] = _Decoder(_Addressed, "a request")


def decode_to_worker(header: Buffer, buffers: Sequence[Buffer] = ()) -> ToWorker:
    """Decode a message to a worker. Raises MessageError."""
    return _to_worker.decode(header, buffers)


def uid_of(header: Buffer) -> int:
    """Return the uid of a request that cannot be decoded. Raises MessageError for anything else."""
    return _addressed.decode(header, ()).uid


def aborted_uid(header: Buffer) -> int | None:
    """Return the uid of an `Abort`, or None for any other message."""
    try:
        return _abort.decode(header, ()).uid
    except MessageError:
        return None


def is_urgent(header: Buffer) -> bool:
    """Return whether a message is a request other than a row of a batch."""
    try:
        return _ranked.decode(header, ()).priority < BACKGROUND
    except MessageError:
        return False


def decode_from_worker(header: Buffer, buffers: Sequence[Buffer] = ()) -> FromWorker:
    """Decode a message from a worker. Raises MessageError."""
    return _from_worker.decode(header, buffers)


def decode_between(header: Buffer) -> BetweenProcesses:
    """Decode a question or a reply. Raises MessageError."""
    return _between.decode(header, ())


def step_message(step: StepOutput, refusals: Sequence[RequestRefused] = (), *, stepped: bool = True) -> StepMessage:
    """Return the message of a step."""
    outputs, token_uids, token_ids = [], [*step.tokens], [*step.tokens.values()]
    others: set[int] = set()  # a request may have several tokens, and the bare ones are read first
    for output in step.others:
        if output.token_id is None or not is_bare(output) or output.uid in others:
            others.add(output.uid)
            outputs.append(output)
        else:
            token_uids.append(output.uid)
            token_ids.append(output.token_id)
    return StepMessage(tuple(outputs), step.stats, tuple(refusals), stepped, tuple(token_uids), tuple(token_ids))


def is_bare(output: RequestOutput) -> bool:
    """Return whether an output contains only a token. (The first and the last output contain `num_cached_tokens`.)"""
    return (
        output.timing is None
        and not output.num_rejected
        and not output.num_accepted
        and output.logprobs is None
        and output.finish_reason is None
        and not output.tensors
        and output.prompt_logprobs is None
        and output.error is None
    )
