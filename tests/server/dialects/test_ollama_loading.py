"""Ollama's clients and several models: their lists, loading by an empty prompt, and `keep_alive`."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from tests.server.serving import error_of, listening
from tests.server.several_models import several, until


async def test_all_models_are_listed_and_the_loaded_ones_apart(tmp_path: Path) -> None:
    async with several(tmp_path, "org/chat", "embed") as at:
        await at.site.post("/api/chat", {"model": "org/chat:latest"})
        tags = (await at.site.http.get("/api/tags")).json()["models"]
        loaded = (await at.site.http.get("/api/ps")).json()["models"]
        assert [(each["name"], each["size"] > 0) for each in tags] == [
            ("org/chat:latest", True),
            ("embed:latest", False),
        ]
        assert [(each["name"], each["expires_at"]) for each in loaded] == [("org/chat:latest", "9999-12-31T23:59:59Z")]
        shown = (await at.site.post("/api/show", {"model": "embed"})).json()
        assert shown["capabilities"] == ["embedding"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_request_without_a_prompt_loads_or_unloads(path: str, tmp_path: Path) -> None:
    async with several(tmp_path, "chat", "text") as at:
        unload = {"model": "chat", "keep_alive": 0}
        assert (await at.site.post(path, unload)).json()["done_reason"] == "unload"
        assert at.loader.num_loads == {}, "an unloaded model is not loaded to be unloaded"
        assert (await at.site.post(path, {"model": "chat"})).json()["done_reason"] == "load"
        assert at.loaded == {"chat"}
        assert (await at.site.post(path, unload)).json()["done_reason"] == "unload"
        await until(lambda: not at.loaded)
        assert (await at.site.post(path, {"model": "none", "keep_alive": 0})).status_code == 404


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", 0.001, "1ms"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
        ("/api/generate", {"prompt": "a", "options": {"num_predict": 2}}),
        ("/api/embed", {"input": "a"}),
        ("/api/embeddings", {"prompt": "a"}),
    ],
)
async def test_a_model_is_unloaded_when_it_was_unused_for_keep_alive(
    path: str, body: dict[str, Any], keep_alive: Any, tmp_path: Path
) -> None:
    async with several(tmp_path, "chat", "embed") as at:
        assert (await at.site.post(path, {**body, "keep_alive": keep_alive})).status_code == 200
        await until(lambda: not at.loaded)


async def test_a_later_keep_alive_replaces_the_earlier_and_unloading_ends_it(tmp_path: Path) -> None:
    async with several(tmp_path, "chat", "embed") as at:

        async def expiry(keep_alive: Any) -> str:
            await at.site.post("/api/generate", {"model": "chat", "keep_alive": keep_alive})
            text: str = (await at.site.http.get("/api/ps")).json()["models"][0]["expires_at"]
            return text

        expected = datetime.now(UTC) + timedelta(minutes=90)
        assert abs(datetime.fromisoformat(await expiry("1h30m")) - expected) < timedelta(seconds=20)
        assert await expiry(-1) == "9999-12-31T23:59:59Z"
        assert await expiry("-5m") == "9999-12-31T23:59:59Z"
        assert await expiry("5m") < await expiry("10m")
        await expiry(0.05)
        end = asyncio.get_running_loop().time() + 0.1
        await at.site.post("/models/unload", {"model": "chat"})
        await at.site.post("/models/load", {"model": "chat"})
        assert (await at.site.http.get("/api/ps")).json()["models"][0]["expires_at"].startswith("9999")
        await until(lambda: asyncio.get_running_loop().time() > end)
        assert at.loaded == {"chat"}


@pytest.mark.parametrize("value", ["soon", "5 m", "m", "1e3", "", [1], {}, "9" * 50])
async def test_a_keep_alive_that_is_no_duration_is_refused(value: Any, tmp_path: Path) -> None:
    async with several(tmp_path, "chat", "embed") as at:
        answer = await at.site.post("/api/generate", {"model": "chat", "prompt": "a", "keep_alive": value})
        assert answer.status_code == 400, answer.text
        assert "keep_alive" in error_of(answer)["message"]
        assert at.loader.num_loads == {}


@pytest.mark.parametrize("value", ["NaN", "1e999", "-1e999", "-Infinity"])
async def test_a_keep_alive_that_is_no_finite_number_harms_nothing(value: str, tmp_path: Path) -> None:
    async with several(tmp_path, "chat", "embed") as at:
        body = f'{{"model": "chat", "keep_alive": {value}}}'
        answer = await at.site.http.post("/api/generate", content=body)
        assert answer.status_code in (200, 400)
        assert (await at.site.post("/api/generate", {"model": "chat"})).status_code == 200
        assert (await at.site.http.get("/api/ps")).status_code == 200


async def test_a_pull_names_the_command(tmp_path: Path) -> None:
    async with several(tmp_path, "chat") as at:
        answer = await at.site.post("/api/pull", {"model": "smollm2"})
    assert (answer.status_code, "`lightwell pull MODEL`" in error_of(answer)["message"]) == (501, True)


async def test_the_ollama_package_uses_two_models(tmp_path: Path) -> None:
    async with (
        several(tmp_path, "chat-1", "chat-2", api_key=("key",)) as at,
        listening(at.site) as url,
        ollama.AsyncClient(url, headers={"Authorization": "Bearer key"}) as api,
    ):
        assert [each.model for each in (await api.list()).models] == ["chat-1:latest", "chat-2:latest"]
        for name in ("chat-1", "chat-2:latest"):
            answer = await api.chat(name, [{"role": "user", "content": "a"}], options={"num_predict": 2})
            assert (answer.model, answer.message.content) == (name, "hi")
        assert {each.model for each in (await api.ps()).models} == {"chat-1:latest", "chat-2:latest"}
        assert (await api.show("chat-2")).template
        await api.generate("chat-1", keep_alive=0)
        await until(lambda: at.loaded == {"chat-2"})


async def test_the_openai_package_uses_two_models(tmp_path: Path) -> None:
    async with (
        several(tmp_path, "chat", "org/embed", api_key=("key",)) as at,
        listening(at.site) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as api,
    ):
        assert [model.id async for model in api.models.list()] == ["chat", "org/embed"]
        assert (await api.models.retrieve("org/embed")).id == "org/embed"
        messages: Any = [{"role": "user", "content": "a"}]
        answer = await api.chat.completions.create(model="chat", messages=messages, max_tokens=2)
        vectors = await api.embeddings.create(model="org/embed", input=["a", "b"])
        assert (answer.choices[0].message.content, answer.model, len(vectors.data)) == ("hi", "chat", 2)
        with pytest.raises(openai.NotFoundError, match="'gpt' does not exist here; 'chat', 'org/embed' are served"):
            await api.chat.completions.create(model="gpt", messages=messages)
