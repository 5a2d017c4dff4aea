"""Finds how a chat template writes tools and calls, by rendering conversations that hold words of no language. It knows
no template's source.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model.tokenization.chat_formats.call_syntax import GENERIC, BareSyntax, CallSyntax, PairSyntax
from model.tokenization.template_client import ChatTemplateError

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Writes messages and tools as the template does, without a generation prompt. Raises ChatTemplateError."""

_NAMES = ("Zqfirst", "Zqsecond")
_IDS = ("Zq0first1", "Zq0secnd2")
"""Nine letters and digits, as Mistral's templates demand."""
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
    if _writes_tools(render):
        for arguments, pattern, bare in _ways(render):
            syntax = _syntax(render, special, arguments, pattern)
            if syntax is not None:
                syntax = replace(syntax, bare=bare)
                return ToolUse(syntax, by_template=True, arguments_as_text=isinstance(arguments, str))
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


_PARTS = [{"type": "text", "text": "Zqone"}, {"type": "text", "text": "Zqtwo"}]


def find_part_roles(render: Render, arguments_as_text: bool) -> frozenset[str]:
    """Return the roles whose content a template reads as a list of text parts, with tools and without.

    `arguments_as_text` is that of the template's `ToolUse`.
    """
    calls = _with_calls(1, json.dumps(_OBJECT) if arguments_as_text else _OBJECT)
    before: dict[str, list[dict[str, Any]]] = {"user": [], "assistant": [_USER], "tool": calls}
    last: dict[str, Any] = {"content": _PARTS, "tool_call_id": _IDS[0], "name": _NAMES[0]}
    conversations = {role: [*rows, {**last, "role": role}] for role, rows in before.items()}
    conversations |= {role: [{"role": role, "content": _PARTS}, _USER] for role in ("system", "developer")}
    return frozenset(role for role, rows in conversations.items() if all(_parts_are_read(render, rows)))


def _parts_are_read(render: Render, messages: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    for tools in (None, [_TOOL]):
        try:
            text = render(messages, tools)
        except ChatTemplateError:
            yield False
            continue
        found, _, rest = text.partition("Zqone")[2].partition("Zqtwo")
        yield bool(rest or text.endswith("Zqtwo")) and not re.search("[\"']text[\"']", found)  # the list as it is


_OBJECT = {"zqone": 1}
_AS_JSON = re.compile(r'\{\s*"zqone"\s*:\s*1\s*\}')
_PAIRS = {"zqone": "Zqtext", "zqtwo": "Zqmore"}
_AS_PAIRS = re.compile(r"zqone(.{1,80}?)Zqtext(.{1,80}?)zqtwo(.{1,80}?)Zqmore", re.DOTALL)
_NESTED = {"zqtwo": {"zqin": [True], "zqbare": 'Zq"\\\n'}, "zqone": ["Zqtext", 1]}
"""Arguments whose names are not sorted, with a text that no escapes may change."""
_AS_BARE = re.compile(r"zqone(:\s*)\[(.{1,40}?)Zqtext\2(,\s*)1\]", re.DOTALL)


def _ways(render: Render) -> Iterator[tuple[Any, re.Pattern[str], BareSyntax | None]]:
    """Return arguments, and how each way of writing arguments writes them."""
    yield _OBJECT, _AS_JSON, None
    bare = _bare_syntax(render)
    if bare is not None:
        yield _NESTED, re.compile(re.escape(bare.written(_NESTED))), bare
    # Only now text: templates of bare arguments may write it as it is, between braces of their own.
    yield json.dumps(_OBJECT), _AS_JSON, None
    yield _PAIRS, _AS_PAIRS, None


def _bare_syntax(render: Render) -> BareSyntax | None:
    try:
        text = render(_with_calls(1, _NESTED), [_TOOL])
    except ChatTemplateError:
        return None
    match = _AS_BARE.search(text, max(text.find(_NAMES[0]), 0))
    if match is None or match[2] in ("'", '"'):
        return None
    both = (BareSyntax(match[2], match[3], match[1], is_sorted) for is_sorted in (True, False))
    return next((each for each in both if each.written(_NESTED) in text), None)


def _with_calls(number: int, arguments: Any) -> list[dict[str, Any]]:
    """Return a conversation whose last message has so many calls."""
    functions = [{"name": name, "arguments": arguments} for name in _NAMES[:number]]
    calls = [{"id": i, "type": "function", "function": each} for i, each in zip(_IDS, functions, strict=False)]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}]


