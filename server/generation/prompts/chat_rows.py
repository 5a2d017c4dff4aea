"""Writes a conversation by its chat template, which reads plain values, with arguments of calls as objects."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightwell.model.tokenization.chat_formats.prefill import until_mark, with_mark
from lightwell.model.tokenization.chat_template import ChatTemplateError
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.http.json_reader import check_json_text
from lightwell.server.http.turns import FairTurns
from lightwell.server.observability.access_log import current_key
from lightwell.server.schemas.base import encodable
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.tools import ToolDefinition

Row = dict[str, Any]

_RENDERING = FairTurns()
"""The turns of chats at the one process that renders templates."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of OpenAI's API, which every template is given."""


async def render_chat(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    add_generation_prompt: bool,
    arguments: Mapping[str, Any] | None = None,
    tools: Sequence[ToolDefinition] = (),
    *,
    is_continued: bool = False,
) -> str:
    """Return the conversation as the model's template writes it, or up to the end of its last message's text if that
    `is_continued`. Raises BadRequest if there is no template, or it refuses.
    """
    if (template := model.chat_template) is None:
        raise BadRequest(
            f"messages: the model {model.id!r} has no chat template; POST /v1/completions is accepted, or "
            "start the server with --chat-template.",
            param="messages",
            code="no_chat_template",
        )
    rows = await chat_rows(messages, template.source)
    try:
        async with _RENDERING.turn(current_key(), 1):
            shown_rows, given = await template.with_tools(rows, [tool.as_template_input() for tool in tools])
            shown_rows = with_mark(shown_rows) if is_continued else shown_rows
            text = await template.render_async(shown_rows, add_generation_prompt, arguments, given)
        text = until_mark(text) if is_continued else text
    except ChatTemplateError as error:
        raise BadRequest(f"messages: the chat template rejects the messages: {error}", param="messages") from error
    try:
        return encodable(text)
    except ValueError as error:  # messages are known to be text, arguments of the template may be anything
        raise BadRequest(f"chat_template_kwargs: {error}", param="chat_template_kwargs") from None


async def chat_rows(messages: Sequence[ChatMessage], template: str) -> list[Row]:
    """Return messages as rows for the chat template with this source.

    Raises BadRequest for a role that OpenAI's API and the template do not name, and for arguments that are not
    an object as JSON.
    """
    for role in dict.fromkeys(message.role for message in messages):
        if role not in ROLES and not any(f"{quote}{role}{quote}" in template for quote in "'\""):
            field = f"messages[{[message.role for message in messages].index(role)}].role"
            accepted = f"{', '.join(ROLES)} and the roles that the chat template names are accepted"
            raise BadRequest(f"{field}: {accepted}, got {shown(role)}.", param=field)
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


def _with_arguments(call: Row, field: str) -> Row:
    text = call["function"]["arguments"]
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{field}: an object as JSON is accepted, got {shown(text)}.", param=field)
    try:
        encodable(json.dumps(arguments, ensure_ascii=False) if "\\u" in text else "")
    except ValueError as error:
        raise BadRequest(f"{field}: {error}", param=field) from None
    return {"id": call["id"], "type": "function", "function": {**call["function"], "arguments": arguments}}
