"""Requests and tasks of the engine. The routes build them; they are sent to the worker as msgpack.

Each task declares the needed part of the network (`BaseTask`); a new task is a class here and a name in `Task`.
"""

import time
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from lightwell.model.hooks.points import BY_NAME, Stack, reads_encoder
from lightwell.model.sampling.grammar.thought_limit import Pieces, ThoughtLimit
from lightwell.server.engine.messages.base_task import BEFORE_OUTPUT, BaseTask, Depth, Depths, Stacks, input_depths
from lightwell.server.engine.messages.outputs import Array, FinishReason, RequestOutput, Timing
from lightwell.server.engine.messages.sampling_params import SamplingParams

AttentionKind = Literal["pattern", "scores", "dots"]
Reduction = Literal["mean", "max"]
CaptureDtype = Literal["float32", "float16", "uint8"]
Part = Literal["decoder", "encoder", "cross"]
"""Part of the network: "encoder" is the stack of an encoder, "cross" a decoder's attention to an encoder's output."""
Op = Literal["set", "scale", "add", "temperature"]
Pooling = Literal["mean", "last", "cls", "none"]
PoolingMode = Pooling | Literal["max", "weightedmean", "mean_sqrt_len_tokens"]
BACKGROUND = 1001
"""Priority of rows of batches, after every priority that clients may set: they run only while nothing else does."""
WeightsOption = int | float | str | tuple[int | float | tuple[int, int], ...] | None


