"""Defines the bodies of POST /v1/messages and POST /v1/messages/count_tokens, as Anthropic's API has them, and their
answers.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from lightwell.server.http.errors import shown
from lightwell.server.schemas.anthropic.blocks import AnthropicMessage, OnlyText, ToolUseBlock
from lightwell.server.schemas.base import (
    AnswerModel,
    ErrorDetail,
    JsonDict,
    ModelField,
    RequestModel,
    Text,
    check_equal,
    wrong,
)
from lightwell.server.schemas.chat_messages import MAX_MESSAGES
from lightwell.server.schemas.chat_templates import TEMPLATE_ARGUMENTS, TemplateArguments
from lightwell.server.schemas.known_fields import (
    IGNORED_EVERYWHERE,
    REFUSED_EVERYWHERE,
    Ignored,
    Refused,
    RefusedFields,
)
from lightwell.server.schemas.sampling import MAX_STOP_STRINGS, MAX_TOKENS, SamplingFields, StopString
from lightwell.server.schemas.thinking import EFFORT

MAX_TOOLS = 128


IGNORED_BY_MESSAGES: Ignored = {
    **{name: IGNORED_EVERYWHERE[name] for name in ("metadata", "service_tier")},
    "anthropic_version": "there is only one version",
    **dict.fromkeys(("anthropic_beta", "betas"), "the available features need no beta"),
    "cache_control": "the server manages the prefix cache",
    "diagnostics": "usage contains the number of cached tokens",
    "inference_geo": "the location of the server is fixed",
    "speed": "there is only one speed",
    **dict.fromkeys(("user_profile_id", "workspace_id"), IGNORED_EVERYWHERE["metadata"]),
    **dict.fromkeys(("billing_policy", "fallback_credit_token"), "nothing is billed"),
    "fallbacks": "this server has no other model as a fallback",
    "stream_options": "a stream always contains the usage",
}
REFUSED_BY_MESSAGES: RefusedFields = {
    **REFUSED_EVERYWHERE,
    "container": Refused("the server has no containers"),
    "mcp_servers": Refused("the server does not call other servers"),
    "context_management": Refused(
        "the server does not change conversations",
        ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    ),
    "compaction": Refused("the server does not summarise conversations"),
    "thread": Refused("the server stores no state: send the whole conversation"),
    "n": Refused("a message has one answer", (1,)),
    "max_completion_tokens": Refused("use max_tokens instead"),
    **dict.fromkeys(
        ("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"),
        Refused("use POST /v1/chat/completions"),
    ),
}


class Tool(RequestModel):
    """A tool that the client runs."""

    IGNORED: ClassVar[Ignored] = {
        "cache_control": IGNORED_BY_MESSAGES["cache_control"],
        "eager_input_streaming": "arguments are always streamed",
    }
    REFUSED: ClassVar[RefusedFields] = {
        "allowed_callers": Refused("only the model can call tools", (["direct"],)),
        "input_examples": Refused("chat templates do not support them: write them into description"),
    }

    type: Text | None = Field(None, description="custom, or null, which is the same.")
    name: Text = Field(min_length=1, max_length=256, description="Name of the tool.")
    description: Text | None = Field(None, description="Description of the tool, for the model.")
    input_schema: JsonDict = Field(description="JSON schema of its arguments.")
    strict: bool | None = Field(None, description="Let the arguments keep to the schema.")
    defer_loading: bool | None = Field(
        None, description="Leave it out of the prompt until a tool_reference in the result of a tool names it."
    )

    @model_validator(mode="before")
    @classmethod
    def _is_the_clients(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise wrong(
                "type",
                f"{shown(kind)} is a tool of Anthropic, which this server does not have; tools of type custom, with "
                "an input_schema, are accepted",
            )
        return data


class ToolChoice(RequestModel):
    """Whether the model calls a tool, and which."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="auto: the model chooses; any: at least one call; tool: a call of the named tool; none: no call."
    )
    name: Text | None = Field(None, min_length=1, description="Name of the tool, for type tool.")
    disable_parallel_tool_use: bool | None = Field(None, description="Let the model call one tool at most.")

    @model_validator(mode="after")
    def _a_tool_has_a_name(self) -> "ToolChoice":
        if self.type == "tool" and self.name is None:
            raise wrong("name", "tool_choice type tool needs name, the name of a tool")
        return self


class Thinking(RequestModel):
    """Turns thinking on or off, and limits its tokens."""

    type: Literal["enabled", "adaptive", "disabled"] = Field(
        description="enabled and adaptive: it may think; disabled: it does not, as with a budget of 0."
    )
    budget_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKENS, description="Most tokens of thinking, after which it is closed; null is no limit."
    )
    display: Literal["summarized", "omitted", "updates"] | None = Field(
        None,
        description="omitted and updates leave thinking out of the answer (no model here writes progress notes); "
        "otherwise it is sent unchanged, without a summary.",
    )

    @property
    def budget(self) -> int | None:
        """Return the most tokens of thinking, or None for no limit."""
        return 0 if self.type == "disabled" else self.budget_tokens

    @property
    def is_shown(self) -> bool:
        """Return whether the answer contains the thinking."""
        return self.display not in ("omitted", "updates")


