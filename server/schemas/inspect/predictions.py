"""Defines the bodies and answers of the routes that report the model's predictions: POST /v1/next and POST /v1/lens."""

from typing import Annotated, Any, Literal

from pydantic import Field

from server.schemas.base import AnswerModel, Index, InspectionAnswer, Selector, Text, TokenId
from server.schemas.inspect.inputs import InputFields
from server.schemas.judgements.reasons import EXPLAIN, ExplainField, Reasons

MAX_TEMPERATURES = 64
MAX_SHOWN_TOKENS = 1024
MAX_LENS_TOKENS = 100
MAX_TOP_K = 2**31 - 1

Temperature = Annotated[float, Field(ge=0.0, le=1e6)]
Target = Text | TokenId


class DescribedArrayAnswer(AnswerModel):
    """One array of an answer."""

    axes: list[str] = Field(description="Names of the axes.")
    shape: list[int] = Field(description="Their lengths.")
    dtype: Literal["float32", "int32"] = Field(description="Number format.")
    data: Any = Field(description="Nested lists, null for infinity and NaN; or base64 of little-endian bytes.")


class InspectionEntry(AnswerModel):
    """The fields that every entry of these answers has."""

    object: str = Field(description="Kind of entry.")
    index: int = Field(description="Number of the input.")
    tokens: list[str] | None = Field(
        None, description="Each token decoded by itself; of an encoder-decoder the decoder's."
    )
    token_ids: list[int] | None = Field(None, description="Their ids.")
    offsets: list[list[int]] | None = Field(None, description="Character span of each token; null for ids.")
    encoder_tokens: list[str] | None = Field(None, description="Of an encoder-decoder: the encoder's tokens.")
    encoder_token_ids: list[int] | None = Field(None, description="Their ids.")
    encoder_offsets: list[list[int]] | None = Field(None, description="Their character spans in the input.")
    arrays: dict[str, DescribedArrayAnswer] = Field(description="By name.")


class InspectionRequest(InputFields):
    """The fields of every body that is answered with described arrays."""

    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Arrays in JSON: nested lists, or base64 of the little-endian bytes."
    )


class NextRequest(InspectionRequest):
    """Body of POST /v1/next."""

    position: Index | None = Field(
        None,
        description="Position before the predicted token; for an encoder, its own. Negative values count from the "
        "end. Null is the last; for an encoder, the first with the mask token ([MASK], <mask>).",
    )
    temperatures: Annotated[list[Temperature], Field(min_length=1, max_length=MAX_TEMPERATURES)] = Field(
        default_factory=lambda: [1.0], description="The logits are divided by each of them; 0 puts all on the largest."
    )
    top_k: int = Field(0, ge=-1, le=MAX_TOP_K, description="Keep the k most likely tokens; 0 or -1 keeps all.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Keep the most likely tokens of this probability mass.")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="Drop tokens below this fraction of the likeliest.")
    num_tokens: int = Field(10, ge=0, le=MAX_SHOWN_TOKENS, description="How many of the likeliest tokens to name.")
    full: bool = Field(False, description="Also the whole vocabulary: arrays logits, probabilities and kept.")
    explain: ExplainField = EXPLAIN


class NextToken(AnswerModel):
    """One token that may come next."""

    token_id: int = Field(description="Its id.")
    token: str = Field(description="The token decoded separately.")
    logit: float | None = Field(description="Before the temperature; null is minus infinity.")
    probability: float = Field(description="At this temperature, over the whole vocabulary.")
    kept_probability: float = Field(description="After top_k, min_p and top_p; 0 when it was dropped.")


class NextAtTemperature(AnswerModel):
    """The distribution at one temperature."""

    temperature: float = Field(description="The temperature.")
    entropy: float = Field(description="In nats, over the whole vocabulary.")
    kept_entropy: float = Field(description="In nats, of the distribution after the filters.")
    num_kept: int = Field(description="Tokens that are left after top_k, min_p and top_p.")
    num_passed: dict[str, int] = Field(
        description="Number of tokens that passed each filter and the earlier ones; tokens without remaining "
        "probability count. The likeliest pass, so a token's rank identifies the filter that removed it."
    )
    tokens: list[NextToken] = Field(description="The likeliest, in falling order.")


class NextEntry(InspectionEntry):
    """The next token of one input."""

    position: int = Field(description="The position that predicts.")
    temperatures: list[NextAtTemperature] = Field(description="One for each temperature, in the order asked for.")
    reasons: Reasons | None = Field(None, description="With explain: why the likeliest token is the likeliest.")


class NextAnswer(InspectionAnswer):
    """Answer of POST /v1/next as JSON."""

    data: list[NextEntry] = Field(description="One entry an input.")


class LensRequest(InspectionRequest):
    """Body of POST /v1/lens."""

    layers: Selector = Field(
        "all", description='States: 0 is the embedding, i the stream after block i; "all", one, or a list.'
    )
    positions: Selector = Field("all", description='Positions: "all", one, or a list; negative from the end.')
    top_k: int = Field(5, ge=1, le=MAX_LENS_TOKENS, description="How many of the likeliest tokens to name.")
    target: Target | None = Field(
        None, description="A text that is one token, or a token id; its rank and probability are returned."
    )


class LensEntry(InspectionEntry):
    """The lens of one input. Arrays: ids [layer, position, k], probabilities [layer, position, k], entropy [layer,
    position] in nats, and with a target target_probabilities and target_ranks [layer, position], 1 the likeliest."""

    layers: list[int] = Field(description="States of the first axis.")
    positions: list[int] = Field(description="Positions of the second axis.")
    top_tokens: list[list[list[str]]] = Field(description="The likeliest tokens, decoded: [layer][position][k].")
    target: dict[str, Any] | None = Field(None, description='{"token_id", "token"} of the target.')


class LensAnswer(InspectionAnswer):
    """Answer of POST /v1/lens as JSON."""

    data: list[LensEntry] = Field(description="One entry an input.")
