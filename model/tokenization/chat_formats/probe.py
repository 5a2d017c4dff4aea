"""Detection of a chat template's syntax of tools and calls, from renderings of conversations with made-up words. It
does not read the template's source.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, takewhile
from typing import Any

from lightwell.model.tokenization.chat_formats.call_syntax import (
    GENERIC,
    ID,
    ID_CHARACTERS,
    BareSyntax,
    CallSyntax,
    PairSyntax,
)
from lightwell.model.tokenization.chat_formats.thoughts import end_before_token
from lightwell.model.tokenization.template_client import ChatTemplateError

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Renders messages and tools with the template, without a generation prompt. Raises ChatTemplateError."""

_NAMES = ("Zqfirst", "Zqsecond")
_IDS = ("Zq0first1", "Zq0secnd2")
"""Ids of nine letters and digits, which Mistral's templates require."""
_IDS_WITH_NAMES = [f"functions.{name}:{number}" for number, name in enumerate(_NAMES)]
"""Ids for templates that write no name: the id contains the tool's name."""
_ANY_ID = "|".join(_IDS)
_ID_AFTER = rf',\s*"id":\s*"({_ANY_ID})"'
"""An id that some templates write after a call's arguments. The model may leave it out."""
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
_RESULT = {"role": "tool", "content": "Zqresult", "tool_call_id": _IDS[0], "name": _NAMES[0]}


PYTHON_CALLS = CallSyntax(
    opening="<|tool_call_start|>[",
    between="",
    next_call=", ",
    closing="]<|tool_call_end|>",
    pairs=PairSyntax(before_name="", after_name="=", after_value="", is_python=True),
)
UNWRITTEN = (
    PYTHON_CALLS,
    CallSyntax(opening='<|tool_call|>[{"name": "', between='", "arguments": ', next_call='}, {"name": "', closing="}]"),
)
"""The calls of models with templates that write tools but no calls: LFM2 and Granite 3."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The form of conversations with tools."""

    syntax: CallSyntax
    by_template: bool
    """Whether the template writes tools, calls and results. If not, they are written into the messages."""
    writes_calls: bool = True
    """Whether the template writes calls, and not only tools and their results."""
    takes_system: bool = True
    """Whether the template writes a system message."""
    arguments_as_text: bool = False
    """Whether the template expects the arguments of past calls as JSON, not as objects."""


def find_tool_use(render: Render, special: Collection[str] = (), end: str = "", thought_end: str = "") -> ToolUse:
    """Return the form of a template's conversations with tools.

    `special` are the tokenizer's special tokens, `end` the one at the end of a text, and `thought_end` the tag that
    closes reasoning.
    """
    render = _lenient(render)
    if "Zqtool" in render([_USER], [_TOOL]):
        for (arguments, pattern, bare), ids in product(_ways(render), (_IDS, _IDS_WITH_NAMES)):
            syntax = _syntax(partial(_with_calls, arguments=arguments, ids=ids), render, pattern, end, thought_end)
            if syntax is not None:
                is_named = re.match(f"{ID_CHARACTERS}*{ID}", syntax.between) is not None
                has_ids = is_named or _IDS[0] in render([*_with_calls(1, arguments), _RESULT], [_TOOL])
                pairs = syntax.pairs and _with_quotes(render, syntax.pairs)
                syntax = with_other_forms(replace(syntax, bare=bare, has_ids=has_ids, pairs=pairs), special)
                return ToolUse(syntax, by_template=True, arguments_as_text=isinstance(arguments, str))
        if _NAMES[0] not in render(_with_calls(1, _PAIRS), [_TOOL]):
            for syntax in (each for each in UNWRITTEN if each.trigger in special):
                return ToolUse(syntax, by_template=True, writes_calls=False)
    system = render([{"role": "system", "content": "Zqsystem"}, _USER], None)
    return ToolUse(GENERIC, by_template=False, takes_system="Zqsystem" in system)


