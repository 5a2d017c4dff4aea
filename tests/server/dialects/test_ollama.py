"""Ollama's routes: texts and chats, their translation, models and vectors."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from lightwell.model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from lightwell.server.dialects.ollama.lines import Begun, LineWriter, chat_fields
from lightwell.server.dialects.ollama.translation import chat_request, translated_messages
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.engine.messages.request import EmbedTask, GenerateTask
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.conversation import ChatPiece
from lightwell.server.generation.prompts.prompt import Prompt, packed
from lightwell.server.generation.submission import Started
from lightwell.server.http.errors import EngineError
from lightwell.server.observability.version import lightwell_version
from lightwell.server.schemas.ollama import OllamaChatRequest
from lightwell.server.schemas.structured_outputs import Constraint
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, site, tiny_config, tiny_encoder

CHAT, GENERATE = "/api/chat", "/api/generate"
MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "org/tiny", "messages": MESSAGES},
    GENERATE: {"model": "org/tiny", "prompt": "U", "system": "S"},
}
THINKS = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}|quiet{% endif %}"


def call_of(argument: Any) -> dict[str, Any]:
    """Return a message that calls a tool with this argument."""
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": argument}}}]}


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


async def prompts(at: Site, path: str, *bodies: dict[str, Any]) -> list[bytes]:
    """Return the prompt that the model gets for each body."""
    begin = len(at.engine.submitted)
    for body in bodies:
        answer = await at.post(path, {"options": {"num_predict": 1}, "stream": False, **body})
        assert answer.status_code == 200, answer.text
    return [bytes(each.prompt_token_ids) for each in at.engine.submitted[begin:]]


@pytest.mark.parametrize("path", BODIES)
async def test_a_streams_lines_join_to_the_whole_answer(path: str, tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=tuple("aé世".encode()))) as at:
        body = {**BODIES[path], "options": {"num_predict": 6}}
        lines = lines_of(await at.post(path, body))
        whole = (await at.post(path, {**body, "stream": False})).json()
    assert "".join(map(text_of, lines)) == text_of(whole) == "aé世"
    assert [each["done"] for each in lines] == [*[False] * 3, True]
    assert lines[-1].keys() == whole.keys()
    for end in (lines[-1], whole):
        assert (end["model"], end["done"], end["done_reason"]) == ("org/tiny", True, "length")
        assert (end["prompt_eval_count"], end["eval_count"]) == (len("<system>S<user>U<A>"), 6)
        assert end["total_duration"] >= end["prompt_eval_duration"] > 0
        assert end["created_at"].endswith("Z")


async def test_a_prompt_is_wrapped_into_the_template_unless_it_is_raw(plain: Site) -> None:
    asked = [{"prompt": "U", **more} for more in ({"system": "S"}, {}, {"raw": True})]
    assert await prompts(plain, GENERATE, *asked) == [b"<system>S<user>U<A>", b"<user>U<A>", b"U"]


async def test_a_model_without_a_template_continues_the_prompt_and_has_no_chats(tmp_path: Path) -> None:
    async with site(tmp_path, template=None) as at:
        assert await prompts(at, GENERATE, {"prompt": "U"}) == [b"U"]
        refused = await at.error(GENERATE, BODIES[GENERATE], 400)
        assert refused["message"].startswith("system: the model 'org/tiny' has no chat template")
        assert "no chat template" in (await at.error(CHAT, BODIES[CHAT], 400))["message"]


async def test_what_asks_for_nothing_to_be_written_is_told_that_the_model_is_loaded(plain: Site) -> None:
    for path, body in ((GENERATE, {"prompt": ""}), (GENERATE, {"keep_alive": "5m"}), (CHAT, {"messages": []})):
        answer = (await plain.post(path, body)).json()
        assert (text_of(answer), answer["done"], answer["done_reason"]) == ("", True, "load")
    assert not plain.engine.submitted


async def test_options_are_those_of_v1_by_other_names(plain: Site) -> None:
    alike = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.25, "seed": 7, "presence_penalty": 1,
        "frequency_penalty": 0.5,
    }  # fmt: skip
    options = {**alike, "num_predict": 5, "repeat_penalty": 1.5, "stop": ["hihi"], "num_ctx": 8192, "num_thread": 4}
    body = {**alike, "messages": MESSAGES, "max_tokens": 5, "repetition_penalty": 1.5, "stop": ["hihi"]}
    ours = (await plain.post("/v1/chat/completions", body)).json()["choices"][0]
    for path, asked in BODIES.items():
        answer = (await plain.post(path, {**asked, "options": options, "stream": False})).json()
        assert (text_of(answer), answer["done_reason"]) == (ours["message"]["content"], "stop")
    expected, *tasks = [each.task for each in plain.engine.submitted]
    assert tasks == [expected] * 2


@pytest.mark.parametrize("number", [-1, -2, None])
async def test_without_a_limit_the_rest_of_the_context_may_be_used(number: int | None, plain: Site) -> None:
    for body in ({"prompt": "U"}, {"prompt": "U", "raw": True}):
        await plain.post(GENERATE, {**body, "options": {"num_predict": number, "seed": -1}})
    tasks = [each.task for each in plain.engine.submitted]
    assert [task.sampling.max_tokens for task in tasks if isinstance(task, GenerateTask)] == [54, 63]


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (CHAT, {"options": {"temperature": -1}}, "options.temperature: input should be greater than or equal to 0"),
        (CHAT, {"options": {"num_predict": 0}}, "options.num_predict: 0 generates no tokens; at least 1"),
        (CHAT, {"options": {"num_predict": 500}}, "options.num_predict: 500 is too large"),
        (
            GENERATE,
            {"options": {"num_predict": 500}, "raw": True, "system": ""},
            "options.num_predict: 500 is too large",
        ),
        (CHAT, {"options": {"stop": [""]}}, "options.stop[0]: "),
        (CHAT, {"options": {"mirostat": 1}}, "options.mirostat: not supported"),
        (CHAT, {"options": {"repeat_last_n": 64}}, "options.repeat_last_n: not supported"),
        (CHAT, {"options": {"temprature": 1}}, "options.temprature: no such field"),
        (CHAT, {"think": "high"}, "think: the chat template of this model does not support thinking"),
        (CHAT, {"think": True}, "think: the chat template of this model does not support thinking"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs: top_logprobs 2 is accepted only with logprobs true"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images: not supp"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 100}]}, "messages: the prompt has 109 tokens"),
        (CHAT, {"messages": [call_of([0] * 5000)]}, "messages: the tool calls have more than 5000 values"),
        (CHAT, {"format": "yaml"}, "format: "),
        (CHAT, {"priority": -1}, "priority: -1 would precede the requests of all"),
        (CHAT, {"attention": {"layers": 9}}, "attention.layers: "),
        (GENERATE, {"prompt": "x" * 100}, "prompt: the prompt has 118 tokens"),
        (
            GENERATE,
            {"raw": True},
            "system: system is used by the chat template, which raw true switches off; leave it out",
        ),
        (GENERATE, {"suffix": "x"}, "suffix: not supported"),
        (GENERATE, {"template": "x"}, "template: not supported"),
        (GENERATE, {"context": [1]}, "context: not supported: answers contain no context"),
        (GENERATE, {"images": ["aGk="]}, "images: not supported"),
        (GENERATE, {"prompt": [1]}, "prompt: input should be a valid string"),
        (GENERATE, {"promt": "x"}, "promt: no such field"),
    ],
)
async def test_what_is_refused_is_named_as_the_client_wrote_it(
    path: str, fields: dict[str, Any], said: str, plain: Site
) -> None:
    error = await plain.error(path, {**BODIES[path], **fields}, 400)
    assert error["message"].startswith(said)
    assert not plain.engine.submitted


async def test_every_error_is_a_text(tmp_path: Path) -> None:
    async with site(tmp_path, api_key=("key",)) as at:
        bearer = {"authorization": "Bearer key"}
        form = {**bearer, "content-type": "application/x-www-form-urlencoded"}
        from_page = {**form, "origin": "https://example.org"}
        for answer, status in (
            (await at.post(CHAT, BODIES[CHAT]), 401),
            (await at.http.get("/api/tags"), 401),
            (await at.post(CHAT, {**BODIES[CHAT], "model": "llama3"}, headers=bearer), 404),
            (await at.post("/api/nothing", {}, headers=bearer), 404),
            (await at.http.get(CHAT, headers=bearer), 405),
            (await at.http.post(CHAT, content=json.dumps(BODIES[CHAT]), headers=from_page), 415),
            (await at.http.post(CHAT, content="{", headers={**bearer, "content-type": "application/json"}), 400),
        ):
            assert answer.status_code == status, answer.text
            assert answer.json().keys() == {"error"}
            assert isinstance(answer.json()["error"], str)
        assert (await at.post(CHAT, BODIES[CHAT], headers=bearer)).status_code == 200


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_fails_ends_with_the_error(path: str, tmp_path: Path) -> None:
    engine = FakeEngine(fail_after=2, failure=EngineError("it broke"))
    async with site(tmp_path, engine) as at:
        lines = lines_of(await at.post(path, BODIES[path]))
        whole = await at.post(path, {**BODIES[path], "stream": False})
    assert [*map(text_of, lines[:-1]), lines[-1]] == ["h", "i", {"error": "it broke"}]
    assert (whole.status_code, whole.json()) == (500, {"error": "it broke"})


@pytest.mark.parametrize("path", BODIES)
async def test_log_probabilities_and_attention_are_those_of_v1(path: str, plain: Site) -> None:
    looks = {"attention": {"layers": 0, "heads": 1}, "logprobs": True, "top_logprobs": 2}
    asked = {"messages": MESSAGES, "max_tokens": 3, **looks}
    (ours,) = (await plain.post("/v1/chat/completions", asked)).json()["choices"]
    body = {**BODIES[path], "options": {"num_predict": 3}, **looks}
    whole = (await plain.post(path, {**body, "stream": False})).json()
    lines = lines_of(await plain.post(path, body))
    assert whole["attention"] == ours["attention"]
    assert whole["logprobs"] == ours["logprobs"]["content"]
    assert [entry for line in lines for entry in line.get("logprobs", ())] == whole["logprobs"]
    rows = [line["attention"] for line in lines if "attention" in line]
    positions = [position for row in rows for position in row["query_positions"]]
    assert positions == ours["attention"]["query_positions"]


async def test_thinking_is_turned_off_by_the_templates_own_variable(tmp_path: Path) -> None:
    async with site(tmp_path, template=THINKS) as at:
        asked = [{"messages": MESSAGES[1:], **more} for more in ({}, {"think": True}, {"think": False})]
        assert await prompts(at, CHAT, *asked) == [b"U", b"U", b"U|quiet"]
        assert (await at.post("/api/show", {})).json()["capabilities"] == ["completion", "thinking", "embedding"]


async def test_the_name_may_have_ollamas_tag(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        at.model.adapters._served["tales"] = ServedAdapter("tales", 1, tmp_path, 0)
        for name in ("org/tiny", "org/tiny:latest", "tales", "tales:latest", None):
            answer = (await at.post(CHAT, {**BODIES[CHAT], "model": name, "stream": False})).json()
            assert answer["model"] == (name or "org/tiny")
        assert "'org/tiny:8b' does not exist" in (await at.error(CHAT, {"model": "org/tiny:8b"}, 404))["message"]


async def test_an_encoder_writes_nothing(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder()) as at:
        for path, body in BODIES.items():
            assert f"{path}: this model is an encoder" in (await at.error(path, body, 400))["message"]
        assert (await at.post("/api/show", {})).json()["capabilities"] == ["embedding"]


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", None])
async def test_a_body_needs_no_content_type_unless_a_browser_sends_it(content_type: str | None, plain: Site) -> None:
    """Send the examples of Ollama's documentation, which use `curl -d`."""
    headers = {} if content_type is None else {"content-type": content_type}
    browsers: list[dict[str, str]] = [
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://lightwell"},
    ]
    content = json.dumps({**BODIES[GENERATE], "stream": False})
    answer = await plain.http.post(GENERATE, content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    for added in browsers:
        assert (await plain.http.post(GENERATE, content=content, headers={**headers, **added})).status_code == 415
    elsewhere = await plain.http.post("/v1/completions", content='{"prompt": "x"}', headers=headers)
    assert elsewhere.status_code == (200 if content_type is None else 415)


@pytest.mark.parametrize("fields", [{"messages": MESSAGES}, {"prompt": "U"}, {"prompt": "U", "raw": True}])
async def test_a_prompt_that_was_cut_is_told(fields: dict[str, Any], plain: Site) -> None:
    path = CHAT if "messages" in fields else GENERATE
    long = (
        {**fields, "prompt": "x" * 100}
        if "prompt" in fields
        else {"messages": [{"role": "user", "content": "x" * 100}]}
    )
    options = {"num_predict": 2, "num_ctx": 8192}
    for streams in (False, True):
        asked = {"truncate": True, "options": options, "stream": streams}
        cut, whole = [await plain.post(path, {**body, **asked}) for body in (long, fields)]
        ends = [json.loads(answer.text.splitlines()[-1]) for answer in (cut, whole)]
        assert ends[0]["truncated"] is True
        assert ends[0]["prompt_eval_count"] == 62
        assert "truncated" not in ends[1]


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("json", Constraint("format", "json_object", True)),
        ({"type": "object"}, Constraint("format", "json", {"type": "object"})),
        ("", None),
    ],
)
async def test_a_format_is_the_constraint_of_the_text(format: Any, expected: Any, plain: Site) -> None:
    body = OllamaChatRequest.model_validate({"messages": MESSAGES, "format": format})
    assert chat_request(plain.context, body).constraint == expected


