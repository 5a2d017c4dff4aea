"""The `ollama` package, unmodified, against a real server on a real port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.server.fake_client import FakeEngine
from tests.server.serving import build_site, listening

MODEL = "org/tiny"
MESSAGES: Any = [{"role": "user", "content": "hello"}]
OPTIONS = {"num_predict": 4, "temperature": 0}


@asynccontextmanager
async def client(folder: Path, engine: FakeEngine | None = None, key: str = "key") -> AsyncIterator[ollama.AsyncClient]:
    """Open an ollama client of a server that wants a key."""
    async with (
        listening(build_site(folder, engine or FakeEngine(), api_key=("key",))) as url,
        ollama.AsyncClient(url, headers={"Authorization": f"Bearer {key}"}) as connected,
    ):
        yield connected


async def test_chat_twice_and_streamed(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.chat(MODEL, MESSAGES, options=OPTIONS, logprobs=True, top_logprobs=1)
        turns = [*MESSAGES, answer.message, {"role": "user", "content": "and then?"}]
        again = await api.chat(MODEL, turns, options=OPTIONS, keep_alive="5m", tools=[])
        stream = await api.chat(MODEL, turns, options=OPTIONS, stream=True)
        parts = [part async for part in stream]
    assert answer.message.content == again.message.content == "hihi"
    assert answer.logprobs is not None
    assert [entry.token for entry in answer.logprobs] == ["h", "i", "h", "i"]
    assert "".join(part.message.content or "" for part in parts) == "hihi"
    assert (parts[-1].done, parts[-1].done_reason, parts[-1].eval_count) == (True, "length", 4)


async def test_what_httpx_takes_for_the_end_of_a_line_is_text(tmp_path: Path) -> None:
    text = "a\x85b\u2028c\u2029"
    script = tuple(text.encode())
    async with client(tmp_path, FakeEngine(script=script)) as api:
        options = {"num_predict": len(script)}
        parts = [part async for part in await api.chat(MODEL, MESSAGES, options=options, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == text


async def test_generate_whole_streamed_and_raw(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.generate(MODEL, "ab", system="S", options=ollama.Options(num_predict=4))
        raw = await api.generate(MODEL, "ab", raw=True, options=OPTIONS)
        parts = [part async for part in await api.generate(MODEL, "ab", options=OPTIONS, stream=True)]
        loaded = await api.generate(MODEL)
    assert answer.response == raw.response == "".join(part.response or "" for part in parts) == "hihi"
    assert (answer.prompt_eval_count, raw.prompt_eval_count) == (len("<system>S<user>ab<A>"), 2)
    assert (loaded.done, loaded.done_reason) == (True, "load")


async def test_vectors(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        answer = await api.embed(MODEL, ["ab", "c"], truncate=True, dimensions=4)
        older = await api.embeddings(MODEL, "ab")
    assert [len(vector) for vector in answer.embeddings] == [4, 4]
    assert (answer.prompt_eval_count, len(older.embedding)) == (3, 8)


async def test_what_is_served(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        (model,) = (await api.list()).models
        assert model.model is not None
        assert model.modified_at is not None
        shown = await api.show(model.model)
        (running,) = (await api.ps()).models
        with pytest.raises(ollama.ResponseError, match="`lightwell pull MODEL`"):
            await api.pull("llama3")
    assert (model.model, running.model, running.context_length) == ("org/tiny:latest", "org/tiny:latest", 64)
    assert shown.details == model.details
    assert shown.capabilities == ["completion", "embedding"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["gpt2.context_length"] == 64


async def test_errors_are_the_clients_own(tmp_path: Path) -> None:
    async with client(tmp_path) as api:
        with pytest.raises(ollama.ResponseError, match="'llama3' does not exist here") as missing:
            await api.chat("llama3", MESSAGES)
        with pytest.raises(ollama.ResponseError, match=r"options\.temperature: .* got -1"):
            await api.chat(MODEL, MESSAGES, options={"temperature": -1})
    assert missing.value.status_code == 404
    async with client(tmp_path, key="wrong") as api:
        with pytest.raises(ollama.ResponseError, match="The API key is wrong"):
            await api.list()
