"""Defines the bodies of POST /tokenize and POST /detokenize and their answers, as vLLM has them."""

from pydantic import Field, model_validator

from lightwell.server.schemas.base import AnswerModel, ModelField, Text, TokenIds, wrong
from lightwell.server.schemas.chat_messages import Messages
from lightwell.server.schemas.chat_templates import PromptEndFields
from lightwell.server.schemas.known_fields import IGNORED_BY_TOKENIZE, REFUSED_BY_TOKENIZE
from lightwell.server.schemas.tools import TOOLS, Tools, check_names


class TokenizeRequest(PromptEndFields, ModelField):
    """Body of POST /tokenize: a prompt, or chat messages."""

    IGNORED = IGNORED_BY_TOKENIZE
    REFUSED = REFUSED_BY_TOKENIZE

    prompt: Text | None = Field(None, description="The text.")
    messages: Messages | None = Field(
        None, description="A conversation, written out by the chat template; in place of prompt."
    )
    add_special_tokens: bool | None = Field(
        None, description="Let the tokenizer add its special tokens; null is true for a prompt, false for messages."
    )
    tools: Tools | None = Field(None, description=f"{TOOLS} With messages.")
    return_token_strs: bool | None = Field(False, description="Also return each token decoded separately.")
    return_offsets: bool = Field(False, description="Also give each token's span in the text.")

    @model_validator(mode="after")
    def _prompt_or_messages(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise wrong("prompt", "set either prompt or messages")
        if self.messages is not None:
            self.check_continued(self.messages)
        if self.tools and self.messages is None:
            raise wrong("tools", "tools are accepted with messages, not with a prompt")
        check_names(self.tools or ())
        return self


class TokenizeAnswer(AnswerModel):
    """Answer of POST /tokenize."""

    count: int = Field(description="Number of tokens.")
    max_model_len: int = Field(description="Most tokens of prompt and completion together.")
    tokens: list[int] = Field(description="Token ids.")
    token_strs: list[str] | None = Field(None, description="Each token decoded separately.")
    offsets: list[list[int]] | None = Field(
        default=None, description="Span [begin, end) of each token in the text, in characters."
    )


class DetokenizeRequest(ModelField):
    """Body of POST /detokenize."""

    tokens: TokenIds = Field(description="Token ids.")
    skip_special_tokens: bool = Field(False, description="Leave special tokens out of the text.")


class DetokenizeAnswer(AnswerModel):
    """Answer of POST /detokenize."""

    prompt: str = Field(description="The text of the tokens.")
