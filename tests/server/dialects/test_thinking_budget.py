"""Length of the reasoning before an answer: the thinking budget and the effort, in every dialect."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from lightwell.server.engine.messages.request import GenerateTask
from tests import tiny
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import WEATHER, tool_site
from tests.server.fake_client import INFO
from tests.server.inline_engine import InlineEngine, site_of
from tests.server.serving import Site

CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
USER = [{"role": "user", "content": "Hi"}]
LENGTH = 1024
THINKS = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<A><think>{# </think> #}{% endif %}"""
"""Opens a thought, and leaves an assistant's text as it is."""
EFFORT = "{{ messages[0].content }}|{{ reasoning_effort }},{{ enable_thinking }}<think>"
SWITCH = "{{ messages[0].content }}|{{ enable_thinking }},{{ thinking }}<think>"


@pytest.fixture(scope="module", params=["a special token", "text"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    folder = tmp_path_factory.mktemp("llama")
    size = tiny.VOCAB_SIZE + (request.param != "text")
    tiny.make_variant("llama-gqa", folder, vocab_size=size, max_position_embeddings=LENGTH)
    if request.param != "text":
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens(["</think>"])
        tokenizer.save(str(folder / "tokenizer.json"))
    return InlineEngine(folder=folder, engine_info=replace(INFO, max_model_len=LENGTH))


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site_of(engine, THINKS) as built:
        yield built


async def answered(at: Site, **more: Any) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens of an answer to a chat, and its message. The model never closes a thought by itself."""
    tokenizer = at.model.tokenizer
    forbidden = {
        str(i): -100.0
        for i in range(tokenizer.vocab_size)
        if not (text := bytes(tokenizer.token_bytes(i) or b"<")).isascii() or b"<" in text
    }  # no closing tag and no part of a character, since a character must be complete before a tag
    fixed = {"messages": USER, "return_token_ids": True, "seed": 5, "logit_bias": forbidden}
    answer = await at.post(CHAT, {"max_tokens": 40, **fixed, **more})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice["token_ids"], choice["message"]


@pytest.mark.parametrize("name", ["thinking_budget", "thinking_token_budget"])
@pytest.mark.parametrize("budget", [0, 1, 7])
async def test_a_thought_is_closed_after_so_many_tokens(at: Site, name: str, budget: int) -> None:
    closing = at.model.tokenizer.encode("</think>", False).ids
    ids, message = await answered(at, **{name: budget})
    assert ids[budget : budget + len(closing)] == closing, ids
    thought = at.model.tokenizer.decode(ids[:budget], True).strip(" \t\r\n")
    assert message.get("reasoning", "") == thought
    assert message["content"]


async def test_a_budget_comes_with_tools_forms_and_what_is_told_of_each_token(at: Site) -> None:
    closing = at.model.tokenizer.encode("</think>", False).ids
    ids, message = await answered(at, thinking_budget=5, guided_regex="[a-z]{3}")
    assert ids[5 : 5 + len(closing)] == closing
    assert len(message["content"]) == 3
    ids, message = await answered(at, thinking_budget=5, tools=[WEATHER], tool_choice="required", max_tokens=80)
    assert ids[5 : 5 + len(closing)] == closing
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    told, _ = await answered(at, thinking_budget=5, logprobs=True, seed=3)
    assert told == (await answered(at, thinking_budget=5, seed=3))[0]


async def test_the_tokens_of_a_continued_thought_are_counted_from_its_end(at: Site) -> None:
    closing = at.model.tokenizer.encode("</think>", False).ids
    turns = [*USER, {"role": "assistant", "content": "<think>Well, "}]
    ids, message = await answered(at, messages=turns, continue_final_message=True, thinking_budget=6)
    assert ids[6 : 6 + len(closing)] == closing
    assert not message["reasoning"].startswith("Well")
    turns[-1]["content"] += "I am done.</think>So "
    ids, message = await answered(at, messages=turns, continue_final_message=True, thinking_budget=0)
    assert "reasoning" not in message
    assert message["content"] == at.model.tokenizer.decode(ids, True)


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        (CHAT, {}, None),
        (CHAT, {"reasoning_effort": "none"}, 0),
        (CHAT, {"reasoning_effort": "low"}, 512),
        (CHAT, {"reasoning_effort": "medium"}, 2048),
        (CHAT, {"reasoning_effort": "high"}, None),
        (CHAT, {"reasoning_effort": "low", "thinking_budget": 9}, 9),
        (CHAT, {"reasoning_effort": "low", "thinking_budget": -1}, None),
        (RESPONSES, {"input": "Hi", "reasoning": {"effort": "low"}}, 512),
        (RESPONSES, {"input": "Hi", "thinking_budget": 7}, 7),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 9}, 1024),
        (MESSAGES, {"thinking": {"type": "disabled"}, "max_tokens": 9}, 0),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "max_tokens": 9, "output_config": {"effort": "medium"}}, 2048),
        (OLLAMA, {"think": False}, 0),
        (OLLAMA, {"think": True}, None),
        (OLLAMA, {"think": "low"}, 512),
    ],
)
async def test_the_budget_is_one_setting_of_every_dialect(
    tmp_path: Path, path: str, body: dict[str, Any], limit: int | None
) -> None:
    async with tool_site(tmp_path, "Hm.</think>Yes.", templates.OPEN_THOUGHT) as at:
        answer = await at.post(path, body if path == RESPONSES else {"messages": USER, **body})
        assert answer.status_code == 200, answer.text
        task = at.engine.submitted[-1].task
    assert isinstance(task, GenerateTask)
    assert (None if task.thought_limit is None else task.thought_limit.max_tokens) == limit
    assert (task.grammar is None) == (limit is None)


@pytest.mark.parametrize(
    ("template", "path", "body", "expected", "is_limited"),
    [
        (EFFORT, CHAT, {"reasoning_effort": "low"}, "low,", False),
        (EFFORT, CHAT, {"reasoning_effort": "none"}, "none,", False),
        (EFFORT, CHAT, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}}, "x,", False),
        (EFFORT, RESPONSES, {"input": "Hi", "reasoning": {"effort": "high"}}, "high,", False),
        (EFFORT, MESSAGES, {"max_tokens": 9, "output_config": {"effort": "max"}}, "max,", False),
        (EFFORT, OLLAMA, {"think": "medium"}, "medium,True", False),
        (SWITCH, CHAT, {"reasoning_effort": "none"}, "False,False", True),
        (SWITCH, CHAT, {"thinking_budget": 0, "chat_template_kwargs": {"thinking": True}}, "False,True", True),
        (SWITCH, CHAT, {"thinking_budget": 5}, ",", True),
        (SWITCH, OLLAMA, {"think": False}, "False,False", True),
    ],
)
async def test_the_template_is_told_what_it_reads(
    tmp_path: Path, template: str, path: str, body: dict[str, Any], expected: str, is_limited: bool
) -> None:
    async with tool_site(tmp_path, "Yes.", f"{template}{{# </think> #}}") as at:
        answer = await at.post(path, body if path == RESPONSES else {"messages": USER, **body})
        assert answer.status_code == 200, answer.text
        submitted = at.engine.submitted[-1]
    assert isinstance(submitted.task, GenerateTask)
    assert bytes(submitted.prompt_token_ids).decode() == f"Hi|{expected}<think>"
    assert (submitted.task.thought_limit is not None) is is_limited


async def test_a_model_that_does_not_think_has_no_limit(tmp_path: Path) -> None:
    async with tool_site(tmp_path, "Yes.", templates.HERMES) as at:
        for body in ({"thinking_budget": 3}, {"reasoning_effort": "none"}):
            assert (await at.post(CHAT, {"messages": USER, **body})).status_code == 200
            task = at.engine.submitted[-1].task
            assert isinstance(task, GenerateTask)
            assert (task.grammar, task.thought_limit) == (None, None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"thinking_budget": -2}, "thinking_budget"),
        (CHAT, {"reasoning_effort": "huge"}, "reasoning_effort"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": -1}, "max_tokens": 9}, "thinking.budget_tokens"),
        ("/v1/completions", {"prompt": "a", "thinking_budget": 4}, "thinking_budget"),
    ],
)
async def test_a_budget_that_is_none_is_refused(tmp_path: Path, path: str, body: dict[str, Any], param: str) -> None:
    async with tool_site(tmp_path) as at:
        error = await at.error(path, body if "prompt" in body else {"messages": USER, **body}, 400)
    assert error["param"] == param or error["message"].startswith(param)
