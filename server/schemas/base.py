"""What every request and answer schema shares: strict types, no unknown fields, the forms a prompt may take."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from server.key_limits import PRIORITIES

MAX_TOKEN_ID = 2**31 - 1
"""A bound for the type only; the vocabulary's own is checked where it is known."""


def wrong(field: str, message: str) -> PydanticCustomError:
    """An error about one field, for validators that see the whole body."""
    return PydanticCustomError("wrong_field", "{message}", {"field": field, "message": message})


def encodable(text: str) -> str:
    """JSON can say half a surrogate pair, which no tokenizer takes and no answer could repeat."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text holds a lone surrogate at character {error.start}; Unicode text is accepted"
            ) from None
    return text


Text = Annotated[str, AfterValidator(encodable)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
ManyTokenIds = Annotated[list[TokenIds], Field(fail_fast=True)]
PromptInput = Text | TokenIds | Texts | ManyTokenIds

MAX_SELECTED = 65536
Index = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Selector = Literal["all"] | Index | Annotated[list[Index], Field(min_length=1, max_length=MAX_SELECTED)]
"""Layers, heads or positions; negative ones count from the end."""


MAX_FIELDS = 256
MAX_MESSAGES = 4096
MAX_PARTS = 256
"""Of one message's content."""


class RequestModel(BaseModel):
    """Base of request bodies: JSON types as they are ("1" is no number, NaN is none either), unknown fields refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_object_has_that_many_fields(cls, data: Any) -> Any:
        """Or each unknown one of a million would be named."""
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise ValueError(f"an object of {len(data)} fields; at most {MAX_FIELDS} are accepted")
        return data


class AnswerModel(BaseModel):
    """Base of answers, used to describe them in the OpenAPI page."""

    model_config = ConfigDict(extra="allow")


class ModelField(RequestModel):
    """The field every POST route has."""

    model: Text | None = Field(
        None, description="Name of the model, as GET /v1/models gives it; null is that one model."
    )


class RunFields(ModelField):
    """The fields of every POST route that runs the model."""

    timeout: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Seconds after which the request ends with 504, or its stream with an error event; the header "
        "X-Request-Timeout says the same. The server's --request-timeout is the most there is.",
    )
    priority: int = Field(
        0,
        ge=min(PRIORITIES),
        le=max(PRIORITIES),
        description="Of the requests that wait, lower ones go first. Below 0 where the server allows it "
        "(--allow-priority), or the API key's min_priority. Left out it is 0, or that if it is above 0.",
    )


class Ignored(RequestModel):
    """Fields OpenAI defines that cannot change the answer here: accepted, so that its clients work unchanged."""

    user: Any = Field(None, description="Accepted and ignored.")
    store: Any = Field(None, description="Accepted and ignored: nothing is stored.")
    metadata: Any = Field(None, description="Accepted and ignored.")
    service_tier: Any = Field(None, description="Accepted and ignored: there is one tier.")
    safety_identifier: Any = Field(None, description="Accepted and ignored.")
    prompt_cache_key: Any = Field(None, description="Accepted and ignored: the prefix cache needs no key.")
    prompt_cache_retention: Any = Field(None, description="Accepted and ignored.")


class TextPart(RequestModel):
    """One part of a message's content."""

    type: Literal["text"] = Field(description='"text"; this server reads no images and no audio.')
    text: Text = Field(description="The text.")


class ChatMessage(RequestModel):
    """One message of a conversation."""

    role: Text = Field(min_length=1, description="Who speaks: the roles are those the model's chat template knows.")
    content: Text | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = Field(
        None, description="The text, or a list of text parts."
    )
    name: Text | None = Field(None, description="Name of the speaker, for templates that use it.")

    def as_template_input(self) -> dict[str, str]:
        """The message as chat templates expect it: content is one string."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or []]
        message = {"role": self.role, "content": "".join(parts)}
        if self.name is not None:
            message["name"] = self.name
        return message


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
"""A conversation."""


class Usage(AnswerModel):
    """Tokens of one HTTP request, all its prompts and choices together."""

    prompt_tokens: int = Field(description="Tokens of the prompts.")
    completion_tokens: int = Field(0, description="Tokens generated.")
    total_tokens: int = Field(description="Their sum.")
    prompt_tokens_details: dict[str, int] | None = Field(
        None, description='{"cached_tokens": prompt tokens that came from the prefix cache}.'
    )


class ErrorDetail(AnswerModel):
    """What went wrong."""

    message: str = Field(description="Names the offending value and what is accepted.")
    type: str = Field(description="Kind of error.")
    param: str | None = Field(description="The field it is about.")
    code: str | None = Field(description="Stable name of the problem.")


class ErrorAnswer(AnswerModel):
    """The one shape of every error."""

    error: ErrorDetail = Field(description="The error.")
