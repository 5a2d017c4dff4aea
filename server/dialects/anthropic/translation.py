"""Reads a body of Anthropic's API as a request for a chat's next message."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.request import ChatRequest, shared_fields
from lightwell.server.http.error_handlers import translated
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.anthropic.blocks import (
    AnthropicMessage,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from lightwell.server.schemas.anthropic.messages import ConversationFields, MessagesRequest, Tool, ToolChoice
from lightwell.server.schemas.chat_fields import ChatFields
from lightwell.server.schemas.chat_templates import THINKING_SWITCHES
from lightwell.server.schemas.structured_outputs import Constraint

_NAMES = {
    "tool_choice.function": "tool_choice",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "thinking_budget": "thinking",
    "reasoning_effort": "output_config.effort",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the chat, and where it came from."""

    message: dict[str, Any]
    place: str
    """Path of the part of the body that the message comes from."""
    paths: Mapping[str, str] = field(default_factory=dict)
    """Paths in the body of the message's parts that have other names there."""


def _turns_of(body: ConversationFields) -> list[Turn]:
    """Convert the conversation to a chat: the system message first, and each tool result as a separate message."""
    turns = []
    if body.system:
        turns.append(Turn({"role": "system", "content": _joined(body.system)}, "system", {"content": "system"}))
    for i, message in enumerate(body.messages):
        turns += _of_message(message, f"messages[{i}]")
    return turns


def _joined(content: str | Sequence[ResultBlock]) -> str:
    return content if isinstance(content, str) else "\n".join([block.text for block in content])


def _of_message(message: AnthropicMessage, place: str) -> Iterator[Turn]:
    if isinstance(message.content, str):
        yield Turn({"role": message.role, "content": message.content}, place)
    elif message.role == "assistant":
        yield _of_assistant(message, place)
    else:
        texts: list[str] = []
        for i, block in enumerate(message.blocks):
            if isinstance(block, ToolResultBlock):
                if texts:
                    yield Turn({"role": message.role, "content": "\n".join(texts)}, place)
                    texts = []
                result = ("Error: " if block.is_error else "") + _joined(block.content or "")
                result_turn = {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
                yield Turn(result_turn, f"{place}.content[{i}]")
            elif isinstance(block, TextBlock):
                texts.append(block.text)
        if texts or not message.content:
            yield Turn({"role": message.role, "content": "\n".join(texts)}, place)


def _of_assistant(message: AnthropicMessage, place: str) -> Turn:
    thoughts = [block.thinking for block in message.blocks if isinstance(block, ThinkingBlock)]
    blocks = {i: block for i, block in enumerate(message.blocks) if isinstance(block, ToolUseBlock)}
    calls = [_call(block, place) for block in blocks.values()]
    told: dict[str, Any] = {
        "role": message.role,
        "content": "\n".join([block.text for block in message.blocks if isinstance(block, TextBlock)]),
    }
    if any(thoughts):
        told["reasoning_content"] = "\n".join(thoughts)
    if calls:
        told["tool_calls"] = calls
    paths = {"tool_calls": f"{place}.content"}
    for number, i in enumerate(blocks):
        paths[f"tool_calls[{number}]"] = paths[f"tool_calls[{number}].function"] = f"{place}.content[{i}]"
        paths[f"tool_calls[{number}].function.arguments"] = f"{place}.content[{i}].input"
    return Turn(told, place, paths)


def _call(block: ToolUseBlock, place: str) -> dict[str, Any]:
    try:
        arguments = json.dumps(block.input, ensure_ascii=False)
    except RecursionError:
        raise BadRequest(f"{place}: the input of a tool_use is nested too deeply.", param=place) from None
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def chat_request(body: ConversationFields) -> ChatRequest:
    """Return the request for the next message, or only for its prompt if the body counts tokens. Raises BadRequest,
    with the names of the body's fields.
    """
    turns = _turns_of(body)
    names = FieldNames(_paths(body, turns), prompt_has="the prompt is too long: it has")  # Claude Code reads the words
    with names.in_errors():
        chat = translated(ChatFields, _chat_fields(body, turns))
    own: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        own = {**shared_fields(body), "max_tokens": body.max_tokens, "cuts_max_tokens": True, "truncate": body.truncate}
    form = "output_config.format" if body.output_format is None else "output_format"
    return ChatRequest(
        **own,
        names=names,
        chat=chat,
        constraint=None if body.format is None else Constraint(f"{form}.schema", "json", body.format.json_schema),
        reasoning_effort=None if body.output_config is None else body.output_config.effort,
        thinking_budget=None if body.thinking is None else body.thinking.budget,
    )


def _paths(body: ConversationFields, turns: Sequence[Turn]) -> dict[str, str]:
    """Return the paths in the body of the chat's fields; a message of the chat is one part of a message of the body."""
    paths = dict(_NAMES)
    for i, turn in enumerate(turns):
        paths |= {f"messages[{i}].{name}": path for name, path in turn.paths.items()} | {f"messages[{i}]": turn.place}
    for i, number in enumerate(loaded_tools(body)):
        paths[f"tools[{i}]"] = paths[f"tools[{i}].function"] = f"tools[{number}]"
        paths[f"tools[{i}].function.parameters"] = f"tools[{number}].input_schema"
    return paths


def _chat_fields(body: ConversationFields, turns: Sequence[Turn]) -> dict[str, Any]:
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    arguments = dict.fromkeys(THINKING_SWITCHES if thinks else (), True) | (body.chat_template_kwargs or {})
    last = turns[-1].message
    fields: dict[str, Any] = {
        "messages": [turn.message for turn in turns],
        "chat_template_kwargs": arguments or None,
        "add_generation_prompt": last["role"] != "assistant",
        "continue_final_message": last["role"] == "assistant" and "tool_calls" not in last,
    }
    if body.tools:
        fields["tools"] = [_tool(tool) for tool in loaded_tools(body).values()]
        fields |= _tool_choice(body.tool_choice)
    return fields


def loaded_tools(body: ConversationFields) -> Mapping[int, Tool]:
    """Return the tools that the model sees, by their numbers in the body: deferred ones only after a result names them.

    Who searches is a tool of the client's, as Claude Code's ToolSearch, so that nothing is lost by not showing them.
    """
    blocks = [block for message in body.messages for block in message.blocks if isinstance(block, ToolResultBlock)]
    parts = [part for block in blocks if isinstance(block.content, list) for part in block.content]
    found = {part.tool_name for part in parts if isinstance(part, ToolReferenceBlock)}
    tools = enumerate(body.tools or ())
    return {number: tool for number, tool in tools if not tool.defer_loading or tool.name in found}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    function |= {name: value for name in ("description", "strict") if (value := getattr(tool, name)) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    named = {"type": "function", "function": {"name": choice.name}}
    fields: dict[str, Any] = {
        "tool_choice": {"auto": "auto", "any": "required", "tool": named, "none": "none"}[choice.type]
    }
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields
