"""Requests share cached prefixes only with the same API key and the same `cache_salt`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, site
from tests.tiny import make_variant

PROMPT = list(range(3, 33))
"""Three full blocks of 8 tokens, and a part of a fourth."""
ASKED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/v1/completions": ({"prompt": PROMPT, "max_tokens": 1}, ("usage", "prompt_tokens_details", "cached_tokens")),
    "/v1/embeddings": ({"input": PROMPT, "pooling": "last"}, ("usage", "prompt_tokens_details", "cached_tokens")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant("llama-gqa", tmp_path_factory.mktemp("salts"))


def served(folder: Path, tmp_path: Path, **options: Any) -> Any:
    engine = InlineEngine(folder=folder)
    return site(tmp_path, engine, config=engine.model_config, **options)


async def cached(at: Site, path: str, *requests: tuple[str, dict[str, Any]]) -> Sequence[int]:
    """Send requests, each with a key and further fields, and return the number of cached tokens that each used."""
    body, place = ASKED[path]
    found = []
    for key, fields in requests:
        answer = await at.post(path, {**body, **fields}, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        value = answer.json()
        for name in place:
            value = value[name]
        found.append(value)
    return found


@pytest.mark.parametrize("path", ASKED)
async def test_a_key_does_not_learn_what_another_key_sent(path: str, folder: Path, tmp_path: Path) -> None:
    async with served(folder, tmp_path, api_key=("one", "two")) as at:
        assert await cached(at, path, ("one", {}), ("one", {}), ("two", {}), ("two", {})) == [0, 24, 0, 24]


async def test_keys_may_share_the_prefix_cache(folder: Path, tmp_path: Path) -> None:
    async with served(folder, tmp_path, api_key=("one", "two"), share_prefix_cache=True) as at:
        found = await cached(at, "/v1/completions", ("one", {}), ("two", {}), ("two", {"cache_salt": "s"}))
    assert found == [0, 24, 0]


@pytest.mark.parametrize("path", ASKED)
async def test_requests_with_different_salts_share_no_prefix(path: str, folder: Path, tmp_path: Path) -> None:
    salts: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {}]
    async with served(folder, tmp_path) as at:
        assert await cached(at, path, *[("", salt) for salt in salts]) == [0, 0, 0, 24, 24]
        error = await at.error(path, {**ASKED[path][0], "cache_salt": ""}, 400)
    assert error["message"].startswith("cache_salt: string should have at least 1 character")


async def test_every_dialect_salts_the_cache_of_a_key(folder: Path, tmp_path: Path) -> None:
    """Send one conversation through each dialect with one key, then with another: only the first key finds it."""
    messages = [{"role": "user", "content": "A wolf and a lamb stood at a stream."}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 1},
        "/v1/responses": {"input": messages, "max_output_tokens": 1},
        "/v1/messages": {"messages": messages, "max_tokens": 1},
        "/api/chat": {"messages": messages, "options": {"num_predict": 1}, "stream": False},
    }
    async with served(folder, tmp_path, api_key=("one", "two")) as at:
        for path, body in bodies.items():
            for key in ("one", "two"):
                answer = await at.post(path, body, headers={"authorization": f"Bearer {key}"})
                assert answer.status_code == 200, answer.text
        counts = at.engine.engine.stats()  # type: ignore[attr-defined]
        num_tokens = len(at.engine.submitted[0].prompt_token_ids)
    assert counts.prefix_cache_hits_total == 2 * (len(bodies) - 1) * (num_tokens // 8 * 8)