def _lenient(render: Render) -> Render:
    """Return a function that renders like `render`, and returns "" for a refused conversation."""

    def written(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        try:
            return render(messages, tools)
        except ChatTemplateError:
            return ""

    return written


_TEXT = "Zq<zq>&\n"
"""A text that some templates quote."""


def _with_quotes(render: Render, pairs: PairSyntax) -> PairSyntax:
    """Return the syntax with the quotes of texts between tags."""
    text = render(_with_calls(1, {"zqone": _TEXT}), [_TOOL])
    around = re.escape(_TEXT).join([re.escape(pairs.after_name) + r"(\S*?)", r"(\S*?)" + re.escape(pairs.after_value)])
    found = re.search(around, text[max(text.find(_NAMES[0]), 0) :])
    return pairs if found is None or pairs.is_python else replace(pairs, quotes=(found[1], found[2]))


_PARTS = [{"type": "text", "text": "Zqone"}, {"type": "text", "text": "Zqtwo"}]


def find_part_roles(render: Render, arguments_as_text: bool) -> frozenset[str]:
    """Return the roles for which a template reads the content as a list of text parts, with tools and without.

    `arguments_as_text` is a field of the template's `ToolUse`.
    """
    calls = _with_calls(1, json.dumps(_OBJECT) if arguments_as_text else _OBJECT)
    before: dict[str, list[dict[str, Any]]] = {"user": [], "assistant": [_USER], "tool": calls}
    conversations = {role: [*rows, {**_RESULT, "role": role, "content": _PARTS}] for role, rows in before.items()}
    conversations |= {role: [{"role": role, "content": _PARTS}, _USER] for role in ("system", "developer")}
    return frozenset(role for role, rows in conversations.items() if all(_parts_are_read(_lenient(render), rows)))


def _parts_are_read(render: Render, messages: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    for tools in (None, [_TOOL]):
        text = render(messages, tools)
        found, _, rest = text.partition("Zqone")[2].partition("Zqtwo")
        # The key "text" between the parts means that the template wrote the list itself.
        yield bool(rest or text.endswith("Zqtwo")) and not re.search("[\"']text[\"']", found)


_OBJECT = {"zqone": 1}
_AS_JSON = re.compile(r'\{\s*"zqone"\s*:\s*1\s*\}')
_PAIRS = {"zqone": "Zqtext", "zqtwo": 7531}
_AS_PAIRS = re.compile(r"zqone(.{1,80}?)Zqtext(.{1,80}?)zqtwo(.{1,80}?)7531", re.DOTALL)
_AS_PYTHON = re.compile(r"""\(zqone=(['"]?)Zqtext\1, zqtwo=(['"]?)7531\2\)""")
"""A call in Python. Some templates write no quotes, others write them around numbers too."""
_NESTED = {"zqtwo": {"zqin": [True], "zqbare": 'Zq"\\\n'}, "zqone": ["Zqtext", 1]}
"""Arguments with unsorted names, and with a text that escapes would change."""
_AS_BARE = re.compile(r"zqone(:\s*)\[(.{1,40}?)Zqtext\2(,\s*)1\]", re.DOTALL)


def _ways(render: Render) -> Iterator[tuple[Any, re.Pattern[str], BareSyntax | None]]:
    """Return arguments for each syntax of arguments, with the pattern of their text."""
    yield _OBJECT, _AS_JSON, None
    bare = _bare_syntax(render)
    if bare is not None:
        yield _NESTED, re.compile(re.escape(bare.written(_NESTED))), bare
    yield _PAIRS, _AS_PYTHON, None
    yield _PAIRS, _AS_PAIRS, None
    # Arguments as text come last: templates of other forms may write them unchanged, between tags of their own.
    yield json.dumps(_OBJECT), _AS_JSON, None


def _bare_syntax(render: Render) -> BareSyntax | None:
    text = render(_with_calls(1, _NESTED), [_TOOL])
    match = _AS_BARE.search(text, max(text.find(_NAMES[0]), 0))
    if match is None or match[2] in ("'", '"'):
        return None
    both = (BareSyntax(match[2], match[3], match[1], is_sorted) for is_sorted in (True, False))
    return next((each for each in both if each.written(_NESTED) in text), None)


def _with_calls(number: int, arguments: Any, ids: Sequence[str] = _IDS) -> list[dict[str, Any]]:
    """Return a conversation with this number of calls in its last message."""
    functions = [{"name": name, "arguments": arguments} for name in _NAMES[:number]]
    calls = [{"id": i, "type": "function", "function": each} for i, each in zip(ids, functions, strict=False)]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}]


