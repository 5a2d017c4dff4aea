"""The input of chat templates: reasoning under every name, text parts, roles."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.routes import refuses
from tests.server.serving import site

PATH = "/v1/chat/completions"
USER: dict[str, Any] = {"role": "user", "content": "U"}
PARTS = [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]
AS_PARTS = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}
    {%- else %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"""
"""Iterates over the parts of a content, as the templates of models that read images do."""
USERS_PARTS = """{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and m.content is not string %}
    {%- for part in m.content %}[{{ part.text }}]{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"""


async def prompts_of(folder: Path, template: str, *conversations: list[dict[str, Any]]) -> list[str]:
    """Return the prompt of each conversation."""
    prompts = []
    async with site(folder, template=template) as at:
        for messages in conversations:
            answer = await at.post("/tokenize", {"messages": messages, "add_generation_prompt": False})
            assert answer.status_code == 200, answer.text
            prompts.append(bytes(answer.json()["tokens"]).decode())
    return prompts


@pytest.mark.parametrize("read", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("sent", ["reasoning_content", "reasoning", "thinking"])
async def test_reasoning_reaches_the_template_by_the_name_that_it_reads(tmp_path: Path, sent: str, read: str) -> None:
    template = f"{{% for m in messages %}}<{{{{ m.{read} or '' }}}}>{{{{ m.content }}}}{{% endfor %}}"
    turns = [USER, {"role": "assistant", "content": "A", sent: "hm"}, USER]
    assert await prompts_of(tmp_path, template, turns) == ["<>U<hm>A<>U"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (AS_PARTS, "<system>[first][second]<user>[first][second]<assistant>[first][second]"),
        (USERS_PARTS, "<system>first\nsecond<user>[first][second]<assistant>first\nsecond"),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            "<system>first\nsecond<user>first\nsecond<assistant>first\nsecond",
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}",
            '<system>"first\\nsecond"<user>"first\\nsecond"<assistant>"first\\nsecond"',
        ),
    ],
    ids=["every role", "the user", "none", "as JSON"],
)
async def test_text_parts_reach_templates_that_read_them_and_are_joined_for_others(
    tmp_path: Path, template: str, expected: str
) -> None:
    turns = [{"role": role, "content": PARTS} for role in ("system", "user", "assistant")]
    assert await prompts_of(tmp_path, template, turns) == [expected]


async def test_text_parts_are_joined_where_tools_are_written_out(tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": PARTS},
        {"role": "assistant", "content": PARTS, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": PARTS},
    ]
    (prompt,) = await prompts_of(tmp_path, AS_PARTS, turns)
    assert prompt.startswith("<user>first\nsecond<assistant>first\nsecond\n<tool_call>")
    assert prompt.endswith("<user><tool_response>\nfirst\nsecond\n</tool_response>")


async def test_a_tools_parts_reach_a_template_that_reads_them(tmp_path: Path) -> None:
    template = templates.HERMES.replace(
        "<tool_response>{{ m.content }}",
        "<tool_response>{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}+"
        "{{ m.content[1].text }}{% endif %}",
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": PARTS}
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    (prompt,) = await prompts_of(tmp_path, template, turns)
    assert "<tool_response>first+second</tool_response>" in prompt


@pytest.mark.parametrize(("known", "role"), [("", "system"), ("{# developer #}", "developer")])
async def test_developer_is_system_for_a_template_that_does_not_name_it(tmp_path: Path, known: str, role: str) -> None:
    template = known + "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages = [{"role": "developer", "content": "D"}, USER]
    async with site(tmp_path, template=template) as at:
        await at.post(PATH, {"messages": messages, "max_tokens": 1})
        await at.post("/v1/responses", {"input": messages, "max_output_tokens": 1})
        assert [bytes(each.prompt_token_ids).decode() for each in at.engine.submitted] == [f"<{role}>D<user>U"] * 2


async def test_half_a_character_in_arguments_is_refused_where_it_is(tmp_path: Path) -> None:
    """Check against an old failure: the error named chat_template_kwargs as the cause."""
    arguments = ["{}", '{"a": "\\ud83d"}']
    calls = [{"id": f"call_{i}", "function": {"name": "f", "arguments": each}} for i, each in enumerate(arguments)]
    template = "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, USER]
    field = "messages[1].tool_calls[1].function.arguments"
    async with site(tmp_path, template=template) as at:
        for path in (PATH, "/tokenize"):
            await refuses(at, path, {"messages": messages}, "lone surrogate", param=field)
        whole = json.loads(json.dumps(messages).replace("ud83d", "ud83d\\\\ude00"))
        assert (await at.post("/tokenize", {"messages": whole})).status_code == 200
