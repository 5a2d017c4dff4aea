"""The blocks of messages of Anthropic's API: blocks of text, thinking, tool calls and their results."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import JsonDict, RequestModel, Text, wrong
from lightwell.server.schemas.chat_messages import MAX_PARTS
from lightwell.server.schemas.known_fields import Ignored, Refused, RefusedFields

_CACHE_CONTROL = {"cache_control": "the server manages the prefix cache"}
_NO_TOOLSETS = Refused("the server has no toolsets")
_RUNS_NO_TOOLS = "the server runs no tools; the client runs them"

UNREAD_BLOCKS = {
    "image": "the server does not accept images",
    "document": "the server does not accept files: send their text",
    "search_result": "send the results as text",
    "container_upload": "the server has no containers",
    "compaction": "the server does not summarise conversations: send the whole conversation",
    "browser_state": "the server does not accept screenshots",
    **dict.fromkeys(
        (
            "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
            "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
            "mcp_tool_use", "mcp_tool_result",
        ),
        _RUNS_NO_TOOLS,
    ),
}  # fmt: skip
"""Types of blocks that are refused, each with the reason."""


class TextBlock(RequestModel):
    """Text."""

    IGNORED: ClassVar[Ignored] = {**_CACHE_CONTROL, "citations": "a field of answers; no chat template reads it"}

    type: Literal["text"] = Field(description="text.")
    text: Text = Field(description="The text.")


class ThinkingBlock(RequestModel):
    """The assistant's reasoning before its answer, for templates that use it."""

    IGNORED: ClassVar[Ignored] = {**_CACHE_CONTROL, "signature": "thinking blocks are used unchanged"}

    type: Literal["thinking"] = Field(description="thinking.")
    thinking: Text = Field(description="The text.")


class RedactedThinkingBlock(RequestModel):
    """Thinking that only its author's server can read: it is left out of the prompt."""

    IGNORED: ClassVar[Ignored] = {**_CACHE_CONTROL, "data": "only the server that encrypted it can decrypt it"}

    type: Literal["redacted_thinking"] = Field(description="redacted_thinking.")


class ToolUseBlock(RequestModel):
    """A tool call from an earlier answer."""

    IGNORED = _CACHE_CONTROL
    REFUSED: ClassVar[RefusedFields] = {
        "caller": Refused(_RUNS_NO_TOOLS, ({"type": "direct"},)),
        "toolset_name": _NO_TOOLSETS,
    }

    type: Literal["tool_use"] = Field(description="tool_use.")
    id: Text = Field(min_length=1, description="Id of the call, which its result repeats.")
    name: Text = Field(min_length=1, description="Name of the tool.")
    input: JsonDict = Field(description="The arguments.")


def _of_type(*types: str) -> Callable[[Any], Any]:
    """Return a validator that refuses blocks of other types, with the reason."""

    def check(block: Any) -> Any:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in types:
            why = UNREAD_BLOCKS.get(kind, "there are no such blocks here")
            raise wrong("type", f"{shown(kind)} is not supported: {why}; accepted: {', '.join(types)}")
        return block

    return check


def _tag(block: Any) -> str:
    """Return the tag of a block's schema. It is no identifier, so that no error's path has it."""
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return f"a {kind}" if isinstance(kind, str) else "a text"  # which says that a type is missing


OnlyText = Annotated[
    list[Annotated[TextBlock, BeforeValidator(_of_type("text"))]], Field(max_length=MAX_PARTS, fail_fast=True)
]
"""Text blocks only."""


class ToolReferenceBlock(RequestModel):
    """A tool that a search of the client's has found: its definition is in the prompt from then on."""

    IGNORED = _CACHE_CONTROL

    type: Literal["tool_reference"] = Field(description="tool_reference.")
    tool_name: Text = Field(min_length=1, description="Name of the tool.")

    @property
    def text(self) -> str:
        """Return the text that the model reads in its place."""
        return f"The tool {self.tool_name} was found."


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("a text")] | Annotated[ToolReferenceBlock, Tag("a tool_reference")],
    Discriminator(_tag),
    BeforeValidator(_of_type("text", "tool_reference")),
]


class ToolResultBlock(RequestModel):
    """The result of a tool."""

    IGNORED = _CACHE_CONTROL
    REFUSED: ClassVar[RefusedFields] = {"toolset_name": _NO_TOOLSETS}

    type: Literal["tool_result"] = Field(description="tool_result.")
    tool_use_id: Text = Field(min_length=1, description="Id of the call.")
    content: Text | Annotated[list[ResultBlock], Field(max_length=MAX_PARTS, fail_fast=True)] | None = Field(
        None, description="Result of the call: a text, or blocks of text and references to tools."
    )
    is_error: bool = Field(False, description="Whether the tool failed: the model then reads `Error: ` before it.")


BLOCKS: dict[str, type[RequestModel]] = {
    "text": TextBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}
"""The blocks that are read, by their type."""


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[ThinkingBlock, Tag("a thinking")]
    | Annotated[RedactedThinkingBlock, Tag("a redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("a tool_use")]
    | Annotated[ToolResultBlock, Tag("a tool_result")],
    Discriminator(_tag),
    BeforeValidator(_of_type(*BLOCKS)),
]

_BLOCKS_OF_A_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


class AnthropicMessage(RequestModel):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"] = Field(description="Who speaks.")
    content: Text | Annotated[list[ContentBlock], Field(max_length=MAX_PARTS, fail_fast=True)] = Field(
        description="A text, or blocks."
    )

    @model_validator(mode="after")
    def _blocks_are_of_the_role(self) -> "AnthropicMessage":
        accepted = _BLOCKS_OF_A_ROLE[self.role]
        for i, block in enumerate(self.blocks):
            if block.type not in accepted:
                raise wrong(
                    f"content[{i}]",
                    f"a message of the {self.role} cannot have a block of type {block.type!r}; accepted: "
                    f"{', '.join(accepted)}",
                )
        return self

    @property
    def blocks(self) -> list[ContentBlock]:
        """Return the blocks of the content: none if it is a text."""
        return self.content if isinstance(self.content, list) else []
