"""Finds how a chat template writes tools and calls, by rendering conversations that hold words of no language. It knows
no template's source.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.tokenization.chat_formats.call_syntax import GENERIC, CallSyntax
from model.tokenization.template_client import ChatTemplateError

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Writes messages and tools as the template does, without a generation prompt. Raises ChatTemplateError."""

_NAMES = ("Zqfirst", "Zqsecond")
_IDS = ("Zq0first1", "Zq0secnd2")
"""Nine letters and digits, as Mistral's templates demand."""
_KEYS = ("zqone", "zqtwo")
_TOOL = {
    "type": "function",
    "function": {
        "name": "Zqtool",
        "description": "Zq",
        "parameters": {"type": "object", "properties": {"zqone": {"type": "integer", "description": "Zq"}}},
    },
}
_USER = {"role": "user", "content": "Zquser"}
_PLAIN = {"role": "assistant", "content": "Zqplain"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How conversations with tools are written."""

    syntax: CallSyntax
    by_template: bool
    """Whether the template writes tools, calls and results itself. If not, they are written into the messages."""
    takes_system: bool = True
    """Whether the template writes a system message."""
    arguments_as_text: bool = False
    """Whether the template wants the arguments of past calls as JSON, not as objects."""


def find_tool_use(render: Render, special: Collection[str] = ()) -> ToolUse:
    """Return how a template's conversations with tools are written; `special` are the tokenizer's special tokens."""
    for as_text in (False, True) if _writes_tools(render) else ():
        syntax = _syntax(render, special, as_text)
        if syntax is not None:
            return ToolUse(syntax, by_template=True, arguments_as_text=as_text)
    return ToolUse(GENERIC, by_template=False, takes_system=_takes_system(render))


def _writes_tools(render: Render) -> bool:
    try:
        return "Zqtool" in render([_USER], [_TOOL])
    except ChatTemplateError:
        return False


def _takes_system(render: Render) -> bool:
    try:
        return "Zqsystem" in render([{"role": "system", "content": "Zqsystem"}, _USER], None)
    except ChatTemplateError:
        return False


def _with_calls(numbers: Sequence[int], as_text: bool) -> list[dict[str, Any]]:
    calls = []
    for number in numbers:
        arguments = {_KEYS[number]: number}
        function = {"name": _NAMES[number], "arguments": json.dumps(arguments) if as_text else arguments}
        calls.append({"id": _IDS[number], "type": "function", "function": function})
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}]


def _syntax(render: Render, special: Collection[str], as_text: bool) -> CallSyntax | None:
    """Return the texts around calls, or None where a call is not written with its arguments as JSON."""
    try:
        text, plain = render(_with_calls([0], as_text), [_TOOL]), render([_USER, _PLAIN], [_TOOL])
    except ChatTemplateError:
        return None
    found = _Found.of(text, 0)
    if found is None:
        return None
    opening = text[_num_shared(text, plain) : found.name].lstrip()
    # What ends every message is no part of the call.
    end = plain.partition("Zqplain")[2]
    after = text[found.end :]
    closing = after[: len(after) - _num_shared(after[::-1], end[::-1])].rstrip()
    if not opening:
        return None
    return CallSyntax(
        opening=opening,
        between=_without_id(text[found.name + len(_NAMES[0]) : found.arguments], 0),
        closing=_without_id(closing, 0),
        next_call=_next_call(render, as_text),
        prefix=_PYTHON_TAG if opening.startswith("{") and _PYTHON_TAG in special else "",
    )


def _num_shared(one: str, other: str) -> int:
    """Return with how many characters both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


_PYTHON_TAG = "<|python_tag|>"
"""What Llama's models write before some calls, and never before text."""


def _next_call(render: Render, as_text: bool) -> str | None:
    try:
        text = render(_with_calls([0, 1], as_text), [_TOOL])
    except ChatTemplateError:
        return None
    first, second = _Found.of(text, 0), _Found.of(text, 1)
    return None if first is None or second is None else _without_id(text[first.end : second.name], 0)


def _without_id(text: str, number: int) -> str:
    """Leave out the id that some templates write into a call: its server makes it, not the model."""
    as_member = rf',\s*"id":\s*"{_IDS[number]}"'
    return re.sub(rf"{as_member}|\[CALL_ID\]{_IDS[number]}", "", text)


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a call stands in a text."""

    name: int
    arguments: int
    end: int
    """Where its arguments end."""

    @classmethod
    def of(cls, text: str, number: int) -> "_Found | None":
        name = text.find(_NAMES[number])
        key = text.find(json.dumps(_KEYS[number]), name)
        if name < 0 or key < 0:
            return None
        written = re.compile(rf'\{{\s*"{_KEYS[number]}"\s*:\s*{number}\s*\}}').search(text, name)
        return None if written is None else cls(name, written.start(), written.end())
