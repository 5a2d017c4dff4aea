"""Common fields of the bodies and the entries of inspection routes."""

from typing import Any, Literal

from pydantic import Field

from lightwell.server.http.tensor_formats import EncodingFormat
from lightwell.server.schemas.base import AnswerModel, PromptInput, RunFields, Text, TokenId
from lightwell.server.schemas.chat_messages import Messages
from lightwell.server.schemas.inspect.interventions import CanIntervene

Target = Text | TokenId
OwnPart = Literal["decoder", "encoder"]

# Fields of several bodies
PART = Field(
    None,
    description="Kind of attention: encoder, decoder or cross (from the decoder to the encoder); null is the model's "
    "own.",
)
STACK = Field(None, description="Of an encoder-decoder: which stack; null is the decoder.")
LAYERS = Field("all", description='"all", a layer, or a list; negative counts from the end.')
HEADS = Field("all", description='"all", a query head, or a list; negative counts from the end.')
NUMBER_FORMAT: Any = Field("float", description="Numbers in JSON: nested lists, or base64 of the little-endian bytes.")
ARRAY_FORMAT: Any = Field("float", description="Arrays in JSON: nested lists, or base64 of the little-endian bytes.")


class InputFields(CanIntervene, RunFields):
    """Input of a request. For an encoder-decoder, `input` is the input of the encoder."""

    input: PromptInput | Messages = Field(
        description="A text, a list of texts, token ids, a list of token id lists, or chat messages."
    )
    completion: PromptInput | None = Field(
        None,
        description="Text or ids that follow the input, one for each; for an encoder-decoder they follow the "
        "decoder's input.",
    )
    decoder_input: PromptInput | None = Field(
        None,
        description="For encoder-decoders: input of the decoder before the completion: text after its start token, "
        "or ids with it. Null is only the start token.",
    )
    add_special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens to a text.")
    truncate: bool = Field(
        False, description="Cut the end of an input that is over the context, instead of refusing it."
    )


class InspectionRequest(InputFields):
    """The fields of every body that is answered with described arrays."""

    encoding_format: EncodingFormat = ARRAY_FORMAT


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
