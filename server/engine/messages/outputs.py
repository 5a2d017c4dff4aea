"""The engine's outputs, as plain data. An `Array` is a tensor as raw bytes with its numpy dtype and shape."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from struct import Struct
from typing import Any, Literal, overload

import msgspec

LOGPROBS_PIECE = 64
"""Number of prompt positions whose log-probabilities are encoded together, in one to a few milliseconds."""

_ALTERNATIVE = Struct("<id")
"""Token id and log-probability of a packed alternative."""

FinishReason = Literal[
    "stop", "length", "done", "abort", "deadline", "error", "memory", "overflow", "grammar", "prefix"
]  # fmt: skip
"""Why a request ended. stop: an end or stop token, or a grammar after which nothing may follow; length: max_tokens;
done: a task without tokens is complete; memory: there was no memory for it; overflow: the request produced non-finite
numbers in place of finite ones; grammar: its grammar cannot be compiled or followed; prefix: its grammar does not allow
the beginning of the text; the other names explain themselves.
"""


class Array:
    """One tensor, in C order and little endian. Its bytes travel next to the message; msgspec would write the bytes of
    a dataclass into the message.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: memoryview | bytes) -> None:
        """dtype: numpy's name of the type: float32, float16, uint8, int32."""
        self.dtype, self.shape, self.data = dtype, shape, data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    __hash__ = None  # type: ignore[assignment]  # the bytes may be those of a buffer

    def __repr__(self) -> str:
        return f"Array({self.dtype!r}, {self.shape}, {len(self.data)} bytes)"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (natural logarithm) at one position, from the model's own distribution (before temperature).

    The alternatives are packed: an answer may hold millions, too many for objects and for garbage collection.
    """

    token_id: int
    logprob: float
    rank: int
    """The token's rank; 1 is the most likely."""
    packed_top: bytes = b""

    @classmethod
    def of(cls, token_id: int, logprob: float, rank: int, top: Iterable[tuple[int, float]] = ()) -> "TokenLogprobs":
        """Return the log-probabilities of a token with alternatives, most likely first."""
        return cls(token_id, logprob, rank, b"".join([_ALTERNATIVE.pack(*each) for each in top]))

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """Return the alternatives, most likely first."""
        return tuple(_ALTERNATIVE.iter_unpack(self.packed_top))


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[TokenLogprobs | None, ...]] = msgspec.msgpack.Decoder(
    tuple[TokenLogprobs | None, ...]
)


