"""Calls, reasoning and special tokens as models write them, through a real engine and its grammars."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import PATH, tool_site
from tests.server.scripted_site import messages_of
from tests.server.serving import events_of

USER = [{"role": "user", "content": "How is Bern?"}]
CHANNELS = ("<|return|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|constrain|>")
GEMMA = (
    "<eos>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|turn>", "<turn|>",
)  # fmt: skip


def tool(name: str = "f", **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


THOUGHT = "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant"


@pytest.mark.parametrize(("choice", "head"), [
    ("auto", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"),
    ("required", "<|channel|>commentary to=functions.f<|message|>"),
    ("auto", "<|channel|>analysis to=functions.f <|constrain|>json<|message|>"),
    ("required", " to=functions.f<|channel|>commentary <|constrain|>json<|message|>"),
    ("auto", " to=functions.f<|channel|>commentary json<|message|>"),
])  # fmt: skip
async def test_every_form_of_harmonys_calls_is_a_call(tmp_path: Path, head: str, choice: str) -> None:
    body = {"messages": USER, "tools": [tool()], "tool_choice": choice}
    answer = await messages_of(tmp_path, templates.GPT_OSS, f'{THOUGHT}{head}{{"city":"Bern"}}', CHANNELS, body)
    assert calls_of(answer) == [("f", {"city": "Bern"})]
    assert (answer["finish_reason"], answer["message"]["reasoning"]) == ("tool_calls", "Need it.")
    assert answer["message"]["content"] is None


async def test_harmonys_preamble_is_content_and_a_call_may_follow_it(tmp_path: Path) -> None:
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Bern"}'
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, templates.GPT_OSS, THOUGHT + preamble + call, CHANNELS, body)
    assert (answer["message"]["content"], calls_of(answer)) == ("I look.", [("f", {"city": "Bern"})])


OPEN_HERMES = templates.HERMES.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
)
OPEN_HERMES = OPEN_HERMES.replace("{{ m.content }}", "{{ (m.content or '').split('</think>')[-1] }}")
HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Bern"}}\n</tool_call>'
TAGS = ("<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>")


@pytest.mark.parametrize("special", [("<eos>",), TAGS])
async def test_an_answer_with_tools_may_end_within_its_thought(tmp_path: Path, special: tuple[str, ...]) -> None:
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, OPEN_HERMES, "It is cold.", special, body)
    assert (answer["finish_reason"], answer["message"]["reasoning"]) == ("stop", "It is cold.")
    assert not answer["message"]["content"]


@pytest.mark.parametrize(("choice", "special"), [("auto", TAGS), ("required", TAGS), ("auto", ("<eos>",))])
async def test_a_call_in_an_open_thought_is_a_call(tmp_path: Path, choice: str, special: tuple[str, ...]) -> None:
    body = {"messages": USER, "tools": [tool()], "tool_choice": choice}
    answer = await messages_of(tmp_path, OPEN_HERMES, f"Need it.\n{HERMES_CALL}", special, body)
    assert (answer["finish_reason"], answer["message"]["reasoning"]) == ("tool_calls", "Need it.")
    assert (answer["message"]["content"], calls_of(answer)) == (None, [("f", {"city": "Bern"})])


async def test_markup_in_a_thought_is_prose_where_it_is_no_call(tmp_path: Path) -> None:
    thought = 'I write <tool_call> and {"name": "f"}.'
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, OPEN_HERMES, f"{thought}</think>{HERMES_CALL}", ("<eos>",), body)
    assert (answer["message"]["reasoning"], calls_of(answer)) == (thought, [("f", {"city": "Bern"})])


def pairs(form: str, values: dict[str, str], name: str = "f") -> str:
    """Return a call with each argument between tags, in the form of Qwen 3 Coder or of GLM."""
    if form == "qwen":
        written = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
        return f"<tool_call>\n<function={name}>\n{''.join(written)}</function>\n</tool_call>"
    written = [f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items()]
    return f"<tool_call>{name}\n{''.join(written)}</tool_call>"


FORMS = {"qwen": templates.XML, "glm": templates.KEYS_AND_VALUES}
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
TYPES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "city": ({"type": "string"}, "42", "42"),
    "none": (NULLABLE, "null", None),
    "some": (NULLABLE, "nullify", "nullify"),
    "whole": ({"type": ["integer", "string"]}, "42", 42),
    "word": ({"type": ["integer", "string"]}, "4.5", "4.5"),
    "count": ({"type": "integer"}, "-7", -7),
    "share": ({"type": ["number", "null"]}, "0.5", 0.5),
    "is_on": ({"type": ["boolean", "string"]}, "true", True),
    "names": ({"type": "array", "items": {"type": "string"}}, '["1", "null"]', ["1", "null"]),
    "place": ({"type": "object", "properties": {"x": {"type": "integer"}}}, '{"x": 1}', {"x": 1}),
    "unit": ({"enum": ["C", 1, None]}, "null", None),
}


@pytest.mark.parametrize("form", FORMS)
async def test_arguments_between_tags_keep_the_types_of_the_schema(tmp_path: Path, form: str) -> None:
    described = tool(**{name: schema for name, (schema, _, _) in TYPES.items()})
    text = pairs(form, {name: TYPES[name][1] for name in reversed(TYPES)})  # arguments may come in any order
    answer = await messages_of(tmp_path, FORMS[form], text, ("<eos>",), {"messages": USER, "tools": [described]})
    assert calls_of(answer) == [("f", {name: value for name, (_, _, value) in TYPES.items()})]


@pytest.mark.parametrize(
    ("number", "end", "choice"),
    [(1, "", "auto"), (2, "", "required"), (1, "\n</tool_call>", "required"), (2, "\n</tool_call>", "auto")],
)
async def test_a_function_without_the_tag_around_it_is_a_call(
    tmp_path: Path, number: int, end: str, choice: str
) -> None:
    call = pairs("qwen", {"city": "Bern"}).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    body = {"messages": USER, "tools": [tool()], "tool_choice": choice}
    text = "\n".join([call] * number) + end
    answer = await messages_of(tmp_path, templates.XML, text, ("<eos>",), body)
    assert calls_of(answer) == [("f", {"city": "Bern"})] * number
    assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("Cold.<channel|>", "Cold.", None),
        ("Cold<channel|> today.<tool_call|>", "Cold today.", None),
        ("Cold.<|channel>thought\nAm I right?<channel|> Yes.", "Cold.Yes.", "Am I right?"),
        ("<|channel>thought\nHm.<channel|>Cold.<|channel>thought\n<channel|>", "Cold.", "Hm."),
        ("<|channel>thought\nHm.<|channel>thought\nSo.<channel|>Cold.", "Cold.", "Hm.So."),
        ("<|tool_call>call:no", "call:no", None),
    ],
)
@pytest.mark.parametrize("tools", [[], [tool()]])
async def test_channel_tags_of_gemma_are_no_content(
    tmp_path: Path, text: str, content: str, reasoning: str | None, tools: list[Any]
) -> None:
    template = templates.GEMMA_4 + "{# <|channel>thought <channel|> reasoning #}"
    async with tool_site(tmp_path, text, template, special=GEMMA) as at:
        body = {"messages": USER, "max_tokens": 500, **({"tools": tools} if tools else {})}
        message = (await at.post(PATH, body)).json()["choices"][0]["message"]
        deltas = [
            event["choices"][0]["delta"] for event in events_of(await at.post(PATH, {**body, "stream": True}))[:-1]
        ]
    assert (message["content"], message.get("reasoning")) == (content, reasoning)
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == (reasoning or "")


SOLAR = (
    "<eos>", "<|begin|>", "<|end|>", "<|content|>", "<|think|>", "<|tool_calls|>", "<|tool_call:begin|>",
    "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>",
)  # fmt: skip


async def test_an_id_that_a_model_repeats_is_made_anew(tmp_path: Path) -> None:
    call = '<|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{"city": "Bern"}<|tool_call:end|>'
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, templates.SOLAR, f"<|tool_calls|>{call}{call}", SOLAR, body)
    first, second = (made["id"] for made in answer["message"]["tool_calls"])
    assert first == "a1"
    assert second.startswith("call_")


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("thought", ["", "<|think|>Hm.<|end|><|begin|>assistant"])
async def test_the_model_writes_the_ids_of_its_calls(tmp_path: Path, thought: str, choice: str) -> None:
    call = '<|tool_call:begin|>{}<|tool_call:name|>f<|tool_call:args|>{{"city": "Bern"}}<|tool_call:end|>'
    text = f"{thought}<|tool_calls|>{call.format('a1b2c3d4e5')}{call.format('f6')}"
    body = {"messages": USER, "tools": [tool()], "tool_choice": choice}
    answer = await messages_of(tmp_path, templates.SOLAR, text, SOLAR, body)
    assert calls_of(answer) == 2 * [("f", {"city": "Bern"})]
    assert (answer["message"]["content"], answer["message"].get("reasoning")) == (None, "Hm." if thought else None)


async def test_the_model_counts_its_calls(tmp_path: Path) -> None:
    calls = [f'{{"tool_call_id": "{n}", "tool_name": "f", "parameters": {{"city": "Bern"}}}}' for n in range(2)]
    text = f"<|START_ACTION|>[{', '.join(calls)}]<|END_ACTION|>"
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, templates.COUNTED, text, ("<eos>", "<|START_ACTION|>"), body)
    assert calls_of(answer) == 2 * [("f", {"city": "Bern"})]
    assert answer["message"]["content"] is None


@pytest.mark.parametrize("form", ["XML", "LFM2", "HERMES"])
@pytest.mark.parametrize("number", [1, 12])
async def test_equal_tools_are_read_once(tmp_path: Path, form: str, number: int) -> None:
    free = {f"p{n}": {"type": "object"} for n in range(10)}
    own = [{"p": {"type": "object", "properties": {f"x{n}": {"type": "integer", "minimum": n}}}} for n in range(number)]
    tools = [tool(f"f{n}", **(free if number == 1 else own[n])) for n in range(number)]
    async with tool_site(tmp_path, "ok", getattr(templates, form)) as at:
        for _ in range(2):
            assert (await at.post(PATH, {"messages": USER, "tools": tools, "max_tokens": 9})).status_code == 200
        first, second = (request.task.grammar for request in at.engine.submitted)
    assert first is second