async def test_half_a_character_in_a_call_is_refused(plain: Site) -> None:
    """Check against an old failure: such a body caused an internal server error."""
    body = json.dumps({"messages": [call_of("\ud800")]})
    answer = await plain.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(
        "messages[0].tool_calls[0].function.arguments: the text contains a lone surr"
    )


def test_a_call_may_hold_any_number() -> None:
    """Check against an old failure: an integer of more than 64 bits caused an internal server error."""
    messages = OllamaChatRequest.model_validate({"messages": [call_of(2**70)]}).messages
    (call,) = translated_messages(messages)[0]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": 2**70}


def test_calls_and_results_of_tools_find_each_other_without_ids() -> None:
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("f", "g", "f")]
    messages = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f", "tool_name": "f"},
        {"role": "tool", "content": "of f again"},
    ]
    told = translated_messages(OllamaChatRequest.model_validate({"messages": messages}).messages)
    ids = [call["id"] for call in told[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert told[1]["reasoning_content"] == "hm"
    assert [json.loads(call["function"]["arguments"]) for call in told[1]["tool_calls"]] == [{"x": 1}] * 3
    assert [message["tool_call_id"] for message in told[2:]] == [ids[1], ids[0], ids[2]]
    assert told[2]["name"] == "g"


def written(at: Site, *deltas: MessageDelta) -> LineWriter:
    """Return the writer of these parts of a message."""

    async def pieces() -> AsyncIterator[ChatPiece]:
        for delta in deltas:
            yield ChatPiece(0, delta, None, Piece())
        yield ChatPiece(0, MessageDelta(), "tool_calls", Piece(token_ids=(1,), finish_reason="stop"))

    begun = Begun(Prompt(packed((1, 2))), Started([], None), pieces(), None)
    return LineWriter(at.model, "org/tiny", chat_fields, begun)


def call(index: int, arguments: str, name: str | None = None) -> MessageDelta:
    return MessageDelta(tool_calls=(ToolCallDelta(index=index, id=name, name=name, arguments=arguments),))


async def test_thinking_and_calls_have_their_fields_and_a_call_is_whole(plain: Site) -> None:
    deltas = [
        MessageDelta(reasoning="h"), MessageDelta(reasoning="m"), MessageDelta(content="So: "),
        call(0, "", "f"), call(0, '{"x":\r\n'), call(0, "[1]}"), call(1, "{}", "g"),
    ]  # fmt: skip
    lines = [json.loads(line) async for line in written(plain, *deltas).lines()]
    whole = orjson.loads(orjson.dumps(await written(plain, *deltas).whole()))
    told = whole["message"]
    assert (told["thinking"], told["content"]) == ("hm", "So: ")
    assert [each["function"] for each in told["tool_calls"]] == [
        {"index": 0, "name": "f", "arguments": {"x": [1]}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert [line["message"].get("thinking") for line in lines] == ["h", "m", None, None, None]
    assert [line["message"]["content"] for line in lines] == ["", "", "So: ", "", ""]
    assert lines[3]["message"]["tool_calls"] == told["tool_calls"]
    assert (lines[3]["done"], lines[4]["done"], lines[4]["done_reason"]) == (False, True, "stop")
    assert whole["done_reason"] == "stop"


async def test_a_call_that_the_answers_end_cuts_off_is_text(plain: Site) -> None:
    whole = orjson.loads(orjson.dumps(await written(plain, call(0, '{"x": ', "f")).whole()))
    lines = [json.loads(line) async for line in written(plain, call(0, '{"x": ', "f")).lines()]
    assert json.loads(whole["message"]["content"]) == {"name": "f", "arguments": '{"x": '}
    assert "tool_calls" not in whole["message"]
    assert lines[0]["message"] == whole["message"]


async def test_the_model_and_its_adapters_are_listed_with_a_tag(plain: Site) -> None:
    plain.model.adapters._served["tales"] = ServedAdapter("tales", 1, Path("/loras/tales"), 1795630349)
    models = (await plain.http.get("/api/tags")).json()["models"]
    assert (
        [each["name"] for each in models] == [each["model"] for each in models] == ["org/tiny:latest", "tales:latest"]
    )
    assert [each["details"]["parent_model"] for each in models] == ["", "org/tiny:latest"]
    assert models[1]["modified_at"] == "2026-11-25T18:12:29Z"
    assert len({each["digest"] for each in models}) == 2
    assert {len(each["digest"]) for each in models} == {64}


async def test_a_model_is_told_with_its_size_and_how_it_is_kept(tmp_path: Path) -> None:
    for dtype, size, level in (("float32", 4 * 4384, "F32"), ("bfloat16", 2 * 4384, "BF16")):
        async with site(tmp_path, dtype=dtype) as at:
            (model,) = (await at.http.get("/api/tags")).json()["models"]
        assert (model["size"], model["details"]["quantization_level"]) == (size, level)
        assert (model["details"]["format"], model["details"]["family"]) == ("safetensors", "gpt2")
        assert model["details"]["parameter_size"] == "4.4K"
    async with site(tmp_path, config=replace(tiny_config(), stored_as="gguf")) as at:
        (model,) = (await at.http.get("/api/tags")).json()["models"]
    assert (model["details"]["format"], model["details"]["quantization_level"]) == ("gguf", "GGUF")


async def test_show_tells_sizes_template_and_defaults(plain: Site) -> None:
    told = (await plain.post("/api/show", {"model": "org/tiny:latest", "verbose": True})).json()
    older = (await plain.post("/api/show", {"name": "org/tiny"})).json()
    (listed,) = (await plain.http.get("/api/tags")).json()["models"]
    unknown = await plain.error("/api/show", {"model": "llama3"}, 404)
    assert older == told
    assert told["details"] == listed["details"]
    info = told["model_info"]
    assert (info["general.architecture"], info["general.parameter_count"]) == ("gpt2", 4384)
    assert (info["gpt2.context_length"], info["gpt2.embedding_length"], info["gpt2.block_count"]) == (64, 8, 3)
    assert (info["gpt2.attention.head_count"], info["gpt2.attention.head_count_kv"]) == (4, 4)
    assert told["template"].startswith("{% for m in messages %}")
    assert "temperature 1.0" in told["parameters"].splitlines()
    assert told["capabilities"] == ["completion", "embedding"]
    assert "'llama3' does not exist here; 'org/tiny' is served" in unknown["message"]


@pytest.mark.parametrize(("device", "on_card"), [("cpu", False), ("cuda", True)])
async def test_the_model_is_loaded_and_stays_so(device: str, on_card: bool, tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(engine_info=replace(INFO, device=device))) as at:
        (model,) = (await at.http.get("/api/ps")).json()["models"]
    assert model["size_vram"] == (model["size"] if on_card else 0)
    assert (model["context_length"], model["expires_at"]) == (64, "9999-12-31T23:59:59Z")


async def test_the_version_is_this_servers(tmp_path: Path) -> None:
    async with site(tmp_path, api_key=("key",)) as at:
        assert (await at.http.get("/api/version")).json() == {"version": lightwell_version()}


async def test_what_changes_which_models_there_are_is_refused_with_what_there_is(plain: Site) -> None:
    for method, route in (
        ("POST", "push"), ("POST", "create"), ("POST", "copy"), ("DELETE", "delete"),
    ):  # fmt: skip
        answer = await plain.http.request(method, f"/api/{route}", json={"model": "llama3"})
        assert answer.status_code == 404
        assert f"There is no /api/{route}" in answer.json()["error"]
        assert "org/tiny:latest" in answer.json()["error"]


async def test_a_download_is_refused_with_the_command_for_it(plain: Site) -> None:
    answer = await plain.post("/api/pull", {"model": "llama3"})
    assert answer.status_code == 501
    assert "`lightwell pull MODEL`" in answer.json()["error"]


@pytest.mark.parametrize("fields", [{}, {"dimensions": 4}])
async def test_vectors_are_those_of_v1(fields: dict[str, Any], plain: Site) -> None:
    texts = ["ab", "c"]
    answer = (await plain.post("/api/embed", {"model": "org/tiny:latest", "input": texts, **fields})).json()
    one = (await plain.post("/api/embed", {"input": texts[0], "options": {"num_ctx": 8}, **fields})).json()
    ours = (await plain.post("/v1/embeddings", {"input": texts, "normalize": True, **fields})).json()
    tasks = [each.task for each in plain.engine.submitted]
    assert answer["embeddings"] == [entry["embedding"] for entry in ours["data"]]
    assert one["embeddings"] == answer["embeddings"][:1]
    assert (answer["model"], answer["prompt_eval_count"]) == ("org/tiny:latest", 3)
    assert answer["total_duration"] > 0
    assert all(isinstance(task, EmbedTask) and task.normalize for task in tasks)
    assert len(set(tasks)) == 1


async def test_a_text_that_is_too_long_is_cut_unless_it_must_not_be(plain: Site) -> None:
    answer = (await plain.post("/api/embed", {"input": ["y", "x" * 100]})).json()
    assert (answer["prompt_eval_count"], answer["truncated"]) == (65, True)
    assert "truncated" not in (await plain.post("/api/embed", {"input": ["y", "x" * 64]})).json()
    assert (await plain.post("/api/embeddings", {"prompt": "x" * 100})).json()["truncated"] is True
    refused = await plain.error("/api/embed", {"input": ["y", "x" * 100], "truncate": False}, 400)
    assert refused["message"].startswith("input: the prompt has 100 tokens; at most 64 are accepted")
    wide = await plain.error("/api/embed", {"input": "x", "dimensions": 9}, 400)
    assert wide["message"].startswith("dimensions: 9 is larger than the width 8")


async def test_the_older_route_takes_one_prompt_and_leaves_its_length(plain: Site) -> None:
    answer = (await plain.post("/api/embeddings", {"prompt": "ab"})).json()
    ours = (await plain.post("/v1/embeddings", {"input": "ab", "normalize": False})).json()
    first, second = (each.task for each in plain.engine.submitted)
    empty = await plain.error("/api/embeddings", {"prompt": ""}, 400)
    assert answer == {"embedding": ours["data"][0]["embedding"]}
    assert first == second
    assert empty["message"].startswith("prompt: the prompt is empty")