class PromptLogprobs(Sequence[TokenLogprobs | None]):
    """Log-probabilities of a prompt's tokens, as bytes next to the message that are decoded a piece at a time: decoding
    all of them with the message would block the event loop for tens of milliseconds.
    """

    def __init__(self, length: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Raises ValueError if the number of pieces is wrong for `length` log-probabilities."""
        if length < 0 or len(pieces) != -(-length // LOGPROBS_PIECE):
            raise ValueError(f"{length} log-probabilities in {len(pieces)} pieces")
        self._length = length
        self.pieces = pieces

    @classmethod
    def of(cls, logprobs: Sequence[TokenLogprobs | None]) -> "PromptLogprobs":
        starts = range(0, len(logprobs), LOGPROBS_PIECE)
        return cls(len(logprobs), [_encoder.encode(logprobs[start : start + LOGPROBS_PIECE]) for start in starts])

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
        return _decoder.decode(self.pieces[number])


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a request in CLOCK_MONOTONIC seconds; None for stages that it did not reach."""

    arrival: float
    scheduled: float | None = None
    first_token: float | None = None
    """Time of the first chosen token; forced tokens before it are sent earlier."""
    finished: float | None = None


class RequestOutput(msgspec.Struct, kw_only=True, array_like=True):
    """The output of one step for one request: at most one token, any tensors, and the end if this is the last one."""

    uid: int
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, sent with the first generated token; the first entry is None."""
    tensors: dict[str, Array] = {}
    """The tensors by name: attention | attention.indices | attention.prompt | attention.prompt.indices | embedding, or
    the names in the documentation of each task (`server.engine.messages.request`).

    `attention` of an AttentionTask is [pair, query, key]; of a generated token [pair, key]. `embedding` is [d], or
    [token, d] when pooling is none, float32.
    """
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The end or stop token that ended the request, or None if something else did."""
    error: str | None = None
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache."""
    timing: Timing | None = None
    """The request's times, sent with the first token and with its last output."""
    num_accepted: int = 0
    """Drafts of the text so far that became its tokens; sent with the last token of each step."""
    num_rejected: int = 0
    """The other drafts so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The settings that an engine chose when it was built."""

    max_model_len: int
    """Maximum tokens of prompt and answer together; for an encoder-decoder, only the decoder's."""
    num_blocks: int
    block_size: int
    dtype: str
    device: str
    reuses_prefixes: bool = True
    """Whether the prefix cache can serve this network."""
    batch_invariant: bool = False
    """Whether an answer's bits depend only on its own request."""
    speculation: str = "off"
    """The source of drafts: auto | off | ngram | draft."""
    kernels: str = "torch"
    """The kernels in use: native (our own) or torch (plain torch operations)."""
    kernel_level: str | None = None
    """CPU level that native kernels run at."""
    kernel_arithmetic: str | None = None
    """How native kernels multiply by bfloat16 weights: float32 | bf16-dot."""
    activations: str = "dtype"
    """The precision of rows that are multiplied by weights of 8 or 4 bits: dtype (the network's) | int8."""
    num_matrices: int = 0
    """Matrices of the network's blocks and head."""
    num_grouped: int = 0
    """Number of these matrices that are stored as integers with scales of groups."""
    grouped_bytes: int = 0
    """Bytes of these."""
    memory_room: int | None = None
    """Bytes that the worker's process may take in addition to the loaded model; None if nothing limits it."""


def _metric(text: str, *, default: float = 0, of_workers: Callable[[Iterable[Any]], Any] = sum) -> Any:
    """Return a field of EngineStats that is a metric with this help text. of_workers: reduces workers' values."""
    return field(default=default, metadata={"text": text, "of_workers": of_workers})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of gauges, and of counters that only grow during the life of a worker; counters' names end in
    `_total`. Each field with a text is the metric `lightwell_<field>`.
    """

    num_requests_running: int = _metric("Requests in the running batch.")
    num_requests_waiting: int = _metric("Requests that wait for a place in the batch.")
    kv_cache_usage_ratio: float = _metric("Used part of the KV cache, from 0 to 1.", default=0.0, of_workers=max)
    kv_cache_committed_bytes: int = _metric(
        "Bytes of the KV cache that requests have used; on a CPU the rest takes no memory."
    )
    inflight_capture_bytes: int = _metric("Bytes of captured tensors that are not yet sent.")
    prompt_tokens_total: int = _metric("Prompt tokens processed.")
    generation_tokens_total: int = _metric("Tokens generated.")
    num_preemptions_total: int = _metric("Requests put back to waiting because the KV cache was full.")
    prefix_cache_queries_total: int = _metric("Prompt tokens looked up in the prefix cache.")
    prefix_cache_hits_total: int = _metric("Prompt tokens found in the prefix cache.")
    capture_bytes_total: int = _metric("Bytes of attention and embeddings captured.")
    capture_seconds_total: float = _metric(
        "Time spent capturing, in seconds; on a GPU only the host's part.", default=0.0
    )
    engine_steps_total: int = _metric("Forward passes of the engine.")
    steps_abandoned_total: int = _metric(
        "Forward passes abandoned because the requests with most of their tokens had ended."
    )
    """Steps that were cancelled between two pieces of their work; they are not counted as steps."""
    computed_tokens_total: int = _metric("Token positions computed by the network, including captures.")
    grammars_compiled_total: int = _metric("Grammars compiled for requests.")
    grammars_cached_total: int = _metric("Requests with a grammar that was already compiled.")
    grammar_compile_seconds_total: float = _metric(
        "Time spent compiling grammars, in seconds, in a thread of its own.", default=0.0
    )
    forced_tokens_total: int = _metric("Generated tokens that a grammar forced, and that took no step of their own.")
    drafts_accepted_total: int = 0
    """Drafts that became tokens; with the next one, the metric `speculation_tokens_total`."""
    drafts_rejected_total: int = 0
    iteration_tokens: int = 0
    """Tokens of the last step."""

    @classmethod
    def of_workers(cls, stats: Sequence["EngineStats"]) -> "EngineStats":
        """Return the stats of at least one worker as one."""
        reduced = {
            each.name: each.metadata.get("of_workers", sum)(getattr(one, each.name) for one in stats)
            for each in fields(cls)
        }
        return cls(**reduced)

    def counters(self) -> "EngineStats":
        """Return the counters only: the gauges are 0."""
        totals = {each.name: getattr(self, each.name) for each in fields(self) if each.name.endswith("_total")}
        return EngineStats(**totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The outputs of one step."""

    stats: EngineStats
    others: tuple[RequestOutput, ...] = ()
    """All outputs with more than a token."""
    tokens: dict[int, int] = field(default_factory=dict)
    """The tokens of the requests, by uid, with a token and nothing else from this step."""

    @property
    def outputs(self) -> tuple[RequestOutput, ...]:
        """Return all outputs."""
        return (*[RequestOutput(uid=uid, token_id=token) for uid, token in self.tokens.items()], *self.others)


def raise_exit(error: BaseException) -> None:
    """Raise an exception that ends the process again. A panic in Rust only fails its work, but is no Exception."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason and message of a request that failed."""

    reason: FinishReason
    message: str


_NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc", "could not create a primitive")
"""Parts of the messages of torch's allocators, the C++ library and oneDNN if memory is short. The last one is oneDNN's
message: it fails only if there is no memory for its generated code.
"""


def failure_of(error: BaseException) -> Failure:
    """Return the failure of the request whose work raised `error`: "memory" if an allocation failed, else "error".

    Its message is for clients, so it contains no part of the error; that is for the log.
    """
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return Failure("memory", "an allocation failed")
    return Failure("error", "the server's log has the reason")
