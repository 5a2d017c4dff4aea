"""POST /v1/chat/completions."""

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from server.engine.request import GenerateTask
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, events_of, site

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
