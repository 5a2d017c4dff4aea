"""Text Generation Inference's /generate and /generate_stream, and POST / as its clients send it."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import ValidationError

from server.dispatch.served_adapter import ServedAdapter
from server.engine.request import GenerateTask
from server.http.errors import EngineError, QueueFull
from tests.server.dialects.heads import answer
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site, events_of, listening, site
from tests.tiny import make_variant

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def tasks_of(at: Site) -> list[GenerateTask]:
    return [each.task for each in at.engine.submitted if isinstance(each.task, GenerateTask)]


async def test_an_answer_has_tgis_form(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=tuple(b"hi"))) as at:
        asked: dict[str, Any] = {"inputs": "ab", "parameters": {"max_new_tokens": 3}}
        assert await answer(at, "/generate", **asked) == {"generated_text": "hih"}
        assert await answer(at, "/", **asked) == [{"generated_text": "hih"}]
        full = {"max_new_tokens": 3, "return_full_text": True}
        assert await answer(at, "/generate", inputs="ab", parameters=full) == {"generated_text": "abhih"}
        detailed = {"max_new_tokens": 2, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
        told = (await answer(at, "/generate", inputs="ab", parameters=detailed))["details"]
    (task,) = tasks_of(at)[-1:]
    assert (told["finish_reason"], told["generated_tokens"], told["seed"]) == ("length", 2, None)
    assert [each["id"] for each in told["prefill"]] == list(b"ab")
    assert told["prefill"][0]["logprob"] is None
    assert [(each["id"], each["text"], each["special"]) for each in told["tokens"]] == [
        (104, "h", False),
        (105, "i", False),
    ]
    assert [len(each) for each in told["top_tokens"]] == [2, 2]
    assert task.sampling.temperature == 0


async def test_the_advice_for_a_long_prompt_names_tgis_field(plain: Site) -> None:
    error = (await plain.post("/generate", {"inputs": "x" * 3_000})).json()
    assert error["error"].endswith(" are accepted. Set parameters.truncate to cut it.")


async def test_a_streams_texts_join_to_the_whole_text(tmp_path: Path) -> None:
    script = tuple("aé世".encode())
    async with site(tmp_path, FakeEngine(script=script)) as at:
        asked: dict[str, Any] = {
            "inputs": "x",
            "parameters": {"max_new_tokens": 6, "details": True, "seed": 5, "top_k": 9},
        }
        for path, more in (("/generate_stream", {}), ("/generate", {"stream": True}), ("/", {"stream": True})):
            events = events_of(await at.post(path, {**asked, **more}))
            assert [each["index"] for each in events] == [1, 2, 3, 4, 5, 6]
            assert [each["token"]["id"] for each in events] == list(script)
            assert "".join(each["token"]["text"] for each in events) == events[-1]["generated_text"] == "aé世"
            assert all(each["generated_text"] is each["details"] is None for each in events[:-1])
            end = {"finish_reason": "length", "generated_tokens": 6, "seed": 5, "input_length": 1}
            assert events[-1]["details"] == end
    assert tasks_of(at)[0].sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("engine", "parameters", "reason", "text"),
    [
        (FakeEngine(eos_after=2), {}, "eos_token", "hi"),
        (FakeEngine(), {"stop": ["ih"]}, "stop_sequence", "hih"),
        (FakeEngine(), {"max_new_tokens": 2}, "length", "hi"),
    ],
)
async def test_the_end_is_told(
    engine: FakeEngine, parameters: dict[str, Any], reason: str, text: str, tmp_path: Path
) -> None:
    async with site(tmp_path, engine) as at:
        told = await answer(at, "/generate", inputs="x", parameters={**parameters, "details": True})
        events = events_of(await at.post("/generate_stream", {"inputs": "x", "parameters": parameters}))
    assert (told["generated_text"], told["details"]["finish_reason"]) == (text, reason)
    assert events[-1]["generated_text"] == text
    if reason == "eos_token":
        assert told["details"]["tokens"][-1] == events[-1]["token"]
        assert (events[-1]["token"]["text"], events[-1]["token"]["special"]) == ("<|end|>", True)


async def test_parameters_are_those_of_completions_by_other_names(plain: Site) -> None:
    alike = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.5,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "seed": 7,
    }
    theirs = {
        **alike,
        "max_new_tokens": 5,
        "stop": ["zz"],
        "truncate": 2,
        "typical_p": None,
        "watermark": False,
        "best_of": 1,
    }
    ours = {**alike, "max_tokens": 5, "stop": ["zz"], "truncate_prompt_tokens": 2}
    await answer(plain, "/v1/completions", prompt="abcd", **ours)
    await answer(plain, "/generate", inputs="abcd", parameters=theirs)
    await answer(plain, "/generate", inputs="abcd")
    expected, found, default = plain.engine.submitted
    assert found.task == expected.task
    assert found.prompt_token_ids == expected.prompt_token_ids == tuple(b"cd")
    assert isinstance(default.task, GenerateTask)
    assert (default.task.sampling.max_tokens, default.task.sampling.temperature) == (60, 0.0)
    plain.model.adapters._served["tales"] = ServedAdapter("tales", 1, Path("/loras/tales"), 0)
    await answer(plain, "/generate", inputs="abcd", parameters={"adapter_id": "tales"})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": -1}, "parameters.temperature: input should be greater than or equal to 0"),
        ({"max_new_tokens": 500}, "parameters.max_new_tokens: 500 is too large"),
        ({"grammar": {"type": "json", "value": {"type": "no"}}}, "parameters.grammar.value.type: "),
        ({"grammar": {"type": "regex", "value": {}}}, "parameters.grammar.value: a regular expression is accepted"),
        ({"grammar": {"type": "xml", "value": ""}}, "parameters.grammar.type: "),
        ({"watermark": True}, "parameters.watermark: not supported"),
        ({"best_of": 2}, "parameters.best_of: not supported"),
        ({"adapter_id": "none"}, "The model 'none' does not exist here"),
        ({"max_tokens": 2}, "parameters.max_tokens: no such field"),
        ({"decoder_input_details": True, "details": True}, "parameters.decoder_input_details: a stream"),
    ],
)
async def test_what_is_refused_is_named_as_the_client_wrote_it(
    parameters: dict[str, Any], message: str, plain: Site
) -> None:
    for path in ("/generate", "/"):
        found = await plain.post(path, {"inputs": "x", "parameters": parameters, "stream": True})
        assert found.status_code in (400, 404), found.text
        assert found.json()["error"].startswith(message)
        assert found.json()["error_type"] == "validation"
    assert not plain.engine.submitted


async def test_errors_of_the_server_have_tgis_types(tmp_path: Path) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 4}}
    async with site(tmp_path, FakeEngine(fail_after=2, failure=EngineError("it broke"))) as at:
        assert (await at.post("/generate", body)).json() == {"error": "it broke", "error_type": "generation"}
        events = events_of(await at.post("/generate_stream", body))
        assert [each.get("error") for each in events] == [None, None, "it broke"]
        at.engine.full = QueueFull("full", code="queue_full", retry_after=1)
        full = await at.post("/generate", body)
    assert (full.status_code, full.json()["error_type"]) == (429, "overloaded")


async def test_huggingface_hub_generates_streams_and_chats(tmp_path: Path) -> None:
    """Use the package unmodified: its schemas for chats, and its model name for a URL."""
    engine = InlineEngine(folder=make_variant("llama-gqa", tmp_path))
    at = build_site(engine.folder, engine, config=engine.model_config)
    async with listening(at) as url, AsyncInferenceClient(model=url) as client:
        asked: dict[str, Any] = {"max_new_tokens": 5, "seed": 1, "do_sample": True}
        text = await client.text_generation("Once", **asked)
        detailed = await client.text_generation("Once", details=True, decoder_input_details=True, **asked)
        streamed = [each async for each in await client.text_generation("Once", stream=True, details=True, **asked)]
        held = await client.text_generation("Once", max_new_tokens=40, grammar={"type": "json", "value": SCHEMA})
        with pytest.raises(ValidationError, match="is too large"):
            await client.text_generation("Once", max_new_tokens=500)
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
        messages = [{"role": "user", "content": "Once"}]
        chat = await client.chat_completion(messages, max_tokens=40, response_format=form)
    assert text == detailed.generated_text == streamed[-1].generated_text
    assert [each.id for each in detailed.details.tokens] == [each.token.id for each in streamed]
    assert len(detailed.details.prefill) == streamed[-1].details.input_length
    assert json.loads(held)["a"] in (1, 2)
    assert json.loads(chat.choices[0].message.content)["a"] in (1, 2)
