"""The parser reads messages from their text, cut at any places: it loses no character and reads none twice."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.model.tokenization.chat_formats.call_syntax import GENERIC, BareSyntax, CallSyntax, PairSyntax, Tool
from lightwell.model.tokenization.chat_formats.message import Message, MessageDelta, joined
from lightwell.model.tokenization.chat_formats.parser import TaggedText
from lightwell.model.tokenization.chat_formats.probe import PYTHON_CALLS, with_other_forms
from lightwell.model.tokenization.chat_formats.thoughts import KNOWN, Start, ThoughtTags
from tests.model.tokenization.chat_formats.conftest import spelled
from tests.support.examples import examples

THINK = ThoughtTags("<think>", "</think>")
LLAMA = with_other_forms(CallSyntax(opening='{"name": "', between='", "parameters": ', closing="}"), ["<|python_tag|>"])
MISTRAL = CallSyntax(
    opening='[TOOL_CALLS] [{"name": "', between='", "arguments": ', next_call='}, {"name": "', closing="}]"
)
ARGS = CallSyntax(opening="[TOOL_CALLS]", between="[ARGS]", next_call="[TOOL_CALLS]", closing="")
XML = with_other_forms(
    CallSyntax(
        opening="<tool_call>\n<function=",
        between=">",
        next_call="\n</function>\n</tool_call>\n<tool_call>\n<function=",
        closing="\n</function>\n</tool_call>",
        pairs=PairSyntax("\n<parameter=", ">\n", "\n</parameter>"),
    ),
    [],
)
BARE = CallSyntax(
    opening="<|tool_call>call:",
    between="",
    next_call="<tool_call|><|tool_call>call:",
    closing="<tool_call|>",
    bare=BareSyntax('<|"|>', is_sorted=True),
)
ESCAPED = CallSyntax(
    opening="<call>",
    between="",
    next_call="</call>\n<call>",
    closing="</call>",
    bare=BareSyntax("<escape>", ", ", ": "),
)
LIST = replace(PYTHON_CALLS, opening="[", closing="]")
(CHANNELS,) = (tags for tags in KNOWN if tags.opening == "<|channel|>analysis<|message|>")
GPT_OSS = with_other_forms(
    CallSyntax(opening="to=functions.", between="<|channel|>commentary json<|message|>", closing=""), []
)
SYNTAXES = {
    "generic": GENERIC, "llama": LLAMA, "mistral": MISTRAL, "args": ARGS, "xml": XML, "bare": BARE, "escaped": ESCAPED,
    "python": PYTHON_CALLS, "list": LIST,
}  # fmt: skip
NAMES = ("get", "get_all")
every_syntax = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)


def parser(syntax: CallSyntax | None = GENERIC, start: Start = Start.ANSWER) -> TaggedText:
    return TaggedText(THINK, start, syntax, [Tool(name, {}) for name in NAMES])


def deltas(reader: TaggedText, pieces: Sequence[str]) -> list[MessageDelta]:
    return [*(reader.push(piece) for piece in pieces), reader.flush()]


def read(text: str, syntax: CallSyntax | None = GENERIC, start: Start = Start.ANSWER) -> Message:
    return joined(deltas(parser(syntax, start), [text]))


def calls_of(message: Message) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in message.tool_calls]


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


values = st.recursive(
    st.one_of(
        st.integers(), st.booleans(), st.none(), st.text(max_size=8), st.sampled_from(['"}', "\\", "</tool_call>"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)
arguments = st.dictionaries(st.text(max_size=5), values, max_size=3).map(json.dumps)
call = st.tuples(st.sampled_from(NAMES), arguments)
fragments = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", '{"name": "', "get", '", "arguments": ', '", "parameters": ', "{}", "}",
        "[", "]", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", "\n", " ", "<", "hello", "<|python_tag|>",
        '{"a": "}"}', "<|tool_call>", "call:", '<|"|>', "<tool_call|>", "<escape>", "{a:", ",", "<call>",
    ]
)  # fmt: skip
texts = st.lists(st.one_of(fragments, st.text(max_size=3)), max_size=12).map("".join)


@every_syntax
@settings(max_examples=examples(100) // 2)
@given(text=texts, places=st.lists(st.integers(0, 1000), max_size=20), start=st.sampled_from(Start))
def test_a_message_is_the_same_however_its_text_is_cut(
    syntax: CallSyntax, text: str, places: list[int], start: Start
) -> None:
    whole, parts = read(text, syntax, start), joined(deltas(parser(syntax, start), cut(text, places)))
    assert (parts.content, parts.reasoning, calls_of(parts)) == (whole.content, whole.reasoning, calls_of(whole))


@pytest.mark.parametrize("syntax", [each for each in SYNTAXES.values() if each.bare is None])
@settings(max_examples=examples(100) // 2)
@given(text=texts, start=st.sampled_from(Start))
def test_every_character_is_in_the_message_or_in_its_tags(syntax: CallSyntax, text: str, start: Start) -> None:
    """Remove the parsed parts from the text, in their order: only tags and white space are left."""
    message = read(text, syntax, start)
    rest = text
    for part in (message.reasoning, message.content, *(each.arguments for each in message.tool_calls)):
        for char in part:
            assert char in rest
            rest = rest.replace(char, "", 1)
    tags = "".join([*syntax.texts, *NAMES, THINK.opening, THINK.closing])
    assert set(rest) - set(tags) <= set(rest) & {char for char in rest if char.isspace()}
    if not message.tool_calls and start is Start.ANSWER:
        assert message == Message(content=text)


@pytest.mark.parametrize("syntax", [GENERIC, LLAMA, MISTRAL, ARGS], ids=["generic", "llama", "mistral", "args"])
@given(
    calls=st.lists(call, min_size=1, max_size=3),
    content=st.sampled_from(["", "Let me see.", "a < b"]),
    thought=st.sampled_from([None, "", "hm <tool_call>?", 'I call {"name": "get"}']),
    places=st.lists(st.integers(0, 1000), max_size=20),
)
def test_what_a_model_writes_is_read(
    syntax: CallSyntax, calls: list[tuple[str, str]], content: str, thought: str | None, places: list[int]
) -> None:
    if syntax is LLAMA:
        content, calls = "", calls[:1]
    text = f"{content}\n{spelled(syntax, calls)}" if content else spelled(syntax, calls)
    if thought is not None:
        text = f"<think>\n{thought}\n</think>\n\n{text}"
    message = joined(deltas(parser(syntax, Start.MAYBE), cut(text, places)))
    assert calls_of(message) == calls
    assert message.content == content
    assert message.reasoning == (thought or "")
    assert len({each.id for each in message.tool_calls}) == len(calls)


MANY_TYPES = Tool("get", {"properties": {"text": {"type": "string"}, "list": {"type": "array"}, "any": {}}})
pairs = st.fixed_dictionaries(
    {}, optional={"text": st.text(max_size=12), "list": st.lists(values, max_size=3), "any": st.integers()}
).filter(lambda made: "</" not in str(made))


@given(calls=st.lists(pairs, min_size=1, max_size=3), places=st.lists(st.integers(0, 1000), max_size=20))
def test_arguments_that_stand_one_by_one_become_json(calls: list[dict[str, Any]], places: list[int]) -> None:
    text = spelled(XML, [("get", json.dumps(each)) for each in calls])
    message = joined(deltas(TaggedText(syntax=XML, tools=[MANY_TYPES]), cut(text, places)))
    assert [json.loads(each.arguments) for each in message.tool_calls] == calls
    assert not message.content


bare_arguments = st.dictionaries(
    st.from_regex("[a-zé_-]([a-z -]?[a-z])?", fullmatch=True),
    st.recursive(
        st.one_of(
            *(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()),
            *(st.text(max_size=8), st.sampled_from(['"}', "\\", "</call>", "<tool_call|>", '<|"', "<esc", "{a:1}"])),
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.just("k"), inner)),
        max_leaves=5,
    ),
    max_size=4,
)


@pytest.mark.parametrize("syntax", [BARE, ESCAPED], ids=["bare", "escaped"])
@given(calls=st.lists(bare_arguments, min_size=1, max_size=3), places=st.lists(st.integers(0, 1000), max_size=20))
def test_arguments_with_bare_names_and_literal_texts_become_json(
    syntax: CallSyntax, calls: list[dict[str, Any]], places: list[int]
) -> None:
    text = "So: " + spelled(syntax, [("get", json.dumps(each)) for each in calls])
    message = joined(deltas(parser(syntax), cut(text, places)))
    assert [json.loads(each.arguments) for each in message.tool_calls] == calls
    assert message.content == "So:"


def test_bare_arguments_come_as_they_are_written() -> None:
    reader = parser(BARE)
    written = [reader.push(text) for text in ('<|tool_call>call:get{a:<|"|>I sa', 'y "no"<', "|", '"|>,b:[1', ",2]}")]
    calls = [call.arguments for delta in written for call in delta.tool_calls]
    assert calls == ['{"a": "I sa', 'y \\"no\\"', '", "b": [1', ", 2]}"]


def test_a_value_of_a_kind_that_no_schema_tells_is_json_or_text() -> None:
    text = spelled(XML, [("get", json.dumps({"a": "Bern", "b": 3}))])
    (made,) = read(text, XML).tool_calls
    assert json.loads(made.arguments) == {"a": "Bern", "b": 3}


def test_text_among_arguments_comes_as_it_is_written() -> None:
    reader = TaggedText(syntax=XML, tools=[MANY_TYPES])
    reader.push("<tool_call>\n<function=get>\n<parameter=text>\nI sa")
    (delta,) = reader.push('y "no"').tool_calls
    assert delta.arguments == 'y \\"no\\"'


@pytest.mark.parametrize("start", [Start.MAYBE, Start.ANSWER])
@given(pieces=st.lists(st.text(alphabet="ab ", min_size=1, max_size=3).filter(str.strip), max_size=8))
def test_text_that_is_no_tag_is_content_at_once(start: Start, pieces: list[str]) -> None:
    reader = parser(GENERIC, start)
    so_far = given_out = ""
    for piece in pieces:
        so_far += piece
        given_out += reader.push(piece).content
        assert given_out.strip() == so_far.strip()


def test_a_call_is_known_with_its_name_and_then_grows() -> None:
    reader = parser()
    assert reader.push('Yes.\n<tool_call>\n{"name": "get') == MessageDelta(content="Yes.")
    assert reader.push('_all", "arguments": ') == MessageDelta()
    (first,) = reader.push('{"a": [').tool_calls
    assert (first.index, first.name, first.arguments) == (0, "get_all", '{"a": [')
    assert re.fullmatch(r"call_[A-Za-z0-9]{24}", first.id or "")
    (second,) = reader.push("1]}").tool_calls
    assert (second.index, second.id, second.name, second.arguments) == (0, None, None, "1]}")
    assert reader.push("}\n</tool_call>") == MessageDelta()
    assert reader.flush() == MessageDelta()


def test_ids_of_mistrals_calls_have_nine_characters() -> None:
    (made,) = read(spelled(MISTRAL, [("get", "{}")]), MISTRAL).tool_calls
    assert re.fullmatch(r"[A-Za-z0-9]{9}", made.id)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "get", "arguments": "text"}\n</tool_call>',
        "<tool_call> is what I would write",
        "a <tool_cal",
        "<tool_call>\n",
    ],
)
def test_what_looks_like_a_call_and_is_none_is_content(text: str) -> None:
    assert read(text) == Message(content=text)


def test_json_within_a_text_is_no_call_of_llamas() -> None:
    text = 'Write {"name": "get", "parameters": {}}'
    assert read(text, LLAMA) == Message(content=text)
    assert calls_of(read('<|python_tag|>{"name": "get", "parameters": {}}', LLAMA)) == [("get", "{}")]


def test_a_call_that_the_limit_cuts_keeps_what_it_has() -> None:
    text = spelled(GENERIC, [("get", '{"a": 1}')])
    assert calls_of(read(text[: text.index("1}")])) == [("get", '{"a": ')]
    cut_in_tag = read(text[:-4])
    assert (cut_in_tag.content, calls_of(cut_in_tag)) == ("", [("get", '{"a": 1}')])


def test_a_thought_that_the_limit_cuts_is_reasoning() -> None:
    assert read("so I", start=Start.THOUGHT) == Message(reasoning="so I")
    assert read("<think>so I </thi", start=Start.MAYBE).reasoning == "so I </thi"


@pytest.mark.parametrize("cuts", [[], list(range(200))], ids=["whole", "by character"])
@pytest.mark.parametrize("thought", ["", "Hm."])
def test_channels_are_told_apart(thought: str, cuts: list[int]) -> None:
    before = f"{CHANNELS.opening}{thought}{CHANNELS.closing}" if thought else ""
    call = " to=functions.get<|channel|>commentary json<|message|>{}"
    for text, content, calls in ((f"{CHANNELS.answer}Yes.", "Yes.", []), (call, "", [("get", "{}")])):
        reader = TaggedText(CHANNELS, Start.MAYBE, GPT_OSS, [Tool("get", {})])
        message = joined(deltas(reader, cut(before + text, cuts)))
        assert (message.reasoning, message.content, calls_of(message)) == (thought, content, calls)


def test_a_prompt_that_opens_no_thought_has_none() -> None:
    assert read("<think>x</think>y", None) == Message(content="<think>x</think>y")


def test_a_call_without_arguments_may_hold_empty_lines() -> None:
    message = read("<tool_call>\n<function=get>\n\n</function>\n</tool_call>", XML)
    assert (calls_of(message), message.content) == ([("get", "{}")], "")
