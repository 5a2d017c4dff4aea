"""Messages for templates without tools, calls and their results, a role, or text parts."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lightwell.model.tokenization.chat_formats.call_syntax import CallSyntax

Row = Mapping[str, Any]
"""One message as a variable of a template."""

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""The fields from which templates read reasoning."""

_ABOUT_TOOLS = """\
You can call these tools, each described by a line of JSON:
{tools}

To call a tool, write its name and its arguments in this form, once for each call:
{form}

What a tool returns is then told to you between <tool_response> and </tool_response>."""


def write_out(rows: Sequence[Row], tools: Sequence[Row], syntax: CallSyntax, *, takes_system: bool) -> list[Row]:
    """Return messages of system, users and assistants only. The first one describes the tools, if there are any.

    A user's message right after a tool's result is joined to it: many templates require that users and assistants
    alternate.
    """
    written: list[dict[str, Any]] = []
    follows_result = False
    for row in rows:
        message = _written(row, syntax)
        if follows_result and message["role"] == "user":
            written[-1]["content"] += f"\n{message['content']}"
        else:
            written.append(message)
        follows_result = row["role"] == "tool" or (follows_result and message["role"] == "user")
    return _with_tools(written, tools, syntax, takes_system) if tools else list[Row](written)


def _written(row: Row, syntax: CallSyntax) -> dict[str, Any]:
    if row["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{row.get('content') or ''}\n</tool_response>"}
    return {key: value for key, value in with_written_calls(row, syntax).items() if key != "tool_call_id"}


def with_written_calls(row: Row, syntax: CallSyntax) -> Row:
    """Return a message with its calls as part of its content."""
    content, calls = row.get("content") or "", [call["function"] for call in row.get("tool_calls") or ()]
    written = {key: value for key, value in row.items() if key != "tool_calls"}
    if calls:
        text = syntax.written((call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls)
        content = content if isinstance(content, str) else joined_parts(content)
        written["content"] = f"{content}\n{text}" if content else text
    return written


def _with_tools(rows: list[dict[str, Any]], tools: Sequence[Row], syntax: CallSyntax, takes_system: bool) -> list[Row]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    form = syntax.written([("name of the tool", '{"name of an argument": "its value"}')])
    about = _ABOUT_TOOLS.format(tools=lines, form=form)
    role = "system" if takes_system else "user"
    place = next((index for index, row in enumerate(rows) if row["role"] == role), None)
    if place is None or (role == "system" and place > 0):
        return [{"role": role, "content": about}, *rows]
    own = rows[place]["content"]
    joined = f"{own}\n\n{about}" if takes_system else f"{about}\n\n{own}"
    return [*rows[:place], {**rows[place], "content": joined}, *rows[place + 1 :]]


def with_arguments_as_text(rows: Sequence[Row]) -> list[Row]:
    """Return messages with the arguments of calls as JSON, for templates that expect it."""
    return [
        {**row, "tool_calls": [_as_text(call) for call in row["tool_calls"]]} if row.get("tool_calls") else row
        for row in rows
    ]


def _as_text(call: Row) -> Row:
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def with_known_names(rows: Sequence[Row], source: str) -> list[Row]:
    """Return messages with their reasoning in every field that templates read. The role `developer` becomes `system`
    if the template's source does not contain it.
    """
    roles = {} if "developer" in source else {"developer": "system"}
    thoughts = [row.get("reasoning_content") for row in rows]
    return [
        {**row, "role": roles.get(row["role"], row["role"]), **dict.fromkeys(REASONING_FIELDS, thought)}
        if thought is not None or row["role"] in roles
        else row
        for row, thought in zip(rows, thoughts, strict=True)
    ]


def with_parts_for(rows: Sequence[Row], roles: Collection[str]) -> list[Row]:
    """Return messages with lists of text parts for these roles only, and one text for the others."""
    return [
        {**row, "content": joined_parts(row["content"])}
        if isinstance(row.get("content"), list) and row["role"] not in roles
        else row
        for row in rows
    ]


def joined_parts(parts: Iterable[Mapping[str, Any]]) -> str:
    """Return text parts as one text."""
    return "\n".join([part["text"] for part in parts])
