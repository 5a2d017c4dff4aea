"""Errors use the terms of JSON and name no library, also of tokenizers, of grammars and of panics in Rust code."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightwell.model.tokenization.tokenizer import UnreadableText
from lightwell.server.http.errors import BadRequest
from tests.model.tokenization import tokenizer_folders as folders
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import WEATHER
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine, engine_with, site_of
from tests.server.serving import Site, site, write_tokenizer

CHAT, TRACE = "/v1/chat/completions", "/v1/trace"
USER = {"role": "user", "content": "x"}
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{'a'"}}]}
BYTES = {"dtype": "float32", "shape": [1], "data": "_"}
ADD = {"point": "hook_embed", "op": "add", "value": BYTES}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, 5, "The body is wrong: input should be a valid object, got 5. A JSON object is accepted."),
        (CHAT, {"messages": [5]}, "messages[0]: input should be a valid object, got 5."),
        (
            CHAT,
            {"messages": [USER], "tool_choice": {"type": "x"}},
            "tool_choice: input should be 'none', 'auto' or 'required', got {'type': 'x'}; or type should be one of "
            "'function', 'allowed_tools'.",
        ),
        (
            CHAT,
            {"messages": [USER], "tool_choice": {}},
            "tool_choice: input should be 'none', 'auto' or 'required', got {}; or type is missing, got {}.",
        ),
        (
            CHAT,
            {"messages": [USER, CALL]},
            "messages[1].tool_calls[0].function.arguments: an object as JSON is accepted, got \"{'a'\".",
        ),
        (
            CHAT,
            {"messages": [USER], "guided_json": '{"a": }'},
            "guided_json: the text is not valid JSON (at character 6); an object, or the JSON text of one, is "
            "accepted.",
        ),
        (
            TRACE,
            {"input": "x", "points": ["hook_embed"], "interventions": [ADD]},
            "interventions[0].value.data: not valid base64: '_'.",
        ),
        (
            TRACE,
            {"input": "x", "points": ["hook_embed"], "interventions": [{**ADD, "value": {**BYTES, "shape": [-256]}}]},
            "interventions[0].value.shape[0]: input should be greater than or equal to 1, got -256.",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: input should be a valid string, got 5; or input should be a valid list, got 5.",
        ),
        (
            "/v1/systemone",
            {"state": "x", "questions": {"Response": {"type": "nope"}}},
            "questions.Response.type: 'nope' is not supported; accepted: noul, choice, score.",
        ),
        (
            "/v1/decisions",
            {"input": "x", "questions": [{"instructions": "y"}]},
            "questions[0]: type should be one of 'predicate', 'choice', 'score'.",
        ),
    ],
)
async def test_an_error_is_in_terms_of_json(plain: Site, path: str, body: Any, message: str) -> None:
    assert (await plain.error(path, body, 400))["message"] == message


async def test_a_template_that_fails_is_named_by_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    template = "a\n{{ messages[0].no.such if messages[0].content == 'x' else raise_exception('Only x.') }}"
    async with site(tmp_path, template=template) as at:
        error = await at.error(CHAT, {"messages": [USER]}, 400)
        told = "messages: the chat template rejects the messages: chat template, line 2: it fails on this conversation"
        assert (error["message"], error["param"]) == (told, "messages")
        assert "UndefinedError: 'dict object' has no attribute 'no'" in caplog.text
        error = await at.error(CHAT, {"messages": [{**USER, "content": "y"}]}, 400)
    assert error["message"] == "messages: the chat template rejects the messages: chat template: Only x."


UNREADABLE = "a" * 47
CHOICES = [{"value": "b"}, {"value": UNREADABLE}]
LABELS = {"type": "choice", "name": "c", "instructions": "x", "choices": CHOICES}


class Panic(BaseException):
    """A panic as Rust code raises it: not a subclass of Exception."""


def write_slow_pattern(folder: Path) -> None:
    """Write a tokenizer with a pattern that tries all ways to cut a run of the letter a."""
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, file["pre_tokenizer"]]}
    path.write_text(json.dumps(file), encoding="utf-8")


async def test_an_error_whose_field_is_not_known_is_still_the_clients(tmp_path: Path) -> None:
    engine = FakeEngine(refuse=UnreadableText("it"))  # type: ignore[arg-type]
    async with site(tmp_path, engine) as at:
        error = await at.error("/v1/completions", {"prompt": "x"}, 400)
    assert (error["code"], error["message"]) == ("unreadable_text", "A text of the body: it; another text is accepted.")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": UNREADABLE, "max_tokens": 2}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": UNREADABLE}]}, "messages"),
        ("/v1/embeddings", {"input": ["x", UNREADABLE]}, "input"),
        ("/tokenize", {"prompt": UNREADABLE}, "prompt"),
        ("/v1/trace", {"input": UNREADABLE, "points": ["hook_embed"]}, "input"),
        ("/v1/decisions", {"input": "I", "questions": [LABELS]}, "input"),
    ],
)
async def test_the_error_names_the_field_and_nothing_of_the_library(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any], param: str
) -> None:
    write_slow_pattern(tmp_path)
    with caplog.at_level(logging.INFO):
        async with site(tmp_path) as at:
            error = await at.error(path, body, 400)
            assert await at.metric(f'lightwell_http_requests_total{{method="POST",route="{path}",status="400"}}') == 1
    assert error["code"] == "unreadable_text"
    assert (error["param"], "tokenizer cannot encode it" in error["message"]) == (param, True)
    assert "Onig" not in error["message"] + caplog.text
    assert f"POST {path} 400" in caplog.text


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}])
async def test_a_panic_is_an_error_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any]
) -> None:
    engine = FakeEngine(refuse=Panic("called unwrap"), refuse_from=0)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        async with site(tmp_path, engine) as at:
            answer = await at.post("/v1/completions", {"prompt": "x", **more})
            assert (
                await at.metric('lightwell_http_requests_total{method="POST",route="/v1/completions",status="500"}')
                == 1
            )
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["code"], "unwrap" in answer.text) == ("internal_error", False)
    assert "POST /v1/completions 500" in caplog.text


MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    return engine_with(folders.unigram(), tmp_path_factory.mktemp("llama"), **config)  # it has no token for {


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site_of(engine, templates.HERMES) as built:
        yield built


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_choice": ["a{"]}, "guided_choice"),
        ({"tools": [WEATHER], "tool_choice": "required"}, "tools"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_error_names_the_field(
    at: Site, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], param: str, stream: bool
) -> None:
    answer = await at.post(CHAT, {"messages": MESSAGES, "max_tokens": 40, "stream": stream, **fields})
    told = f"{param}: no answer can match it: no token of this model can continue an accepted text."
    assert told in answer.text
    assert stream or answer.status_code == 400
    assert "NoExtensionBias" in caplog.text


SCHEMA = {"type": "object"}
FORM = {"type": "json_schema", "schema": SCHEMA}
LIMITED = {"max_tokens": 9, "output_config": {"effort": "low"}}


def generated(**grammar: Any) -> dict[str, Any]:
    return {"inputs": "x", "parameters": {"max_new_tokens": 9, "grammar": grammar}}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"prompt": "x", "json_schema": SCHEMA}, "json_schema"),
        (CHAT, {"thinking_budget": 3}, "thinking_budget"),
        (CHAT, {"thinking_token_budget": 3}, "thinking_token_budget"),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"thinking_budget": 3, "tools": [WEATHER], "tool_choice": "none"}, "thinking_budget"),
        ("/v1/responses", {"input": "x", "reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("/v1/responses", {"input": "x", "text": {"format": {**FORM, "name": "x"}}}, "text.format.schema"),
        ("/v1/messages", {**LIMITED, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ("/v1/messages", LIMITED, "output_config.effort"),
        ("/v1/messages", {"max_tokens": 9, "output_config": {"format": FORM}}, "output_config.format.schema"),
        ("/v1/messages", {"max_tokens": 9, "output_format": FORM}, "output_format.schema"),
        ("/api/chat", {"think": "low"}, "think"),
        ("/api/chat", {"format": "json"}, "format"),
        ("/api/generate", {"prompt": "x", "format": SCHEMA}, "format"),
        ("/generate", generated(type="json", value=SCHEMA), "parameters.grammar.value"),
        ("/generate", generated(type="json_schema", value={"schema": SCHEMA}), "parameters.grammar.value.schema"),
    ],
)
async def test_an_error_amid_an_answer_names_the_field_by_the_name_that_the_client_sent(
    tmp_path: Path, path: str, body: dict[str, Any], name: str
) -> None:
    engine = FakeEngine(failure=BadRequest("no answer can match it: the reason.", code="grammar_refused"))
    if not {"prompt", "input", "inputs"} & body.keys():
        body = {"messages": MESSAGES, **body}
    async with site(tmp_path, engine, template=templates.OPEN_THOUGHT) as at:
        for engine.fail_after, stream, status in ((0, True, 400), (2, False, 400), (2, True, 200)):
            answer = await at.post(path, {**body, "stream": stream})
            assert answer.status_code == status
            assert f'"{name}: no answer can match it: the reason."' in answer.text
