"""Assistant's messages and their deltas: text, reasoning and tool calls. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """The new part of a tool call."""

    index: int
    """Number of the call within its message."""
    id: str | None = None
    """The call's id, with its first delta only."""
    name: str | None = None
    """The tool's name, with the call's first delta only."""
    arguments: str = ""
    """The new part of the arguments, which are JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    """The new part of a message."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A whole tool call."""

    id: str
    name: str
    arguments: str
    """The arguments, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A whole message of the assistant."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def joined(deltas: list[MessageDelta]) -> Message:
    """Return the message of all deltas, in their order."""
    calls: dict[int, ToolCall] = {}
    arguments: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls):
        if call.index not in calls:
            calls[call.index] = ToolCall(id=call.id or "", name=call.name or "", arguments="")
        arguments.setdefault(call.index, []).append(call.arguments)
    return Message(
        content="".join([delta.content for delta in deltas]),
        reasoning="".join([delta.reasoning for delta in deltas]),
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments="".join(arguments[index])) for index, call in calls.items()
        ),
    )
