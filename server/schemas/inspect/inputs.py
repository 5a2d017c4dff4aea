"""Defines the fields of every inspection request that reads whole inputs."""

from pydantic import Field

from server.schemas.base import PromptInput, RunFields
from server.schemas.chat_messages import Messages
from server.schemas.inspect.interventions import CanIntervene


class InputFields(CanIntervene, RunFields):
    """What is read. For an encoder-decoder, `input` is the encoder's."""

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
