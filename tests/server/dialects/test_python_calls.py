"""Calls as Python writes them, through a real engine and its grammars."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightwell.model.sampling.grammar.errors import step
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_call_forms import NULLABLE, USER, calls_of, tool
from tests.server.dialects.test_tools import PATH, prompt_of, tool_site
from tests.server.scripted_site import messages_of

LFM2 = ("<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|python_start|>", "<|python_end|>")
VALUES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "city": ({"type": "string"}, '"Paris"', "Paris"),
    "number": ({"type": "string"}, "'42'", "42"),
    "quoted": ({"type": "string"}, "'it\\'s \"x\"'", 'it\'s "x"'),
    "raw": ({"type": "string"}, "'it's, \"x\")\n\\d'", 'it\'s, "x")\n\\d'),
    "escaped": ({"type": "string"}, '"a\\n\\\\b, \\"c=1\\""', 'a\n\\b, "c=1"'),
    "coded": ({"type": "string"}, "'\\u00e9\\xe8\\ud83d\\ude00'", "éè\U0001f600"),
    "ends": ({"type": "string"}, "''''", "''"),
    "empty": ({"type": "string"}, "''", ""),
    "count": ({"type": "integer"}, "-7", -7),
    "share": ({"type": "number"}, "2.5e3", 2500.0),
    "is_on": ({"type": "boolean"}, "True", True),
    "is_off": ({"type": "boolean"}, "false", False),
    "none": (NULLABLE, "None", None),
    "null": (NULLABLE, "null", None),
    "some": (NULLABLE, "'None'", "None"),
    "unit": ({"enum": ["C", "F", None]}, "'F'", "F"),
    "names": ({"type": "array", "items": {"type": "string"}}, "['1', \"null\"]", ["1", "null"]),
    "place": (
        {"type": "object", "properties": {"x": {"type": "array"}, "y": {"type": ["integer", "null"]}}},
        "{'x': [[], {'z': True}], \"y\": None}",
        {"x": [[], {"z": True}], "y": None},
    ),
    "a,(b": ({"type": "integer"}, "1", 1),
    "any": ({}, "{'a': 'b', 'c': [1, None]}", {"a": "b", "c": [1, None]}),
}
FORMS = {
    "lfm2": (templates.LFM2, "<|tool_call_start|>[{}]<|tool_call_end|>"),
    "lfm2, no calls": (templates.LFM2_TOOLS, "<|tool_call_start|>[{}]<|tool_call_end|>"),
    "llama": (templates.LLAMA_PYTHON, "[{}]"),
    "llama, tokens": (templates.LLAMA_PYTHON, "<|python_start|>[{}]<|python_end|>"),
}


def written(values: dict[str, str], name: str = "f") -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items())})"


@pytest.mark.parametrize(
    ("form", "half", "choice"),
    [("lfm2", 0, "auto"), ("lfm2, no calls", 1, "required"), ("llama", 1, "auto"), ("llama, tokens", 0, "required")],
)
async def test_arguments_keep_their_types_and_come_in_any_order(
    tmp_path: Path, form: str, half: int, choice: str
) -> None:
    template, around = FORMS[form]
    names = ["city", *list(VALUES)[1 + half :: 2]]
    described = [tool(**{name: VALUES[name][0] for name in names}), tool("f_g"), tool("now")]
    described[2]["function"]["parameters"] = {"type": "object", "properties": {}}
    values = {name: VALUES[name][1] for name in reversed(names)}
    text = around.format(", ".join([written(values), "now()", written({"city": "'Bern'"}, "f_g")]))
    body = {"messages": USER, "tools": described, "tool_choice": choice, "max_tokens": 500}
    answer = await messages_of(tmp_path, template, text, LFM2, body)
    expected = {name: VALUES[name][2] for name in names}
    assert calls_of(answer) == [("f", expected), ("now", {}), ("f_g", {"city": "Bern"})]
    assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
    assert len({call["id"] for call in answer["message"]["tool_calls"]}) == 3


async def test_a_named_tool_is_called_whatever_the_model_would_write(tmp_path: Path) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    described = tool(city={"enum": ["Bern", "Rome"]}, days={"type": "integer", "minimum": 3})
    text = "<|tool_call_start|>[g(days=1, city='Oslo')]"
    body = {"messages": USER, "tools": [described], "tool_choice": choice, "max_tokens": 90}
    ((_, arguments),) = calls_of(await messages_of(tmp_path, templates.LFM2, text, LFM2, body))
    assert arguments["city"] in ("Bern", "Rome")
    assert arguments.get("days", 3) >= 3


@pytest.mark.parametrize(
    "text",
    ["[1] says so.", "[f is](a link)", "[f]", "Look: [f(city='Bern')]", "[f (the web)] is a link", "[f\n(town=1)]"],
)
async def test_a_list_that_is_no_call_is_content(tmp_path: Path, text: str) -> None:
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, templates.LLAMA_PYTHON, text, LFM2, body)
    assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")


def call(**arguments: Any) -> dict[str, Any]:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}]
    return {"role": "assistant", "content": "I look.", "tool_calls": calls}


@pytest.mark.parametrize(
    ("token", "form"),
    [
        ("<|tool_call_start|>", "[f(city=\"it's\", days=[1, None, {'a': True}])]"),
        ("<|tool_call|>", '[{"name": "f", "arguments": {"city": "it\'s", "days": [1, null, {"a": true}]}}]'),
    ],
)
async def test_calls_that_a_template_leaves_out_are_in_its_models_form(tmp_path: Path, token: str, form: str) -> None:
    past = call(city="it's", days=[1, None, {"a": True}])
    rows = [*USER, past, {"role": "tool", "tool_call_id": "call_1", "content": "-2"}]
    async with tool_site(tmp_path, "ok", templates.LFM2_TOOLS, ("<eos>", token)) as at:
        answer = await at.post(PATH, {"messages": rows, "tools": [tool()], "max_tokens": 9})
        assert answer.status_code == 200, answer.text
        prompt = prompt_of(at)
    assert f"assistant\nI look.\n{form}" in prompt
    assert "tool\n-2<|im_end|>" in prompt
    assert "You can call these tools" not in prompt


async def test_granites_calls_are_read(tmp_path: Path) -> None:
    text = '<|tool_call|>[{"name": "f", "arguments": {"city": "Bern"}}, {"name": "f", "arguments": {"city": "Rome"}}]'
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, templates.LFM2_TOOLS, text, ("<eos>", "<|tool_call|>"), body)
    assert calls_of(answer) == [("f", {"city": "Bern"}), ("f", {"city": "Rome"})]


@pytest.mark.parametrize(
    ("city", "more", "place"),
    [
        ({"type": "string", "minLength": 2}, {}, ".properties.city.minLength"),
        ({"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "null"}]}, {}, ".properties.city.anyOf[0].pattern"),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, {}, ".properties.city.items"),
        ({"type": "string", "format": "date"}, {}, ".properties.city.format"),
        ({"type": "string"}, {"minProperties": 1}, ".minProperties"),
        ({"type": "string"}, {"anyOf": [{"required": ["city"]}]}, ".anyOf"),
    ],
)
async def test_a_strict_schema_to_which_calls_in_tags_cannot_be_held_is_refused(
    tmp_path: Path, city: dict[str, Any], more: dict[str, Any], place: str
) -> None:
    described = tool(city=city)
    described["function"]["parameters"] |= more
    for template in ("PYTHON", "XML", "KEYS_AND_VALUES", "LFM2"):
        async with tool_site(tmp_path, "ok", getattr(templates, template)) as at:
            body = {"messages": USER, "tools": [described], "max_tokens": 9}
            assert (await at.post(PATH, body)).status_code == 200
            described["function"]["strict"] = True
            answer = await at.post(PATH, body)
            described["function"]["strict"] = False
        if template == "LFM2" and "properties" in place:  # its texts have quotes
            assert answer.status_code == 200
            continue
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, f"tools[0].function.parameters{place}")
        assert "the call format of this model cannot enforce it" in error["message"]


@pytest.mark.parametrize(("template", "name"), [("LFM2", "a=b"), ("LFM2", "a "), ("XML", "a>\nb")])
async def test_a_strict_schema_of_a_name_that_calls_cannot_hold_is_refused(
    tmp_path: Path, template: str, name: str
) -> None:
    described = tool(city={"type": "string"}, **{name: {"type": "integer"}})
    described["function"]["strict"] = True
    async with tool_site(tmp_path, "ok", getattr(templates, template)) as at:
        error = (await at.post(PATH, {"messages": USER, "tools": [described], "max_tokens": 9})).json()["error"]
    assert error["param"] == f"tools[0].function.parameters.properties{step(name)}"
    assert "the call format of this model cannot represent the name" in error["message"]