class AttentionCapture(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The attention numbers to capture. Indices are absolute and in range: the API process resolved them."""

    pairs: tuple[tuple[int, int], ...]
    """Pairs (layer, head), in the order of the answer's first axis."""
    queries: tuple[int, ...] | None = None
    """Query positions, in the order of the answer; None means all. Unused for rows of generated tokens."""
    keys: tuple[int, ...] | None = None
    """Key positions, in the order of the answer; None means all."""
    kind: AttentionKind = "pattern"
    reduce: Reduction | None = None
    """Reduction over the heads of one layer; the first axis of the answer is then the layers, in order of first
    appearance.
    """
    top_k: int | None = None
    """Number of the largest keys to keep in each row: the answer is `attention` (values) and `attention.indices`."""
    resize: int | None = None
    """Side length n of an area mean to n x n."""
    dtype: CaptureDtype | Literal["float64"] = "float32"
    """float64 is for results that are computed with, in a network of float64."""
    part: Part = "decoder"
    name: str = "attention"
    """The key of the answer's tensor."""

    def depths(self) -> Depths:
        """Return how deep the encoder and the decoder must run."""
        return _depths_of_attention(self.part, [layer for layer, _ in self.pairs])

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        """Return the query positions, ascending, of a prompt of `num_tokens` tokens."""
        return range(num_tokens) if self.queries is None else sorted(set(self.queries))


class PointCapture(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One named point of the forward pass (`model.hooks.points`), and the selection of its numbers."""

    name: str
    """The key of the answer's tensor: the full name, e.g. "decoder.blocks.0.attn.hook_q"."""
    stack: Stack
    """Stack of the point; "encoder" for the one stack of an encoder."""
    layer: int | None
    point: str
    """The point's short name, e.g. "attn.hook_q"."""
    heads: tuple[int, ...] | None = None
    """Indices on the head axis (key heads if the point has them); None means all."""
    positions: tuple[int, ...] | None = None
    """Rows: positions, or query positions of scores and patterns; None means all. They are absolute, in the order of
    the answer.
    """
    keys: tuple[int, ...] | None = None
    """Key positions of scores and patterns."""
    units: tuple[int, ...] | None = None
    """Indices into each position's numbers, with the chosen `heads` side by side: the answer is then [position, unit].
    None means all, with the point's own axes. It does not apply to scores and patterns.
    """
    dtype: Literal["float32", "float16", "float64"] = "float32"
    """float64 is for results that are computed with, in a network of float64."""

    def depth(self, stacks: Stacks) -> Depth:
        """Return how deep the point's own stack must run."""
        if self.layer is not None:
            return Depth(self.layer + 1, self.point not in BEFORE_OUTPUT)
        if self.point.startswith(("ln_final", "logits")):
            return Depth(stacks.encoder if self.stack == "encoder" else stacks.decoder, needs_output=True)
        return Depth(0, needs_output=False)


class GenerateTask(BaseTask, frozen=True, kw_only=True):
    """Writes text."""

    is_inspection: ClassVar[bool] = False

    sampling: SamplingParams
    attention: AttentionCapture | None = None
    """Attention to capture: the row that chose each generated token, sent with that token."""
    attention_prompt: bool = False
    """Also the prompt's rows, once, with the first token, as `attention.prompt`."""
    grammar: str | None = None
    """The grammar of the text, in llguidance's syntax, or None for free text."""
    grammar_prefix: Pieces = ()  # the end of the prompt with which the grammar's text begins
    thought_limit: ThoughtLimit | None = None  # of the thoughts with which that text may begin
    prediction: tuple[int, ...] = ()
    """Tokens that the text is expected to repeat, for drafts."""

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        if self.sampling.prompt_logprobs is not None:
            return range(num_tokens)
        if self.attention is None or not self.attention_prompt:
            return ()
        return self.attention.captured_positions(num_tokens)

    def captures(self) -> Sequence[object]:
        if self.attention is None or not self.attention_prompt:
            return ()
        return (replace(self.attention, name="attention.prompt"),)


class EmbedTask(BaseTask, frozen=True, kw_only=True):
    """Embeds text. With an encoder-decoder, the encoder's hidden states count."""

    is_inspection: ClassVar[bool] = False

    layer: int | None = None
    """The layer to read: 0 is the embedding, i the residual stream after block i, None the last one after the final
    norm.
    """
    pooling: Pooling = "last"
    modes: tuple[PoolingMode, ...] = ()
    """Ways of pooling with concatenated vectors, in place of `pooling`; () means only `pooling`."""
    normalize: bool = True
    dimensions: int | None = None
    """Number of leading dimensions to keep, before normalisation (Matryoshka)."""
    dense: bool = False
    """Whether the pooled vector goes through the dense layers of the model's sentence-transformers files."""

    def depths(self, stacks: Stacks) -> Depths:
        num_layers = stacks.encoder or stacks.decoder
        return input_depths(stacks, Depth(num_layers if self.layer is None else max(1, self.layer), needs_output=True))

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        modes = set(self.modes or (self.pooling,))
        if modes == {"last"}:
            return range(num_tokens - 1, num_tokens)
        return range(1) if modes == {"cls"} else range(num_tokens)


class ClassifyTask(BaseTask, frozen=True, kw_only=True):
    """Scores or labels text, or a pair of texts, with the checkpoint's head. The answer is logits [label], float32
    (float64 in float64), before any sigmoid or softmax. A decoder's head reads the last token
    (`ModelConfig.labelled_ids`).
    """

    is_inspection: ClassVar[bool] = False

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        return range(num_tokens - 1, num_tokens)

    def depths(self, stacks: Stacks) -> Depths:
        return input_depths(stacks, Depth(stacks.encoder or stacks.decoder, needs_output=True))


class SparseTask(BaseTask, frozen=True, kw_only=True):
    """Weighs words by a head's logits (SPLADE): sparse.indices int32, sparse.values float32, without zeros."""

    is_inspection: ClassVar[bool] = False

    is_sum: bool = False  # over the tokens, in place of the largest
    is_log_twice: bool = False

    def depths(self, stacks: Stacks) -> Depths:
        return Depths(encoder=Depth(stacks.encoder, needs_output=True), decoder=None)


class AttentionTask(BaseTask, frozen=True, kw_only=True):
    """Captures the attention of a prompt."""

    capture: AttentionCapture

    def depths(self, stacks: Stacks) -> Depths:
        return self.capture.depths()

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        return self.capture.captured_positions(num_tokens)

    def captures(self) -> Sequence[object]:
        return (self.capture,)


class TraceTask(BaseTask, frozen=True, kw_only=True):
    """An exact pass over the prompt. The answer has one tensor for each capture, by its name, with the point's axes."""

    points: tuple[PointCapture, ...]

    def depths(self, stacks: Stacks) -> Depths:
        return Depths(
            encoder=max((each.depth(stacks) for each in self.points if each.stack == "encoder"), default=None),
            decoder=max((each.depth(stacks) for each in self.points if each.stack == "decoder"), default=None),
        )

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        along = [each for each in self.points if each.stack == "decoder" and not reads_encoder(BY_NAME[each.point])]
        selections = [each.positions for each in along]
        if None in selections:
            return range(num_tokens)
        return sorted({position for selection in selections for position in selection or ()})

    def captures(self) -> Sequence[object]:
        return self.points


class LensTask(BaseTask, frozen=True, kw_only=True):
    """Logit lens: the prediction of each layer, its residual stream through final norm and head (nostalgebraist 2020).

    The answer, for l layers and p positions: lens.ids int32 [l, p, k], lens.logprobs [l, p, k], lens.entropy [l, p]
    (nats), and with targets lens.target_logprobs [l, p, target], lens.target_ranks int32 [l, p, target] (1 is the
    likeliest).
    """

    layers: tuple[int, ...]
    """Layers to read: 0 is the embedding, i the stream after block i; the last equals the model's own logits."""
    positions: tuple[int, ...]
    top_k: int
    target_token_ids: tuple[int, ...] = ()
    is_target_of_position: bool = False
    """True for one target at each position: target_token_ids has the shape [p], the answer [l, p, 1]. Otherwise every
    position has all targets.
    """

    def depths(self, stacks: Stacks) -> Depths:
        depth = Depth(max(1, *self.layers), needs_output=True)
        return Depths(encoder=None, decoder=depth) if stacks.decoder else Depths(encoder=depth, decoder=None)

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        return sorted(set(self.positions))


class HeadScoresTask(BaseTask, frozen=True, kw_only=True):
    """Summarises each attention row of chosen heads in a few numbers, so that no pattern has to leave the worker.

    The answer is heads.scores float32 [pair, query, measure]; the measures are, in order: weight on the key before (0
    at query 0), on itself, on the first key, entropy in nats, mean distance sum(A |q - k|), weight on keys p + 1 for
    every earlier p < q with the query's token (induction as HeadVis counts it), then one for each of `offsets`:
    weight on key q - offset (0 if there is none).
    """

    pairs: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...] = ()
    part: Literal["decoder", "encoder"] = "decoder"

    def depths(self, stacks: Stacks) -> Depths:
        return _depths_of_attention(self.part, [layer for layer, _ in self.pairs])


class WeightsTask(BaseTask, frozen=True, kw_only=True):
    """A question about the weights, without a prompt. A thread of the worker answers it, next to the steps. `options`
    are arguments of the function that answers it (`model.analysis.weights`), which also names the tensors.
    """

    question: str
    options: dict[str, WeightsOption] = msgspec.field(default_factory=dict)


Task = (
    GenerateTask | AttentionTask | EmbedTask | ClassifyTask | SparseTask | TraceTask | LensTask | HeadScoresTask
    | WeightsTask
)  # fmt: skip


class Intervention(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A change to one point while the request runs. Everything is absolute and in range: the API process resolved it
    ("zero" is set with 0, "mean" and "patch" are set with numbers that were captured first).
    """

    stack: Stack
    layer: int | None
    point: str
    op: Op
    """How the point changes. set: the value; scale: times the value; add: plus the value; temperature
    (hook_attn_scores only): the scores divided by the value, where 0 puts all weight on the largest (the first of
    equals).
    """
    value: float = 0.0
    array: Array | None = None
    """The value if it is not one number: float32 numbers that broadcast to [positions, heads, ...] as the point has
    them (scores and patterns: [heads, queries, keys]).
    """
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    """Positions to change; None means every position, including those of generated tokens."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, tag="new", array_like=True):
    """A request to the engine. `EngineClient.submit` sets `uid` and the fields from `arrival_time` on.

    `uid` is the first field: `server.ipc.messages.uid_of` reads it from a request that cannot be decoded.
    """

    uid: int = 0
    """Identifier, unique among the requests of one API process."""
    prompt_token_ids: tuple[int, ...]
    """Tokens of the only stack; of an encoder-decoder, the decoder's."""
    task: Task
    encoder_token_ids: tuple[int, ...] = ()
    """Tokens that the encoder of an encoder-decoder reads."""
    second_segment: int | None = None
    """Position of the first token of the second text of a pair, of type 1; None if all tokens are of type 0."""
    interventions: tuple[Intervention, ...] = ()
    """Interventions, applied in this order. The prefix cache is read before the first changed position, not written."""
    capture_bytes: int = 0
    """Bytes of the answer's tensors."""

    arrival_time: float = 0.0
    """Arrival in CLOCK_MONOTONIC seconds, the same clock in every process of the machine."""
    deadline: float | None = None
    """Deadline on the same clock; after it the request ends with finish_reason "deadline"."""
    priority: int = 0
    """Scheduling priority; lower runs earlier."""
    client: str = ""
    """Name of the client's API key; clients are served round robin."""
    request_id: str = ""
    """Id of the HTTP request that this request is part of, for the log."""
    adapter: int = 0
    """Number of the LoRA adapter; 0 means none."""
    cache_salt: str = ""
    """Salt of the prefix cache: only requests with the same salt share cached blocks."""
    has_begun: bool = False
    """True from the second engine request of one HTTP request on."""

    @property
    def is_background(self) -> bool:
        return self.priority >= BACKGROUND

    def unbegun(self, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """Return the last output of a request that was in no step."""
        timing = Timing(self.arrival_time, finished=time.monotonic())
        return RequestOutput(uid=self.uid, finish_reason=reason, error=error, timing=timing)


def _depths_of_attention(part: Part, layers: Sequence[int]) -> Depths:
    """Return the depths for the attention of these layers; self-attention comes before the queries of cross."""
    depth = Depth(max(layers, default=-1) + 1, needs_output=part == "cross")
    return Depths(encoder=depth, decoder=None) if part == "encoder" else Depths(encoder=None, decoder=depth)
