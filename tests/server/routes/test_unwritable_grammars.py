"""Grammars that the model's tokens cannot spell: the error names the field, in plain words."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.model.tokenization import tokenizer_folders as folders
from tests.model.tokenization.chat_formats import templates
from tests.server.fake_client import INFO
from tests.server.inline_engine import InlineEngine
from tests.server.routes.test_tools import WEATHER
from tests.server.serving import Site, site
from tests.tiny import make_variant

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    tokenizer = folders.unigram()  # it has no token for {
    options = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 1024}
    folder = make_variant("llama-gqa", tmp_path_factory.mktemp("llama"), **options)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    folders.write(folder, tokenizer, tokenizer_config=config)
    return InlineEngine(folder=folder, engine_info=replace(INFO, max_model_len=1024))


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site(
        engine.folder, engine, config=engine.model_config, template=templates.HERMES, max_model_len=1024
    ) as built:
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
    answer = await at.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 40, "stream": stream, **fields})
    told = f"{param}: no answer can keep to it: no token of this model can go on with a text that is accepted."
    assert told in answer.text
    assert stream or answer.status_code == 400
    assert "NoExtensionBias" in caplog.text
