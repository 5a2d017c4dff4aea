"""What can be asked of the engine. Plain dataclasses: they cross the socket as msgpack and are all the engine sees."""

from dataclasses import dataclass
from typing import Literal

from server.engine.sampling_params import SamplingParams

AttentionKind = Literal["pattern", "scores", "dots"]
Reduction = Literal["mean", "max"]
CaptureDtype = Literal["float32", "float16", "uint8"]
Pooling = Literal["mean", "last", "cls", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapture:
    """Which attention numbers to keep. Indices are absolute and in range: the API process resolved them."""

    pairs: tuple[tuple[int, int], ...]
    """(layer, head), in the order of the answer's first axis."""
    queries: tuple[int, ...] | None = None
    """Query positions, in the order of the answer; None is all. Unused for rows of generated tokens."""
    keys: tuple[int, ...] | None = None
    """Key positions, in the order of the answer; None is all."""
    kind: AttentionKind = "pattern"
    reduce: Reduction | None = None
    """Over the heads of one layer; the first axis of the answer is then the layers, in order of first appearance."""
    top_k: int | None = None
    """Keep only the k largest keys of each row: the answer is `attention` (values) and `attention.indices`."""
    resize: int | None = None
    """Area mean to n x n."""
    dtype: CaptureDtype = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateTask:
    sampling: SamplingParams
    attention: AttentionCapture | None = None
    """The row that chose each generated token, sent with that token."""
    attention_prompt: bool = False
    """Also the prompt's rows, once, with the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTask:
    capture: AttentionCapture


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTask:
    layer: int | None = None
    """0 is the embedding, i the residual stream after block i, None the last one after the final norm."""
    pooling: Pooling = "last"
    normalize: bool = True
    dimensions: int | None = None
    """Keep the first n numbers, before normalisation (Matryoshka)."""


Task = GenerateTask | AttentionTask | EmbedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    uid: int
    """Unique among the requests of one API process."""
    prompt_token_ids: tuple[int, ...]
    task: Task
    arrival_time: float
    """CLOCK_MONOTONIC seconds, the same clock in every process of the machine."""
    deadline: float | None = None
    """On the same clock; past it the request ends with finish_reason "deadline"."""
