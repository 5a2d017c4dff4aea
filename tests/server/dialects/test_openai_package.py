"""The `openai` package, unmodified, against a real server on a real port."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from lightwell.server.http.errors import EngineError
from tests.server.fake_client import HIDDEN_SIZE, FakeEngine
from tests.server.serving import build_site, listening

MODEL = "org/tiny"
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client(folder: Path, engine: FakeEngine | None = None, key: str = "key") -> AsyncIterator[openai.AsyncOpenAI]:
    """Open an openai client of a uvicorn server on an ephemeral port."""
    async with (
        listening(build_site(folder, engine or FakeEngine(), api_key=("key",))) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as connected,
    ):
        yield connected


async def test_models(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        assert [model.id async for model in api.models.list()] == [MODEL]
        assert (await api.models.retrieve(MODEL)).owned_by == "lightwell"


async def test_an_answer_goes_back_as_it_came_for_a_second_turn(tmp_path: Path) -> None:
    """Send an answer back with its null fields such as `refusal`, which were once rejected, with litellm's
    `provider_specific_fields`, and with `cache_control`.
    """
    async with client(tmp_path) as api:
        answer = await api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4)
        told = answer.choices[0].message.model_dump()
        litellms = {**told, "provider_specific_fields": {"refusal": None}, "images": [], "thinking_blocks": []}
        part: Any = {"type": "text", "text": "and then?", "cache_control": {"type": "ephemeral"}}
        for message in (told, litellms):
            turns = [*MESSAGES, message, {"role": "user", "content": [part]}]
            again = await api.chat.completions.create(model=MODEL, messages=turns, max_tokens=4, tools=[])
            assert again.choices[0].message.content


async def test_what_the_package_parsed_goes_back_as_it_came(tmp_path: Path) -> None:
    """Send a message with the fields that `parse` adds. The package removes them only in responses, and only from
    objects.
    """
    function: Any = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    call: Any = {"type": "function", "id": "c", "function": function}
    result: Any = {"role": "tool", "tool_call_id": "c", "content": "3"}
    said: Any = {"role": "assistant", "content": None, "parsed": {"a": 1}, "tool_calls": [call]}
    part = {"type": "output_text", "text": "A", "annotations": [], "parsed": {"a": 1}}
    items: Any = [
        {"type": "message", "role": "assistant", "content": [part]},
        {"type": "function_call", "call_id": "c", **function},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]
    async with client(tmp_path) as api:
        answer = await api.chat.completions.create(
            model=MODEL, messages=[*MESSAGES, said, result], max_tokens=4, extra_body={"truncate": True}
        )
        assert answer.choices[0].message.content
        response = await api.responses.create(model=MODEL, input=items, max_output_tokens=4, truncation="auto")
        assert response.output_text


async def test_completions(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.completions.create(model=MODEL, prompt="ab", max_tokens=4, logprobs=1, user="somebody")
        assert answer.choices[0].text == "hihi"
        assert answer.choices[0].logprobs is not None
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        stream = await api.completions.create(
            model=MODEL, prompt="ab", max_tokens=4, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "hihi"
        assert chunks[-1].usage is not None


async def test_chat(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=4, logprobs=True, top_logprobs=2, store=False
        )
        assert answer.choices[0].message.content == "hihi"
        assert answer.choices[0].logprobs is not None
        stream = await api.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=True)
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(text) == "hihi"


async def test_responses(tmp_path: Path) -> None:
    async with client(tmp_path, FakeEngine(eos_after=4)) as api:
        answer = await api.responses.create(
            model=MODEL, input="hello", include=["message.output_text.logprobs"], top_logprobs=1, store=True
        )
        assert (answer.output_text, answer.status) == ("hihi", "completed")
        turns: Any = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in answer.output)]
        async with api.responses.stream(model=MODEL, input=[*turns, {"role": "user", "content": "and?"}]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert (kinds[0], kinds[-1], final.output_text) == ("response.created", "response.completed", "hihi")
        assert kinds.count("response.output_text.delta") == 4
        with pytest.raises(openai.BadRequestError, match="no conversations are stored") as caught:
            await api.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"


async def test_embeddings_in_the_packages_default_form(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.embeddings.create(model=MODEL, input=["a", "b"])
        assert [len(entry.embedding) for entry in answer.data] == [HIDDEN_SIZE, HIDDEN_SIZE]
        assert answer.data[0].embedding[0] == 96.0


async def test_errors_arrive_as_the_packages_own_exceptions(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        with pytest.raises(openai.NotFoundError, match="gpt-4"):
            await api.completions.create(model="gpt-4", prompt="x")
        with pytest.raises(openai.BadRequestError, match="temperature") as caught:
            await api.completions.create(model=MODEL, prompt="x", temperature=-1)
        assert caught.value.param == "temperature"
    async with client(tmp_path, key="wrong") as api:
        with pytest.raises(openai.AuthenticationError):
            await api.models.list()


async def test_a_stream_that_fails_raises_in_the_package(tmp_path: Path) -> None:
    engine = FakeEngine(fail_after=2, failure=EngineError("boom"))
    async with client(tmp_path, engine) as api:
        stream = await api.completions.create(model=MODEL, prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="boom"):
            [chunk async for chunk in stream]


async def test_rows_travel_beside_the_fields_that_the_package_knows(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.completions.create(
            model=MODEL, prompt="ab", max_tokens=2, extra_body={"attention": {"layers": 0, "heads": 0}}
        )
    assert json.loads(answer.model_dump_json())["choices"][0]["attention"]["shape"] == [1, 1, 2, 3]
