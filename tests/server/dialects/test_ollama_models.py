"""Ollama's routes about models, and its vectors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.dispatch.served_adapter import ServedAdapter
from server.engine.request import EmbedTask
from server.observability.version import lightwell_version
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, site, tiny_config


async def test_the_model_and_its_adapters_are_listed_with_a_tag(plain: Site) -> None:
    plain.context.adapters._served["tales"] = ServedAdapter("tales", 1, Path("/loras/tales"), 1795630349)
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
        ("POST", "pull"),
        ("POST", "push"),
        ("POST", "create"),
        ("POST", "copy"),
        ("DELETE", "delete"),
    ):
        answer = await plain.http.request(method, f"/api/{route}", json={"model": "llama3"})
        assert answer.status_code == 404
        assert f"There is no /api/{route}" in answer.json()["error"]
        assert "org/tiny:latest" in answer.json()["error"]


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
    assert wide["message"].startswith("dimensions: 9 is over the model's 8")


async def test_the_older_route_takes_one_prompt_and_leaves_its_length(plain: Site) -> None:
    answer = (await plain.post("/api/embeddings", {"prompt": "ab"})).json()
    ours = (await plain.post("/v1/embeddings", {"input": "ab", "normalize": False})).json()
    first, second = (each.task for each in plain.engine.submitted)
    empty = await plain.error("/api/embeddings", {"prompt": ""}, 400)
    assert answer == {"embedding": ours["data"][0]["embedding"]}
    assert first == second
    assert empty["message"].startswith("prompt: the prompt is empty")
