"""POST /v1/chat/completions, the input of chat templates, POST /tokenize and POST /detokenize."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lightwell.server.engine.messages.request import GenerateTask
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.routes import refuses
from tests.server.fake_client import FakeEngine
from tests.server.serving import END_OF_TEXT, Site, events_of, site

MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
PATH = "/v1/chat/completions"
NULLABLE = (
    "model", "stream", "stream_options", "n", "temperature", "top_p", "presence_penalty", "frequency_penalty",
    "logit_bias", "seed", "stop", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format",
    "modalities", "tools", "tool_choice", "parallel_tool_calls", "prediction", "user", "store", "metadata",
    "service_tier", "audio", "web_search_options", "reasoning_effort", "verbosity",
)  # fmt: skip
"""OpenAI's fields that clients may send as null."""


async def test_messages_become_the_prompt_that_the_template_writes(plain: Site) -> None:
    await plain.post(PATH, {"messages": MESSAGES, "max_tokens": 1})
    await plain.post(PATH, {"messages": MESSAGES, "max_tokens": 1, "add_generation_prompt": False})
    await plain.post(PATH, {"messages": MESSAGES, "max_tokens": 1, "truncate_prompt_tokens": 4})
    prompts = [bytes(each.prompt_token_ids) for each in plain.engine.submitted]
    assert prompts == [b"<system>S<user>U<A>", b"<system>S<user>U", b"U<A>"]


async def test_the_template_reads_what_a_client_tells_it(tmp_path: Path) -> None:
    """Turn off Qwen3's thinking by a template argument, which an old version rejected as an unknown field."""
    template = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}|quiet{% endif %}"
    body = {"messages": MESSAGES[1:], "max_tokens": 1}
    async with site(tmp_path, template=template) as at:
        for arguments in (None, {"enable_thinking": False}, {}):
            assert (await at.post(PATH, {**body, "chat_template_kwargs": arguments})).status_code == 200
        prompts = [bytes(each.prompt_token_ids) for each in at.engine.submitted]
        asked = {"messages": MESSAGES[1:], "chat_template_kwargs": {"enable_thinking": False}}
        assert bytes((await at.post("/tokenize", asked)).json()["tokens"]) == b"U|quiet"
    assert prompts == [b"U", b"U|quiet", b"U"]


async def test_half_a_character_told_to_the_template_is_refused(tmp_path: Path) -> None:
    """Check against an old failure: such a text caused an internal server error."""
    async with site(tmp_path, template="{{ x }}") as at:
        for path in (PATH, "/tokenize"):
            body = json.dumps({"messages": MESSAGES, "chat_template_kwargs": {"x": "\ud800"}})
            answer = await at.http.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "chat_template_kwargs"
            assert "lone surrogate at character 0" in answer.json()["error"]["message"]


async def test_an_answer_has_openais_shape(plain: Site) -> None:
    answer = (await plain.post(PATH, {"messages": MESSAGES, "max_completion_tokens": 2})).json()
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hi"}
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


async def test_without_a_limit_the_rest_of_the_context_may_be_used(plain: Site) -> None:
    await plain.post(PATH, {"messages": [{"role": "user", "content": "x" * 10}]})
    task = plain.engine.submitted[0].task
    assert isinstance(task, GenerateTask)
    assert task.sampling.max_tokens == 64 - len("<user>" + "x" * 10 + "<A>")


async def test_null_means_what_leaving_the_field_out_means(plain: Site) -> None:
    left_out = (await plain.post(PATH, {"messages": MESSAGES})).json()
    for field in NULLABLE:
        null = (await plain.post(PATH, {"messages": MESSAGES, field: None})).json()
        assert null["choices"] == left_out["choices"], field
    expected, *tasks = (each.task for each in plain.engine.submitted)  # one choice each
    assert isinstance(expected, GenerateTask)
    for field, task in zip(NULLABLE, tasks, strict=True):
        assert isinstance(task, GenerateTask)
        sampling = structs.replace(expected.sampling, seed=task.sampling.seed)  # seeds are drawn
        assert task == structs.replace(expected, sampling=sampling), field


async def test_a_stream_says_who_speaks_and_joined_is_the_answer(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=tuple("aé世".encode()))) as at:
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 6, "n": 2, "stream": True}
        data = events_of(await at.post(PATH, {**body, "stream_options": {"include_usage": True}}))
    assert data[-1] == "[DONE]"
    assert data[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = {0: "", 1: ""}
    for chunk in data[:-2]:
        assert chunk["object"] == "chat.completion.chunk"
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert texts == {0: "aé世", 1: "aé世"}
    assert data[-2]["usage"]["completion_tokens"] == 12


async def test_logprobs_have_openais_chat_shape(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=(0xE4,))) as at:
        body = {"messages": MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
        (choice,) = (await at.post(PATH, body)).json()["choices"]
    (entry,) = choice["logprobs"]["content"]
    assert (entry["logprob"], entry["bytes"]) == (-0.5, [0xE4])
    assert [top["token"] for top in entry["top_logprobs"]] == [entry["token"], "A"]


async def test_a_role_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "U"}, {"role": "usr", "content": "U"}]
    template = "{% for m in messages %}{{ m.role }}{% if m.role == 'usr' %}!{% endif %}{% endfor %}"
    async with site(tmp_path) as at:
        for path in (PATH, "/tokenize"):
            error = await at.error(path, {"messages": messages}, 400)
            assert error["param"] == "messages[1].role"
            assert "system, developer, user, assistant, tool, function" in error["message"]
            assert "got 'usr'" in error["message"]
    async with site(tmp_path, template=template) as at:
        await at.post(PATH, {"messages": messages, "max_tokens": 1})
        assert bytes(at.engine.submitted[0].prompt_token_ids) == b"userusr!", "roles of the template are accepted"


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


async def test_tokenize_has_vllms_shape(plain: Site) -> None:
    answer = (await plain.post("/tokenize", {"prompt": "aé", "return_token_strs": True})).json()
    assert answer == {
        "count": 3, "max_model_len": 64, "tokens": [97, 195, 169], "token_strs": ["a", "\ufffd", "\ufffd"],
    }  # fmt: skip
    answer = (await plain.post("/tokenize", {"prompt": "aéb", "return_offsets": True})).json()
    assert answer["offsets"] == [[0, 1], [1, 2], [1, 2], [2, 3]]


async def test_a_conversation_is_tokenised_as_the_template_writes_it(plain: Site) -> None:
    answer = (await plain.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})).json()
    assert bytes(answer["tokens"]) == b"<user>x<A>"


async def test_detokenize_gives_the_text_back_with_special_tokens_unless_skipped(plain: Site) -> None:
    assert (await plain.post("/detokenize", {"tokens": [97, 195, 169]})).json() == {"prompt": "aé"}
    assert (await plain.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
    ids = [97, END_OF_TEXT]
    assert (await plain.post("/detokenize", {"tokens": ids})).json() == {"prompt": "a<|end|>"}
    body = {"tokens": ids, "skip_special_tokens": True}
    assert (await plain.post("/detokenize", body)).json() == {"prompt": "a"}
    await refuses(plain, "/detokenize", {"tokens": [97, 257]}, "token id 257 is out of range; accepted are 0 to 256")
