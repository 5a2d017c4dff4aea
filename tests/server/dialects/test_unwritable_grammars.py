"""Grammars that the model's tokens cannot spell: the error names the field, in plain words."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.http.errors import BadRequest
from tests.model.tokenization import tokenizer_folders as folders
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import WEATHER
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine, engine_with, site_of
from tests.server.serving import Site, site

CHAT, MESSAGES = "/v1/chat/completions", [{"role": "user", "content": "x"}]


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
