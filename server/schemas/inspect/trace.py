"""Body and entry of POST /v1/trace."""

from typing import Annotated, Any, Literal

from pydantic import Field

from lightwell.server.http.tensor_formats import EncodingFormat
from lightwell.server.schemas.base import AnswerModel, Selector
from lightwell.server.schemas.inspect.inputs import NUMBER_FORMAT, InputFields
from lightwell.server.schemas.inspect.interventions import PointName

MAX_POINTS = 256


class TraceRequest(InputFields):
    """Body of POST /v1/trace."""

    points: Annotated[list[PointName], Field(min_length=1, max_length=MAX_POINTS)] = Field(
        description='Points of GET /v1/capabilities: full ("blocks.0.attn.hook_q"), with a layer ("resid_post.10"), or '
        'short ("hook_resid_post"), which gives one entry for each of `layers`. Of an encoder-decoder they are the '
        'decoder\'s unless "encoder." precedes them.'
    )
    layers: Selector = Field(
        "all", description='Of names without a layer: "all", a layer, or a list; negative counts from the end.'
    )
    heads: Selector = Field(
        "all",
        description="Of points with heads (key heads for hook_k, hook_v and hook_rot_k); negative counts from the end.",
    )
    positions: Selector = Field(
        "all",
        description="Positions of each point's own sequence (query positions of scores and patterns); negative counts "
        "from the end.",
    )
    key_positions: Selector = Field("all", description="Key positions of scores and patterns.")
    dtype: Literal["float32", "float16"] = Field("float32", description="Number format.")
    encoding_format: EncodingFormat = NUMBER_FORMAT


class TracedPoint(AnswerModel):
    """The numbers of one point for one input."""

    axes: list[str] = Field(description="Names of the axes.")
    shape: list[int] = Field(description="Their lengths.")
    dtype: Literal["float32", "float16"] = Field(description="Number format.")
    layer: int | None = Field(description="The block; null outside the blocks.")
    heads: list[int] | None = Field(None, description="Heads of the head axis, where the point has one.")
    positions: list[int] | None = Field(None, description="Positions, or query positions, of the rows.")
    key_positions: list[int] | None = Field(None, description="Of scores and patterns: positions of the columns.")
    data: Any = Field(description="Nested lists, null where a score is masked; or base64, where it is -inf.")


class TraceEntry(AnswerModel):
    """The captured points of one input."""

    object: Literal["trace"] = Field(description="Kind of entry.")
    index: int = Field(description="Number of the input.")
    tokens: list[str] = Field(description="Each token decoded separately; of an encoder-decoder the decoder's.")
    token_ids: list[int] = Field(description="Their ids.")
    offsets: list[list[int]] | None = Field(description="Character span of each token in the text; null for ids.")
    encoder_tokens: list[str] | None = Field(None, description="Of an encoder-decoder: the encoder's tokens.")
    encoder_token_ids: list[int] | None = Field(None, description="Their ids.")
    encoder_offsets: list[list[int]] | None = Field(None, description="Their character spans in the input.")
    points: dict[str, TracedPoint] = Field(description="By full name.")
