"""Calls and reasoning in every form that models write, through a real engine and its grammars."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import PATH, prompt_of, tool_site
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


EOT = ("<|eot|>",)
TOOLS = [tool(), tool("f_all")]
FIRST, SECOND = 'f\n{"city": "Bern"}', 'f_all\n{"city": ">>>all\\n"}'
BERN, ALL = ("f", {"city": "Bern"}), ("f_all", {"city": ">>>all\n"})


@pytest.mark.parametrize(
    ("content", "tools"),
    [
        ("Cold.", []), ("all cold", TOOLS), ("all\n", []), (">>> f(x)\n>>>g", TOOLS), ("f is cold", TOOLS),
        ("Look:\n\n>>>all", []), ("Look:\n\n>>>all", TOOLS),
    ],
)  # fmt: skip
async def test_the_recipient_of_a_text_is_no_content(tmp_path: Path, content: str, tools: list[Any]) -> None:
    body = {"messages": USER, **({"tools": tools} if tools else {})}
    answer = await messages_of(tmp_path, templates.FUNCTIONARY, f"all\n{content}", EOT, body)
    assert (answer["message"]["content"], answer["finish_reason"]) == (content, "stop")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (FIRST, None, [BERN]),
        (f"{FIRST}>>>{SECOND}", None, [BERN, ALL]),
        (f"all\nI look.>>>{FIRST}", "I look.", [BERN]),
        (f"all\nI look.\n>>>{SECOND}>>>{FIRST}", "I look.", [ALL, BERN]),
        (f"all\n>>> 1 + 1\n2>>>{FIRST}", ">>> 1 + 1\n2", [BERN]),
    ],
)
async def test_each_part_of_an_answer_has_its_recipient(
    tmp_path: Path, text: str, content: str | None, calls: list[Any]
) -> None:
    answer = await messages_of(tmp_path, templates.FUNCTIONARY, text, EOT, {"messages": USER, "tools": TOOLS})
    assert (answer["message"]["content"], calls_of(answer)) == (content, calls)
    assert answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("parallel", [False, True])
async def test_required_calls_begin_where_the_prompt_ends(tmp_path: Path, parallel: bool) -> None:
    text = f"{FIRST}>>>{SECOND}"
    body = {"messages": USER, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel}
    answer = await messages_of(tmp_path, templates.FUNCTIONARY, text, EOT, body)
    assert calls_of(answer) == [BERN, ALL][: 1 + parallel]


@pytest.mark.parametrize("tools", [[], TOOLS])
async def test_a_schema_holds_for_the_text_after_the_recipient(tmp_path: Path, tools: list[Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "required": ["a"]}}}
    body = {"messages": USER, "response_format": form, **({"tools": tools} if tools else {})}
    answer = await messages_of(tmp_path, templates.FUNCTIONARY, 'all\n{"a": 1}', EOT, body)
    assert answer["message"]["content"] == '{"a": 1}'


async def test_text_after_a_call_has_a_recipient_too(tmp_path: Path) -> None:
    async with tool_site(tmp_path, f"{FIRST}>>>all\nDone.", templates.FUNCTIONARY, EOT) as at:
        answer = (await at.post(PATH, {"messages": USER, "tools": TOOLS, "max_tokens": 99})).json()["choices"][0]
    assert (answer["message"]["content"], calls_of(answer)) == ("Done.", [BERN])


async def test_a_prefilled_text_goes_on_without_a_recipient(tmp_path: Path) -> None:
    rows = [*USER, {"role": "assistant", "content": "It is all"}]
    body = {"messages": rows, "tools": TOOLS, "continue_final_message": True, "max_tokens": 99}
    async with tool_site(tmp_path, f"\ncold.>>>{FIRST}", templates.FUNCTIONARY, EOT) as at:
        answer = (await at.post(PATH, body)).json()["choices"][0]
        assert prompt_of(at).endswith(">>>all\nIt is all")
    assert (answer["message"]["content"], calls_of(answer)) == ("\ncold.", [BERN])


async def test_past_calls_are_written_by_the_template(tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Bern"}'}}
    rows = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    rows += [{"role": "tool", "tool_call_id": "call_1", "content": "-2"}]
    for template, written in (
        (templates.FUNCTIONARY, 'assistant\n\n>>>f\n{"city": "Bern"}<|eot|>'),
        (templates.FIREFUNCTION, 'assistant\n\n functools[{"name": "f", "arguments": {"city": "Bern"}}]<|eot|>'),
    ):
        async with tool_site(tmp_path, "ok", template, ("<eos>",)) as at:
            answer = await at.post(PATH, {"messages": rows, "tools": TOOLS, "max_tokens": 9})
            assert answer.status_code == 200, answer.text
            assert written in prompt_of(at)
            assert '"f_all"' in prompt_of(at)


@pytest.mark.parametrize(("choice", "content"), [("auto", ""), ("required", ""), ("auto", "I look.")])
async def test_calls_after_a_word_are_read(tmp_path: Path, content: str, choice: str) -> None:
    calls = [f'{{"name": "{name}", "arguments": {json.dumps(arguments)}}}' for name, arguments in (BERN, ALL)]
    text = f"{content} functools[{', '.join(calls)}]"
    body = {"messages": USER, "tools": TOOLS, "tool_choice": choice, "max_tokens": 300}
    answer = await messages_of(tmp_path, templates.FIREFUNCTION, text, EOT, body)
    assert (answer["message"]["content"], calls_of(answer)) == (content or None, [BERN, ALL])


@pytest.mark.parametrize("text", ["Use functools[f].", "functools[0]", "from functools import cache"])
async def test_the_word_without_calls_is_text(tmp_path: Path, text: str) -> None:
    body = {"messages": USER, "tools": TOOLS, "max_tokens": 300}
    answer = await messages_of(tmp_path, templates.FIREFUNCTION, text, EOT, body)
    assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")