def _syntax(render: Render, special: Collection[str], arguments: Any, pattern: re.Pattern[str]) -> CallSyntax | None:
    """Return the texts around calls, or None where arguments are not written as the pattern says."""
    try:
        text, plain = render(_with_calls(1, arguments), [_TOOL]), render([_USER, _PLAIN], [_TOOL])
    except ChatTemplateError:
        return None
    name = text.find(_NAMES[0])
    written = pattern.search(text, max(name, 0))
    opening = text[_num_shared(text, plain) : max(name, 0)].lstrip()
    if written is None or not opening:
        return None
    # What ends every message is no part of the call.
    end, after = plain.partition("Zqplain")[2], text[written.end() :]
    closing = after[: len(after) - _num_shared(after[::-1], end[::-1])].rstrip()
    closing = re.sub("<[^<>]*$", "", closing)  # nor is the beginning of a tag that ends a message in its own way
    next_call = _next_call(render, arguments, pattern)
    if next_call is not None and next_call.endswith(opening):
        end_of_each = next_call.removesuffix(opening).rstrip()
        # What comes behind a call's own end, such as a token that says that results follow, is no part of it either.
        closing = end_of_each if end_of_each and closing.startswith(end_of_each) else closing
    syntax = CallSyntax(
        opening=opening,
        between=_without_id(text[name + len(_NAMES[0]) : written.start()]),
        closing=_without_id(closing),
        next_call=next_call,
        prefix=_PYTHON_TAG if opening.startswith("{") and _PYTHON_TAG in special else "",
    )
    return _in_pairs(syntax, *written.groups()) if pattern is _AS_PAIRS else syntax


def _in_pairs(around: CallSyntax, after_name: str, inner: str, after_second: str) -> CallSyntax | None:
    """Return the syntax of calls whose arguments stand one by one: `inner` is what stands between two of them, and
    `around` has with its own texts what stands before the first name and after the last value.
    """
    before_name = inner[len(inner) - _num_shared(inner[::-1], around.between[::-1]) :]
    after_value = inner.removesuffix(before_name)
    ends = [around.closing, *(() if around.next_call is None else (around.next_call,))]
    is_clear = after_name == after_second and after_name[-1:] not in ("'", '"')
    if not (is_clear and before_name and after_value and all(each.startswith(after_value) for each in ends)):
        return None
    return replace(
        around,
        between=around.between.removesuffix(before_name),
        closing=around.closing.removeprefix(after_value),
        next_call=None if around.next_call is None else around.next_call.removeprefix(after_value),
        pairs=PairSyntax(before_name, after_name, after_value),
    )


def _num_shared(one: str, other: str) -> int:
    """Return with how many characters both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


_PYTHON_TAG = "<|python_tag|>"
"""What Llama's models write before some calls, and never before text."""


def _next_call(render: Render, arguments: Any, pattern: re.Pattern[str]) -> str | None:
    try:
        text = render(_with_calls(2, arguments), [_TOOL])
    except ChatTemplateError:
        return None
    first, second = pattern.search(text, max(text.find(_NAMES[0]), 0)), text.find(_NAMES[1])
    return None if first is None or second < first.end() else _without_id(text[first.end() : second])


def _without_id(text: str) -> str:
    """Leave out the id that some templates write into a call: the server makes it, not the model."""
    return re.sub(rf',\s*"id":\s*"{_IDS[0]}"|\[CALL_ID\]{_IDS[0]}', "", text)
