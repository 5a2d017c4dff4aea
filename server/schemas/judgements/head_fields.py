"""Common fields of the bodies with texts for a head, the bounds of their lists, and the errors of their APIs."""

from typing import Annotated, Literal

from pydantic import Field

from lightwell.server.schemas.base import AnswerModel, PromptTokens, RunFields, Text
from lightwell.server.schemas.judgements.reasons import EXPLAIN, ExplainField
from lightwell.server.schemas.known_fields import IGNORED_BY_HEADS, REFUSED_BY_HEADS

MAX_DOCUMENTS = 10_000
ManyTexts = Annotated[list[Text], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]


class ReadFields(RunFields):
    """Fields for the truncation of texts, and for the activation function of the head."""

    IGNORED = IGNORED_BY_HEADS
    REFUSED = REFUSED_BY_HEADS

    truncate: bool | None = Field(
        None,
        description="Cut an input that is over the limit, the longer text of a pair first, instead of refusing it. "
        "Null is true for folders that sentence-transformers saved, as that cuts, and for /v2/rerank, as Cohere does.",
    )
    truncate_prompt_tokens: PromptTokens | None = Field(
        None, description="Cut an input to this number of tokens, including special tokens; -1 is the model's limit."
    )
    truncation_side: Literal["left", "right"] = Field(
        "right", description="The side at which a text is cut: right keeps its beginning, left its end."
    )
    use_activation: bool = Field(True, description="Give scores or probabilities; false gives the head's own logits.")
    explain: ExplainField = EXPLAIN


class PairFields(ReadFields):
    """The same for pairs."""

    max_tokens_per_doc: int = Field(
        0, ge=0, le=2**31 - 1, description="First cut each document to this number of its own tokens; 0 keeps all."
    )
    max_tokens_per_query: int = Field(0, ge=0, le=2**31 - 1, description="The same for queries.")
    prompt_name: Text | None = Field(
        None,
        description="A prompt of the model's sentence-transformers files, to be put before the query. Null is their "
        "default prompt, if they name one.",
    )


class TeiReadFields(RunFields):
    """The fields of `ReadFields` that Text Embeddings Inference has, by its names."""

    IGNORED = IGNORED_BY_HEADS
    REFUSED = REFUSED_BY_HEADS

    raw_scores: bool = Field(False, description="Give the head's own logits.")
    truncate: bool = Field(False, description="Cut an input that is over the limit, instead of refusing it.")
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="The side at which a text is cut."
    )
    explain: ExplainField = EXPLAIN


class RerankErrorAnswer(AnswerModel):
    """The shape of errors for rerankers' clients: Cohere's with that of OpenAI's; TEI's for bodies of theirs."""

    message: str | None = Field(None, description="Names the rejected and accepted values; not for TEI's body.")
    error: dict[str, str | None] | str = Field(
        description="The error as on every other route; for TEI's body the message."
    )
    error_type: str | None = Field(None, description="For TEI's body: kind of error, in its words.")


class TeiErrorAnswer(AnswerModel):
    """The shape of errors of Text Embeddings Inference."""

    error: str = Field(description="Names the rejected value and the accepted values.")
    error_type: str = Field(description="Kind of error, in its words.")
