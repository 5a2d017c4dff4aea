"""Body and entry of POST /v1/attention, and the selector fields that it shares with generation."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lightwell.server.engine.messages.request import AttentionKind, CaptureDtype, Part, Reduction
from lightwell.server.http.tensor_formats import EncodingFormat
from lightwell.server.schemas.base import MAX_SELECTED, AnswerModel, Index, RequestModel, Selector, wrong
from lightwell.server.schemas.inspect.inputs import HEADS, LAYERS, NUMBER_FORMAT, InputFields

Pair = Annotated[list[Index], Field(min_length=2, max_length=2)]


class AttentionFields(RequestModel):
    """Which attention to show and how to write it."""

    layers: Selector = LAYERS
    heads: Selector = HEADS
    pairs: Annotated[list[Pair], Field(min_length=1, max_length=MAX_SELECTED, fail_fast=True)] | None = Field(
        None, description="[layer, head] pairs, in place of layers and heads."
    )
    kind: AttentionKind = Field(
        "pattern",
        description="pattern: softmaxed, masked keys 0; scores: scaled, biased, capped; dots: the bare q.k. In scores "
        "and dots masked keys are -inf (null in JSON).",
    )
    top_k: int | None = Field(None, ge=1, le=65536, description="Keep only the k largest keys of each row.")
    dtype: CaptureDtype = Field("float32", description="Number format; uint8 is round(255 p), for patterns.")
    encoding_format: EncodingFormat = NUMBER_FORMAT

    @model_validator(mode="after")
    def _choices_agree(self) -> "AttentionFields":
        if self.pairs is not None and not (self.layers == "all" and self.heads == "all"):
            raise wrong("pairs", "pairs replaces layers and heads; set either pairs, or layers and heads")
        if self.dtype == "uint8" and self.kind != "pattern":
            raise wrong(
                "dtype", f"dtype uint8 is accepted only for probabilities; kind {self.kind!r} needs float32 or float16"
            )
        return self


class AttentionRequest(AttentionFields, InputFields):
    """Body of POST /v1/attention."""

    part: Part | None = Field(
        None,
        description="decoder: its own attention; encoder: the encoder's; cross: the decoder's rows over the encoder's "
        "keys. Null is encoder for encoders and decoder for all others.",
    )
    query_positions: Selector = Field("all", description='Rows: "all", a position, or a list; negative from the end.')
    key_positions: Selector = Field("all", description='Columns: "all", a position, or a list; negative from the end.')
    reduce: Reduction | None = Field(None, description="mean or max over the heads of each layer.")
    orientation: Literal["rows", "columns"] = Field(
        "rows", description="rows: [query, key], rows sum to 1; columns: the transpose."
    )
    resize: int | None = Field(None, ge=1, le=4096, description="Area mean to n x n, for thumbnails; patterns only.")

    @model_validator(mode="after")
    def _shapes_agree(self) -> "AttentionRequest":
        if self.top_k is not None and self.orientation == "columns":
            raise wrong("top_k", "top_k returns the keys of each query; with it, only orientation rows is accepted")
        if self.top_k is not None and self.resize is not None:
            raise wrong("top_k", "top_k and resize cannot be combined; set one of them")
        if self.resize is not None and self.kind != "pattern":
            raise wrong(
                "resize", f"resize averages probabilities; with it, only kind pattern is accepted, not {self.kind!r}"
            )
        return self


class AttentionEntry(AnswerModel):
    """Attention of one input."""

    object: Literal["attention"] = Field(description="Kind of entry.")
    index: int = Field(description="Number of the input.")
    tokens: list[str] = Field(description="Each token decoded separately.")
    token_ids: list[int] = Field(description="Ids of input and completion.")
    part: Part = Field(description="Which attention.")
    offsets: list[list[int]] | None = Field(description="Character span of each token in the text; null for ids.")
    key_tokens: list[str] | None = Field(None, description="With part cross: the encoder's tokens, of the columns.")
    key_token_ids: list[int] | None = Field(None, description="With part cross: their ids.")
    key_offsets: list[list[int]] | None = Field(None, description="With part cross: their spans in the input.")
    layers: list[int] | None = Field(None, description="Layers of the first axis.")
    heads: list[int] | None = Field(None, description="Heads of the second axis.")
    pairs: list[list[int]] | None = Field(None, description="[layer, head] of the first axis, if pairs were requested.")
    query_positions: list[int] = Field(description="Positions of the rows.")
    key_positions: list[int] = Field(description="Positions of the columns.")
    axes: list[str] = Field(description="Names of the axes.")
    shape: list[int] = Field(description="Their lengths.")
    dtype: CaptureDtype = Field(description="Number format.")
    attention: Any = Field(
        None, description="Nested lists or base64; in scores and dots a masked key is null, in base64 -inf."
    )
    values: Any = Field(None, description="With top_k: the k largest, in falling order.")
    indices: Any = Field(None, description="With top_k: their key positions, padded with -1.")