def _syntax(
    calls: Callable[[int], Any], render: Render, pattern: re.Pattern[str], end: str, thought_end: str
) -> CallSyntax | None:
    """Return the texts around calls, or None if the text of the arguments does not match the pattern."""
    text, plain = render(calls(1), [_TOOL]), render([_USER, _PLAIN], [_TOOL])
    name = text.find(_NAMES[0])
    written = pattern.search(text, max(name, 0))
    opening = text[len(_shared(text, plain)) : max(name, 0)]
    opening = (opening.rpartition(thought_end)[2] if thought_end else opening).lstrip()
    if written is None or not plain:
        return None
    id_after = re.match(_ID_AFTER, text[written.end() :])
    closing = _closing(text[written.end() :], plain.partition("Zqplain")[2], end)
    raw_between = text[name + len(_NAMES[0]) : written.start()]
    opening, between, with_id = _without_ids(opening), _without_ids(raw_between), re.sub(_ANY_ID, ID, raw_between)
    next_call, next_between = _next_call(render, calls, pattern)
    if next_call is not None:
        opening, next_call = _with_counts(opening, next_call)
        between, _ = _with_counts(between, next_between)
        if opening and next_call.endswith(opening):
            end_of_each = next_call.removesuffix(opening).rstrip()
            # Text after the end of a call, such as a token that announces results, is no part of it.
            closing = end_of_each if end_of_each and closing.startswith(end_of_each) else closing
    end_of_calls = end_before_token(text[written.end() :].rstrip().removeprefix(closing))
    optional_id = "" if id_after is None else re.sub(_ANY_ID, ID, id_after[0])
    syntax = CallSyntax(opening, between, closing, next_call, end_of_calls, optional_id)
    if not opening:  # text and calls have the same beginning, with which the generation prompt ends
        if not next_call or not text.endswith(next_call, 0, name):
            return None
        syntax = replace(syntax, others=(replace(syntax, opening=next_call),))
    if with_id != _without_ids(raw_between):
        syntax = replace(syntax, others=(replace(syntax, between=with_id),))
    if pattern is _AS_PYTHON:
        return replace(syntax, pairs=PYTHON_CALLS.pairs)
    return _in_pairs(syntax, *written.groups()) if pattern is _AS_PAIRS else syntax


def _closing(after: str, end_of_plain: str, end: str) -> str:
    """Return the text at the end of calls. `after` also contains the end of a message, which is no part of it."""
    after, end_of_plain = after.rstrip(), end_of_plain.rstrip()
    shared = _shared(after, end_of_plain, at_end=True)
    if end_of_plain and not shared:  # messages with calls end with a tag of their own
        after = re.sub("<[^/<>][^<>]*>$", "", after)
    return _without_ids(after.removesuffix(shared).rstrip().removesuffix(end).rstrip())


def _in_pairs(around: CallSyntax, after_name: str, inner: str, after_number: str) -> CallSyntax | None:
    """Return the syntax of calls with arguments written one by one. `inner` is the text between two arguments. The
    texts of `around` include those before the first name and after the last value.
    """
    before_name = _shared(inner, around.between, at_end=True)
    after_value = inner.removesuffix(before_name)
    ends = [around.closing, *(() if around.next_call is None else (around.next_call,))]
    is_clear = after_name[-1:] not in ("'", '"')
    typed = after_name.replace("string", "number") == after_number
    after_json = after_name.replace("string", ID) if typed else after_number
    if not (is_clear and before_name and after_value and all(each.startswith(after_value) for each in ends)):
        return None
    return replace(
        around,
        between=around.between.removesuffix(before_name),
        closing=around.closing.removeprefix(after_value),
        next_call=None if around.next_call is None else around.next_call.removeprefix(after_value),
        pairs=PairSyntax(before_name, after_name, after_value, "" if after_name == after_number else after_json),
    )