class JsonFormat(RequestModel):
    """The form of the answer's text."""

    IGNORED: ClassVar[Ignored] = {"name": IGNORED_EVERYWHERE["metadata"]}

    type: Literal["json_schema"] = Field(description="json_schema.")
    json_schema: JsonDict = Field(alias="schema", description="The schema that the text keeps to.")


class OutputConfig(RequestModel):
    """Format of the answer."""

    REFUSED: ClassVar[RefusedFields] = {"task_budget": Refused("use max_tokens to limit an answer")}

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(None, description=EFFORT)
    format: JsonFormat | None = Field(None, description="The form of the text; null is free text.")


class ConversationFields(RequestModel):
    """The fields for the prompt. Both routes have them."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        description="The conversation so far; the answer continues a last message of the assistant. Blocks of text "
        "are joined by newlines."
    )
    system: Text | OnlyText | None = Field(None, description="The system prompt: a text, or text blocks.")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Tools that the model may call."
    )
    tool_choice: ToolChoice | None = Field(None, description="Whether it calls any; null is auto.")
    thinking: Thinking | None = Field(None, description="Whether it thinks; null is as the chat template has it.")
    output_config: OutputConfig | None = Field(None, description="Format of the answer.")
    output_format: JsonFormat | None = Field(None, description="An older name of output_config.format.")
    chat_template_kwargs: TemplateArguments | None = Field(None, description=TEMPLATE_ARGUMENTS)

    @model_validator(mode="after")
    def _fields_agree(self) -> "ConversationFields":
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not self.tools:
            raise wrong("tool_choice", f"type {choice.type} needs tools, but the request has none")
        newer = None if self.output_config is None else self.output_config.format
        check_equal({"output_config.format": newer, "output_format": self.output_format})
        return self

    @property
    def format(self) -> JsonFormat | None:
        """Return the form of the answer's text, or None for free text."""
        return self.output_format or (None if self.output_config is None else self.output_config.format)


class MessagesRequest(ConversationFields, SamplingFields):
    """Body of POST /v1/messages."""

    IGNORED = IGNORED_BY_MESSAGES
    REFUSED = REFUSED_BY_MESSAGES

    max_tokens: int = Field(
        ge=1, le=MAX_TOKENS, description="Largest number of tokens to generate, reduced to the remaining context."
    )
    stop: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = Field(
        None, alias="stop_sequences", description="Strings that end the answer; they are not part of it."
    )
    truncate: bool = Field(
        False, description="Drop the beginning of a conversation that does not fit, instead of refusing it."
    )

    @model_validator(mode="after")
    def _calls_have_results(self) -> "MessagesRequest":
        last = len(self.messages) - 1
        if any(isinstance(block, ToolUseBlock) for block in self.messages[last].blocks):
            raise wrong(
                f"messages[{last}]", "the last message contains tool calls; a message with their results must follow"
            )
        return self


class CountTokensRequest(ConversationFields, ModelField):
    """Body of POST /v1/messages/count_tokens."""

    IGNORED: ClassVar[Ignored] = {
        **IGNORED_BY_MESSAGES,
        "max_tokens": "only the tokens of the prompt are counted",
        "cache_salt": "nothing is cached",
    }
    REFUSED = REFUSED_BY_MESSAGES


class MessagesUsage(AnswerModel):
    """Tokens of one message."""

    input_tokens: int = Field(description="Tokens of the prompt that were read.")
    cache_read_input_tokens: int = Field(description="Further tokens of it, which came from the prefix cache.")
    cache_creation_input_tokens: int = Field(description="0: the prefix cache is not written to on demand.")
    output_tokens: int = Field(description="Tokens generated.")


StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]


class MessagesAnswer(AnswerModel):
    """Answer of POST /v1/messages."""

    id: str = Field(description="Unique id.")
    type: Literal["message"] = Field(description="Kind of answer.")
    role: Literal["assistant"] = Field(description="Who speaks.")
    model: str = Field(description="Name of the model.")
    content: list[dict[str, Any]] = Field(
        description="Blocks: thinking, text, tool_use; when asked for, each with `attention`, the rows that chose its "
        "tokens."
    )
    stop_reason: StopReason | None = Field(description="Why it ended.")
    stop_sequence: str | None = Field(description="The stop sequence that ended it.")
    usage: MessagesUsage = Field(description="Token counts.")


class MessagesErrorAnswer(AnswerModel):
    """The shape of every error of these routes."""

    type: Literal["error"] = Field(description="Kind of answer.")
    error: ErrorDetail = Field(description="The error.")
    request_id: str | None = Field(description="Id of the request, as the header `request-id` has it.")


class CountTokensAnswer(AnswerModel):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int = Field(description="Tokens of the conversation, as the chat template writes it.")
