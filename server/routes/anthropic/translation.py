"""Translates a body of Anthropic's API into a chat's, and what is wrong with the chat back into the body's terms."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from server.http.error_handlers import retold, translated
from server.http.errors import BadRequest
from server.schemas.anthropic.blocks import (
    AnthropicMessage,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from server.schemas.anthropic.messages import ConversationFields, MessagesRequest, Tool, ToolChoice
from server.schemas.base import RunFields
from server.schemas.chat_templates import THINKING_SWITCHES
from server.schemas.generation import ChatCompletionRequest
from server.schemas.sampling import SamplingFields

_LIKE_A_CHATS = {*SamplingFields.model_fields, "max_tokens", "truncate"} - RunFields.model_fields.keys()
"""Fields of a body that are a chat's too; the route has heeded those of `RunFields`."""
_NAMES = (
    (r"stop\b", "stop_sequences"),
    (r"response_format(\.json_schema)?", "output_config.format"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
    (r"tool_choice\.function", "tool_choice"),
    (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (r"thinking_budget", "thinking"),
    (r"reasoning_effort", "output_config.effort"),
)
"""What a chat's fields are called here."""
_WORDING = ((r"the prompt has (?=.* tokens; at most)", "the prompt is too long: it has "),)
"""The words that Claude Code looks for."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the chat, and where it came from."""

    message: dict[str, Any]
    field: str
    """Path of the part of the body that it says."""


def told_in_terms_of(body: ConversationFields, turns: Sequence[Turn]) -> AbstractContextManager[None]:
    """Name the body's fields in what is wrong with the chat that it becomes, whose messages are these turns."""
    return retold(partial(_renamed, body, turns), _WORDING)


def _renamed(body: ConversationFields, turns: Sequence[Turn], field: str) -> str:
    for pattern, name in _NAMES:
        field = re.sub(f"^{pattern}", name, field)
    if body.output_format is not None:
        field = re.sub(r"^output_config\.format", "output_format", field)
    if found := re.match(r"messages\[(\d+)\]", field):
        field = turns[int(found[1])].field
    if found := re.match(r"tools\[(\d+)\]", field):
        field = f"tools[{list(loaded_tools(body))[int(found[1])]}]{field[found.end() :]}"
    return field


def turns_of(body: ConversationFields) -> list[Turn]:
    """Return the conversation as a chat has it: the system first, each result of a tool a message of its own."""
    turns = []
    if body.system:
        turns.append(Turn({"role": "system", "content": _joined(body.system)}, "system"))
    for i, message in enumerate(body.messages):
        turns += _of_message(message, f"messages[{i}]")
    return turns


def _joined(content: str | Sequence[ResultBlock]) -> str:
    return content if isinstance(content, str) else "\n".join([block.text for block in content])


def _of_message(message: AnthropicMessage, field: str) -> Iterator[Turn]:
    if isinstance(message.content, str):
        yield Turn({"role": message.role, "content": message.content}, field)
    elif message.role == "assistant":
        yield Turn(_of_assistant(message, field), field)
    else:
        texts: list[str] = []
        for i, block in enumerate(message.blocks):
            if isinstance(block, ToolResultBlock):
                if texts:
                    yield Turn({"role": message.role, "content": "\n".join(texts)}, field)
                    texts = []
                result = ("Error: " if block.is_error else "") + _joined(block.content or "")
                result_turn = {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
                yield Turn(result_turn, f"{field}.content[{i}]")
            elif isinstance(block, TextBlock):
                texts.append(block.text)
        if texts or not message.content:
            yield Turn({"role": message.role, "content": "\n".join(texts)}, field)


def _of_assistant(message: AnthropicMessage, field: str) -> dict[str, Any]:
    thoughts = [block.thinking for block in message.blocks if isinstance(block, ThinkingBlock)]
    calls = [_call(block, field) for block in message.blocks if isinstance(block, ToolUseBlock)]
    told: dict[str, Any] = {
        "role": message.role,
        "content": "\n".join([block.text for block in message.blocks if isinstance(block, TextBlock)]),
    }
    if any(thoughts):
        told["reasoning_content"] = "\n".join(thoughts)
    if calls:
        told["tool_calls"] = calls
    return told


def _call(block: ToolUseBlock, field: str) -> dict[str, Any]:
    try:
        arguments = json.dumps(block.input, ensure_ascii=False)
    except RecursionError:
        raise BadRequest(f"{field}: the input of a tool_use is nested too deeply.", param=field) from None
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def to_chat(body: ConversationFields, turns: Sequence[Turn]) -> ChatCompletionRequest:
    """Return the body as a chat. Raises BadRequest in the chat's own terms."""
    return translated(ChatCompletionRequest, chat_fields(body, turns))


def chat_fields(body: ConversationFields, turns: Sequence[Turn]) -> dict[str, Any]:
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    arguments = dict.fromkeys(THINKING_SWITCHES if thinks else (), True) | (body.chat_template_kwargs or {})
    fields: dict[str, Any] = {
        "messages": [turn.message for turn in turns],
        "chat_template_kwargs": arguments or None,
    }
    if body.tools:
        fields["tools"] = [_tool(tool) for tool in loaded_tools(body).values()]
        fields |= _tool_choice(body.tool_choice)
    if body.format is not None:
        schema = {"name": "answer", "schema": body.format.json_schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.output_config is not None:
        fields["reasoning_effort"] = body.output_config.effort
    if body.thinking is not None:
        fields["thinking_budget"] = body.thinking.budget
    if isinstance(body, MessagesRequest):
        fields |= {name: getattr(body, name) for name in body.model_fields_set & _LIKE_A_CHATS}
    last = turns[-1].message
    fields["add_generation_prompt"] = last["role"] != "assistant"
    fields["continue_final_message"] = last["role"] == "assistant" and "tool_calls" not in last
    return fields


def loaded_tools(body: ConversationFields) -> Mapping[int, Tool]:
    """Return the tools that the model sees, by their numbers in the body: those that are deferred once they are found.

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