_TAGS = re.compile(r"<[^<>\n]*>|\[/?[A-Z_]+\]|\w+|.", re.DOTALL)
"""Tags, words and other characters: the units in which texts are compared, so that none is cut."""


def _shared(one: str, other: str, *, at_end: bool = False) -> str:
    """Return the common beginning, or end, of two texts."""
    order = -1 if at_end else 1
    pairs = zip(_TAGS.findall(one)[::order], _TAGS.findall(other)[::order], strict=False)
    return "".join([ours for ours, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)][::order])


def _next_call(render: Render, calls: Callable[[int], Any], pattern: re.Pattern[str]) -> tuple[str | None, str]:
    """Return the text between two calls, None if there is only one, and the text after the second call's name."""
    text = render(calls(2), [_TOOL])
    first, second = pattern.search(text, max(text.find(_NAMES[0]), 0)), text.find(_NAMES[1])
    if first is None or second < first.end():
        return None, ""
    behind = pattern.search(text, second)
    between = "" if behind is None else text[second + len(_NAMES[1]) : behind.start()]
    return _without_ids(text[first.end() : second]), _without_ids(between)


def _without_ids(text: str) -> str:
    """Replace ids by ID, and leave out an id that the server creates, not the model."""
    return re.sub(_ANY_ID, ID, re.sub(rf"{_ID_AFTER}|\[CALL_ID\]({_ANY_ID})", "", text))


def _with_counts(one: str, other: str) -> tuple[str, str]:
    """Return two texts with ID in place of the numbers that count calls: the texts end alike except for these."""
    ours, theirs = (re.split(r"(\d+)", text) for text in (one, other))
    for place in range(2, min(len(ours), len(theirs)), 2):
        if ours[1 - place] != theirs[1 - place]:
            break
        if ours[-place] != theirs[-place]:
            ours[-place] = theirs[-place] = ID
    return "".join(ours), "".join(theirs)


_PYTHON_TAGS = (("<|python_tag|>", ""), ("<|python_start|>", "<|python_end|>"))
"""The tokens that Llama's models write around some calls, but never around text."""
_CHANNELS = ("commentary", "analysis")
"""Channels of gpt-oss's calls. One of `_ENDS` follows the tool's name. The template writes another form."""
_ENDS = (" <|constrain|>json<|message|>", "<|constrain|>json<|message|>", " json<|message|>", "<|message|>")
_TAG_IN_TAG = re.compile(r"<([^<>\s]+)>\s*(<[^<>]+)")


def with_other_forms(syntax: CallSyntax, special: Collection[str]) -> CallSyntax:
    """Return a template's syntax with the other forms of calls that models use, but not their templates. `special` are
    the tokenizer's special tokens.
    """
    others = list(syntax.others)
    if syntax.opening and not syntax.is_tagged:
        tags = [(tag, end) for tag, end in _PYTHON_TAGS if tag in special]
        others += [replace(syntax, opening=tag + syntax.opening, optional_end=end) for tag, end in tags]
    if syntax.opening == "to=functions." and syntax.between.startswith("<|channel|>commentary"):
        others += [replace(syntax, between=f"<|channel|>commentary{end}") for end in _ENDS if " json" not in end]
        others += [CallSyntax(f"<|channel|>{name} to=functions.", end, "") for name in _CHANNELS for end in _ENDS]
    nested = _TAG_IN_TAG.fullmatch(syntax.opening)
    outer_end = f"</{nested[1]}>" if nested is not None else ""
    if nested is not None and syntax.closing.endswith(outer_end):  # models leave out the outer tag, or only its opening
        opening, closing = nested[2], syntax.closing.removesuffix(outer_end).rstrip()
        inner = replace(syntax, opening=opening, closing=closing, next_call=f"{closing}\n{opening}")
        others.append(replace(inner, optional_end=syntax.closing.removeprefix(closing)))
    return replace(syntax, others=tuple(others))
