"""Forms of calls and reasoning that are derived from the template, through a real engine and its grammars."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_call_forms import NULLABLE, USER, calls_of, tool
from tests.server.dialects.test_tools import PATH, tool_site
from tests.server.scripted_site import messages_of

KIMI = ("<|end|>", "<|calls|>", "<|call|>", "<|args|>", "<|call_end|>", "<|calls_end|>")


@pytest.mark.parametrize("template", ["IDS_ONLY", "QUEUED_IDS"])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_name_in_an_id_is_the_tools_and_the_id_goes_back_to_the_template(
    tmp_path: Path, template: str, choice: str
) -> None:
    source = getattr(templates, template)
    calls = [f'<|call|>functions.{name}:{n}<|args|>{{"city": "Bern"}}<|call_end|>' for n, name in enumerate("fg")]
    text = f"<|calls|>{''.join(calls)}<|calls_end|>"
    body = {"messages": USER, "tools": [tool("f"), tool("g")], "tool_choice": choice}
    choice_ = await messages_of(tmp_path, source, text, KIMI, body)
    assert calls_of(choice_) == [("f", {"city": "Bern"}), ("g", {"city": "Bern"})]
    ids = [call["id"] for call in choice_["message"]["tool_calls"]]
    assert ids == ["functions.f:0", "functions.g:1"]
    results = [{"role": "tool", "tool_call_id": each, "content": "-2"} for each in ids]
    async with tool_site(tmp_path, "ok", source, KIMI) as at:
        answer = await at.post(PATH, {**body, "messages": [*USER, choice_["message"], *results], "max_tokens": 9})
        assert answer.status_code == 200, answer.text
        prompt = at.model.tokenizer.decode(at.engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)
    assert text in prompt
    assert all(f"## Return of {each}\n-2" in prompt for each in ids)


@pytest.mark.parametrize(
    ("ids", "unique"),
    [
        (["functions.f:0", "functions.f:0", "functions.f:1"], ["functions.f:0", "functions.f:1", "functions.f:2"]),
        (["functions.f:9"] * 2, ["functions.f:9", "functions.f:10"]),
    ],
)
async def test_ids_that_a_model_repeats_are_counted_on(tmp_path: Path, ids: list[str], unique: list[str]) -> None:
    calls = [f'<|call|>{each}<|args|>{{"city": "Bern"}}<|call_end|>' for each in ids]
    text = f"<|calls|>{''.join(calls)}<|calls_end|>"
    choice = await messages_of(tmp_path, templates.IDS_ONLY, text, KIMI, {"messages": USER, "tools": [tool()]})
    assert [call["id"] for call in choice["message"]["tool_calls"]] == unique


XTML = ("<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>")


def opened(tag: str, text: str = "") -> str:
    return f"<|open|>{tag}<|sep|>{text}<|close|>{tag.partition(' ')[0]}<|sep|>"


RESPONSE = f"Hm.<|close|>think<|sep|>{opened('response', 'Cold.')}"


@pytest.mark.parametrize("special", [XTML, XTML[:1]], ids=["tokens", "text"])
@pytest.mark.parametrize("tools", [[], [tool()]], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        (f"{RESPONSE}<|close|>message<|sep|>", "Cold.", "Hm."),
        ("Hm.<|close|>think<|sep|><|open|>response<|sep|>", "", "Hm."),
        ("Hm, so", "", "Hm, so"),
    ],
)
async def test_tags_of_tokens_and_words_are_no_content(
    tmp_path: Path, text: str, content: str, reasoning: str, tools: list[Any], special: tuple[str, ...]
) -> None:
    body = {"messages": USER, **({"tools": tools} if tools else {})}
    answer = await messages_of(tmp_path, templates.TYPED, text, special, body)
    assert (answer["message"]["content"] or "", answer["message"]["reasoning"]) == (content, reasoning)
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("special", [XTML, XTML[:1]], ids=["tokens", "text"])
async def test_arguments_may_name_their_type(tmp_path: Path, special: tuple[str, ...]) -> None:
    arguments = [
        opened('argument key="city" type="string"', "42"),
        opened('argument key="days" type="number"', "-3"),
        opened('argument key="places" type="array"', '["a", null]'),
        opened('argument key="note" type="null"', "null"),
    ]
    calls = [f'call tool="f" index="{n}"' for n in (1, 2)]
    text = opened("tools", "".join([opened(calls[0], "".join(arguments)), opened(calls[1])]))
    described = tool(city={"type": "string"}, days={"type": "integer"}, places={"type": "array"}, note=NULLABLE)
    described["function"]["parameters"]["required"] = []
    body = {"messages": USER, "tools": [described]}
    answer = await messages_of(tmp_path, templates.TYPED, f"{RESPONSE}{text}<|close|>message<|sep|>", special, body)
    whole = {"city": "42", "days": -3, "places": ["a", None], "note": None}
    assert calls_of(answer) == [("f", whole), ("f", {})]
    assert (answer["message"]["content"], answer["message"]["reasoning"]) == ("Cold.", "Hm.")


PYTHONS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "city": ({"type": "string"}, "None", "None"),
    "tag": ({"type": "string"}, "<![CDATA[<b> & </c>]]>", "<b> & </c>"),
    "none": (NULLABLE, "None", None),
    "is_on": ({"type": "boolean"}, "True", True),
    "is_off": ({"type": ["boolean", "null"]}, "false", False),
    "count": ({"type": ["integer", "string"]}, "-7", -7),
    "names": ({"type": "array"}, "['a', None, True, \"it's\", 0.5]", ["a", None, True, "it's", 0.5]),
    "face": ({"type": "array"}, r"['\ud83d\ude00', None]", ["\U0001f600", None]),
    "half": ({"type": "array"}, r"['\ud800', None]", [r"\ud800", None]),  # half of a pair is no character
    "plain": ({"type": "array"}, '["a", null]', ["a", None]),
    "place": ({"type": "object"}, "{'x': {'y': [1]}, 'z': None}", {"x": {"y": [1]}, "z": None}),
    "either": ({"type": ["array", "string"]}, "['a']", ["a"]),
}


async def test_values_as_python_writes_them_keep_their_types(tmp_path: Path) -> None:
    described = tool(**{name: schema for name, (schema, _, _) in PYTHONS.items()})
    values = [f'<param name="{name}">{written}</param>' for name, (_, written, _) in PYTHONS.items()]
    text = f'<function name="f">{"".join(values)}</function>'
    body = {"messages": USER, "tools": [described]}
    answer = await messages_of(tmp_path, templates.PYTHON, text, ("<|im_end|>",), body)
    assert calls_of(answer) == [("f", {name: value for name, (_, _, value) in PYTHONS.items()})]


async def test_none_is_null_in_bare_arguments(tmp_path: Path) -> None:
    special = ("<eos>", "<|tool_call>", "<tool_call|>", '<|"|>')
    text = '<|tool_call>call:f{city:<|"|>None<|"|>,note:None,places:[None,<|"|>a<|"|>]}<tool_call|>'
    described = tool(city={"type": "string"}, note={"type": "null"}, places={"type": "array"})
    answer = await messages_of(tmp_path, templates.GEMMA_4, text, special, {"messages": USER, "tools": [described]})
    assert calls_of(answer) == [("f", {"city": "None", "note": None, "places": [None, "a"]})]


@pytest.mark.parametrize(
    ("template", "text", "content", "reasoning"),
    [
        ("SUFFIXED", "<think:x>Hm.</think:x>Cold.", "Cold.", "Hm."),
        ("SUFFIXED", "\n<think:x>Hm", "", "Hm"),
        ("SUFFIXED", "Cold.", "Cold.", None),
        ("NO_OPENING", "Hm.\n[BEGIN]\nCold.", "Cold.", "Hm."),
        ("NO_OPENING", "Hm, so", "", "Hm, so"),
    ],
)
@pytest.mark.parametrize(
    "special", [("<eos>",), ("<eos>", "<think:x>", "</think:x>", "[BEGIN]")], ids=["text", "tokens"]
)
async def test_tags_of_reasoning_are_those_that_the_template_writes(
    tmp_path: Path, template: str, text: str, content: str, reasoning: str | None, special: tuple[str, ...]
) -> None:
    source = getattr(templates, template)
    bodies = [{"messages": USER}, {"messages": USER, "tools": [tool()]}]
    for body in bodies[: 2 if template == "SUFFIXED" else 1]:
        message = (await messages_of(tmp_path, source, text, special, body))["message"]
        assert (message["content"] or "", message.get("reasoning")) == (content, reasoning)


async def test_an_id_may_follow_the_arguments(tmp_path: Path) -> None:
    calls = [f'{{"name": "f", "arguments": {{"city": "{city}"}}, "id": "123456789"}}' for city in ("Bern", "Rome")]
    text = f"[TOOL_CALLS] [{', '.join(calls)}]"
    body = {"messages": USER, "tools": [tool()]}
    answer = await messages_of(tmp_path, templates.MISTRAL, text, ("<eos>", "[TOOL_CALLS]"), body)
    assert calls_of(answer) == [("f", {"city": "Bern"}), ("f", {"city": "Rome"})]
    assert answer["message"]["content"] is None
