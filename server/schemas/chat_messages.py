"""The messages of a chat, as OpenAI's API has them."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, model_validator
from typing_extensions import TypedDict  # of Python 3.12, which pydantic needs

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import RequestModel, Text, check_equal, wrong
from lightwell.server.schemas.known_fields import IGNORED_IN_MESSAGES, REFUSED_IN_MESSAGES

MAX_MESSAGES = 4096
MAX_PARTS = 256
"""Most parts of one message's content."""


class TextPart(TypedDict):
    """One part of a message's content. A plain object is checked six times as fast as a model: there may be many."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    type: Annotated[Literal["text"], Field(description='"text"; this server reads no images and no audio.')]
    text: Annotated[Text, Field(description="The text.")]
    cache_control: Annotated[NotRequired[Any], Field(description="Accepted and ignored: the prefix cache needs none.")]
    annotations: Annotated[NotRequired[Any], Field(description="Accepted and ignored.")]
    image_url: Annotated[NotRequired[None], Field(description="null, as some clients write: there is none.")]
    input_audio: Annotated[NotRequired[None], Field(description="null: there is none.")]
    file: Annotated[NotRequired[None], Field(description="null: there is none.")]


MAX_CALLS = 128
"""Most tool calls of one message."""


class CalledFunction(TypedDict):
    """The function that a call is of, and its arguments."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    name: Annotated[Text, Field(min_length=1, description="Name of the function.")]
    arguments: Annotated[Text, Field(description="The arguments, an object as JSON.")]
    parsed_arguments: Annotated[
        NotRequired[Any], Field(description="Accepted and ignored: the openai package's reading of them.")
    ]


class ToolCallPart(TypedDict):
    """A tool call that the assistant made."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    id: Annotated[Text, Field(description="The call's id, as the answer gave it.")]
    type: Annotated[NotRequired[Literal["function"]], Field(description='"function".')]
    function: Annotated[CalledFunction, Field(description="The called function.")]
    index: Annotated[NotRequired[Any], Field(description="Accepted and ignored: of a stream's chunks.")]
    provider_specific_fields: Annotated[NotRequired[Any], Field(description="Accepted and ignored: litellm's.")]


class ChatMessage(RequestModel):
    """One message of a conversation."""

    IGNORED = IGNORED_IN_MESSAGES
    REFUSED = REFUSED_IN_MESSAGES

    role: Text = Field(min_length=1, description="Who speaks: the roles are those the model's chat template knows.")
    content: Text | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = Field(
        None, description="The text, or a list of text parts."
    )
    name: Text | None = Field(None, description="Name of the speaker, for templates that use it.")
    reasoning_content: Text | None = Field(
        None, description="The assistant's reasoning before its answer, for templates that use it."
    )
    thinking: Text | None = Field(None, description="The same under the name that gpt-oss's template reads.")
    reasoning: Text | None = Field(None, description="The same under vLLM's newer name.")
    tool_calls: Annotated[list[ToolCallPart], Field(max_length=MAX_CALLS, fail_fast=True)] | None = Field(
        None, description="Tool calls that the assistant made."
    )
    tool_call_id: Text | None = Field(None, description="With role tool: id of the call that has this result.")

    @model_validator(mode="after")
    def _calls_are_the_assistants(self) -> "ChatMessage":
        if self.tool_calls and self.role != "assistant":
            raise wrong(
                "tool_calls", f"a message of the role {shown(self.role)} cannot call tools; only the role assistant can"
            )
        check_equal({"reasoning": self.reasoning, "reasoning_content": self.reasoning_content})
        return self

    def as_template_input(self) -> dict[str, Any]:
        """Return the message as chat templates expect it: content is a text or a list of text parts. Arguments of calls
        are still text.
        """
        content: Any = self.content or ""
        if not isinstance(content, str):
            content = [{"type": "text", "text": part["text"]} for part in content]
        others = {
            "name": self.name,
            "reasoning_content": self.thought,
            "tool_calls": self.tool_calls or None,
            "tool_call_id": self.tool_call_id,
        }
        message = {"role": self.role, "content": content}
        return message | {key: value for key, value in others.items() if value is not None}

    @property
    def thought(self) -> str | None:
        """Return the assistant's reasoning, from any of its fields."""
        given = (self.reasoning_content, self.thinking, self.reasoning)  # in the order of transformers
        return next((text for text in given if text is not None), None)

    @property
    def text(self) -> str:
        return (
            self.content if isinstance(self.content, str) else "\n".join([part["text"] for part in self.content or ()])
        )


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
"""A conversation."""
