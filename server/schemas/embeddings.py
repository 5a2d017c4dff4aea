"""Defines the bodies of POST /v1/embeddings and POST /embed_sparse, and their answers."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from lightwell.server.engine.messages.request import Pooling
from lightwell.server.schemas.base import (
    TRUNCATE_PROMPT_TOKENS,
    AnswerModel,
    ListAnswer,
    PromptInput,
    PromptTokens,
    RequestModel,
    RunFields,
    Text,
    Usage,
)
from lightwell.server.schemas.known_fields import IGNORED_BY_EMBEDDINGS, REFUSED_BY_EMBEDDINGS, Refused, RefusedFields


class EmbeddingRequest(RunFields):
    """Body of POST /v1/embeddings: OpenAI's fields, and where in the network the vector is taken."""

    IGNORED = IGNORED_BY_EMBEDDINGS
    REFUSED = REFUSED_BY_EMBEDDINGS

    input: PromptInput = Field(description="A text, a list of texts, token ids, or a list of token id lists.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="Lists of numbers, or base64 of little-endian float32."
    )
    dimensions: int | None = Field(None, ge=1, le=2**31 - 1, description="Keep the first n numbers of each vector.")
    layer: int | None = Field(
        None,
        ge=-(2**31),
        le=2**31 - 1,
        description="0 is the token embedding, i the stream after block i, null after the final norm; "
        "negative counts from the end. Of an encoder-decoder: the encoder's.",
    )
    pooling: Pooling | None = Field(
        None,
        description="mean, last, cls (first token), or none: one vector per token. Null is the pooling of the "
        "model's sentence-transformers files, including their dense layers if layer is also null; without such "
        "files, mean for encoders and encoder-decoders and last for decoders.",
    )
    normalize: bool | None = Field(
        None, description="Scale each vector to length 1. Null is the setting of the model's files, otherwise true."
    )
    prompt_name: Text | None = Field(
        None,
        description="A prompt of the model's sentence-transformers files, to be put before each text (GET "
        "/v1/capabilities lists them). Null is their default prompt, if they name one.",
    )
    add_special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens to a text.")
    truncate_prompt_tokens: PromptTokens | None = Field(None, description=TRUNCATE_PROMPT_TOKENS)
    truncate: bool | None = Field(
        None,
        description="Cut the end of an input that exceeds the limit instead of rejecting it. Null is true for "
        "sentence-transformers folders, with their own limit, and false for all others.",
    )


class EmbeddingEntry(AnswerModel):
    """One input's vector, or its vectors when pooling is none."""

    object: Literal["embedding"] = Field(description="Kind of entry.")
    index: int = Field(description="Number of the input.")
    embedding: Any = Field(description="The vector, one list a token when pooling is none, or base64 of float32.")
    tokens: list[str] | None = Field(None, description="With pooling none: each token decoded separately.")


class EmbeddingAnswer(ListAnswer):
    """Answer of POST /v1/embeddings as JSON."""

    data: list[EmbeddingEntry] = Field(description="One entry an input.")
    usage: Usage = Field(description="Token counts.")


class TeiCut(RequestModel):
    """TEI's fields about the reading of texts."""

    prompt_name: Text | None = Field(
        None, description="A prompt of the model's sentence-transformers files, as in POST /v1/embeddings."
    )
    truncate: bool | None = Field(None, description="Cut an input that is over the limit, as in POST /v1/embeddings.")
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="The side at which an input is cut."
    )


class TeiInputFields(TeiCut, RunFields):
    """These fields and the inputs."""

    REFUSED: ClassVar[RefusedFields] = {"encoding_format": Refused("numbers are always JSON", ("float",))}

    inputs: PromptInput = Field(description="A text, a list of texts, token ids, or a list of token id lists.")


class SparseEmbeddingRequest(TeiInputFields):
    """Body of POST /embed_sparse."""


class SparseValue(AnswerModel):
    """A word of the vocabulary, and its weight."""

    index: int = Field(description="Token id of the word.")
    value: float = Field(description="Its weight, above 0.")
