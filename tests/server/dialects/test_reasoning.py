"""Reasoning in POST /v1/chat/completions: separated from the answer, whole and in a stream."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import MESSAGES, PATH, tool_site
from tests.server.serving import events_of

BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 500}
OPENS = templates.QWEN_3, "<think>\nIt is cold.\n</think>\n\nCold."
OPENED = templates.OPEN_THOUGHT, "It is cold.\n</think>\n\nCold."


@pytest.mark.parametrize(("template", "text"), [OPENS, OPENED], ids=["model opens", "prompt opens"])
async def test_reasoning_is_told_apart_from_content(tmp_path: Path, template: str, text: str) -> None:
    async with tool_site(tmp_path, text, template) as at:
        (choice,) = (await at.post(PATH, BODY)).json()["choices"]
        data = events_of(await at.post(PATH, {**BODY, "stream": True}))
    reasoning = {"reasoning_content": "It is cold.", "reasoning": "It is cold."}
    assert choice["message"] == {"role": "assistant", "content": "Cold.", **reasoning}
    assert choice["finish_reason"] == "stop"
    deltas = [chunk["choices"][0]["delta"] for chunk in data[:-1]]
    for name in ("reasoning_content", "reasoning", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == {**reasoning, "content": "Cold."}[name]


async def test_reasoning_is_left_out_on_demand(tmp_path: Path) -> None:
    async with tool_site(tmp_path, OPENED[1], OPENED[0]) as at:
        (choice,) = (await at.post(PATH, {**BODY, "include_reasoning": False})).json()["choices"]
        data = events_of(await at.post(PATH, {**BODY, "include_reasoning": False, "stream": True}))
    assert choice["message"] == {"role": "assistant", "content": "Cold."}
    deltas = [chunk["choices"][0]["delta"] for chunk in data[:-1]]
    assert {name for delta in deltas for name in delta} == {"role", "content"}
    assert len(deltas) < len("It is cold."), "nothing is sent for tokens of which nothing is seen"


async def test_a_template_that_is_told_not_to_think_has_no_reasoning(tmp_path: Path) -> None:
    async with tool_site(tmp_path, "Cold.</think>", templates.QWEN_3) as at:
        body = {**BODY, "chat_template_kwargs": {"enable_thinking": False}}
        (choice,) = (await at.post(PATH, body)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Cold.</think>"}
