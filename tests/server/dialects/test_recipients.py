"""Answers in parts with recipients, and calls after a word, through a real engine and its grammars."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_call_forms import USER, calls_of, tool
from tests.server.dialects.test_tools import PATH, prompt_of, tool_site
from tests.server.scripted_site import messages_of

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
