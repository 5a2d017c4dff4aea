"""Writes a conversation and its tools as chat templates read them: plain values, with arguments of calls as objects."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from server.http.errors import BadRequest, shown
from server.http.json_reader import check_json_text
from server.schemas.base import ChatMessage
from server.schemas.tools import ToolDefinition

Row = dict[str, Any]


async def chat_rows(messages: Sequence[ChatMessage]) -> list[Row]:
    """Return messages as rows. Raises BadRequest for arguments that are not an object as JSON."""
    if any(message.tool_calls for message in messages):  # there may be much JSON to read
        return await asyncio.to_thread(_rows, messages)
    return _rows(messages)


def _rows(messages: Sequence[ChatMessage]) -> list[Row]:
    texts = [call["function"]["arguments"] for message in messages for call in message.tool_calls or ()]
    check_json_text("".join(texts), "messages")
    rows = [message.as_template_input() for message in messages]
    names: dict[str, str] = {}
    for number, row in enumerate(rows):
        if "tool_calls" in row:
            row["tool_calls"] = [
                _with_arguments(call, f"messages[{number}].tool_calls[{index}].function.arguments")
                for index, call in enumerate(row["tool_calls"])
            ]
            names |= {call["id"]: call["function"]["name"] for call in row["tool_calls"]}
        elif row["role"] == "tool" and "name" not in row and row.get("tool_call_id") in names:
            row["name"] = names[row["tool_call_id"]]  # OpenAI's results do not name their tool, which some templates do
    return rows


def tool_rows(tools: Sequence[ToolDefinition]) -> list[Row]:
    """Return tools as rows."""
    return [tool.as_template_input() for tool in tools]


def _with_arguments(call: Row, field: str) -> Row:
    text = call["function"]["arguments"]
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            f"{field}: an object as JSON is accepted, which {shown(text)} is not: {error}", param=field
        ) from None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{field}: an object as JSON is accepted, got {shown(text)}.", param=field)
    return {"id": call["id"], "type": "function", "function": {**call["function"], "arguments": arguments}}
