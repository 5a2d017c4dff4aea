"""Models, health, metrics and pages, and keys: their limits, their cached prefixes, and the operator's routes."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.config.auth.keys import hash_of
from lightwell.server.engine.messages.outputs import EngineStats
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, error_of, site
from tests.tiny import make_variant

BODY = {"prompt": "hi", "max_tokens": 2}


def write_keys(folder: Path, **more: str) -> Path:
    """Write a file with a key for each name, which is the key too."""
    file = folder / "keys.toml"
    file.write_text("".join(f'[{name}]\nhash = "{hash_of(name)}"\n{text}\n' for name, text in more.items()))
    return file


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def complete(at: Site, key: str) -> int:
    return (await at.post("/v1/completions", BODY, headers=bearer(key))).status_code


async def test_the_file_decides_who_comes_in(tmp_path: Path) -> None:
    file = write_keys(tmp_path, alice="", old="expires = 2020-01-01")
    async with site(tmp_path, api_key_file=file) as at:
        assert [await complete(at, key) for key in ("alice", "bob")] == [200, 401]
        expired = await at.post("/v1/completions", BODY, headers=bearer("old"))
    assert (expired.status_code, error_of(expired)["code"]) == (401, "expired_api_key")


@pytest.mark.parametrize("key", ["voilà", "Åland", "你"])
async def test_a_key_may_have_any_letters(key: str, tmp_path: Path) -> None:
    """In UTF-8 the first or the last byte of each key is white space in Latin-1."""
    headers = {b"authorization": b"Bearer  " + key.encode() + b" "}
    async with site(tmp_path, api_key=(key,)) as at:
        assert (await at.http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        wrong = {b"authorization": b"Bearer " + key.encode()[:-1]}
        assert (await at.http.post("/v1/completions", json=BODY, headers=wrong)).status_code == 401


async def test_one_keys_requests_in_flight_leave_the_others_alone(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(gate=gate)
    file = write_keys(tmp_path, alice="max_requests = 1", bob="")
    async with site(tmp_path, engine, api_key_file=file) as at:
        running = asyncio.create_task(complete(at, "alice"))
        while not engine.submitted:
            await asyncio.sleep(0.001)
        refused = await at.post("/v1/completions", BODY, headers=bearer("alice"))
        other = asyncio.create_task(complete(at, "bob"))
        while len(engine.submitted) < 2:
            await asyncio.sleep(0.001)
        assert await at.metric('lightwell_key_requests_in_flight{key="alice"}') == 1
        gate.set()
        assert [await running, await other, await complete(at, "alice")] == [200, 200, 200]
        assert await at.metric('lightwell_key_refusals_total{key="alice",limit="max_requests"}') == 1
        assert await at.metric('lightwell_key_requests_total{key="alice"}') == 2
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert error_of(refused)["code"] == "key_requests_exceeded"


async def test_a_key_in_flight_is_counted_out_whatever_becomes_of_its_request(tmp_path: Path) -> None:
    async with site(tmp_path, api_key_file=write_keys(tmp_path, alice="max_requests = 1")) as at:
        headers = bearer("alice")
        for _ in range(3):
            assert (await at.post("/v1/completions", {"prompt": 1.5}, headers=headers)).status_code == 400
            assert (await at.http.post("/v1/completions", content=b"{", headers=headers)).status_code == 400
            text = {**headers, "content-type": "text/plain"}
            assert (await at.http.post("/v1/completions", content=b"{}", headers=text)).status_code == 415
            assert (await at.http.get("/v1/models/none", headers=headers)).status_code == 404
            streamed = await at.post("/v1/completions", {**BODY, "stream": True}, headers=headers)
            assert streamed.text.endswith("data: [DONE]\n\n")
        assert await at.metric('lightwell_key_requests_in_flight{key="alice"}') == 0


async def test_admin_routes_do_not_exist_without_an_admin_key(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        assert (await at.http.get("/admin/keys")).status_code == 404
    async with site(tmp_path, api_key=["one"]) as at:
        for headers in ({}, bearer("one")):
            unknown = await at.http.get("/admin/keys", headers=headers)
            assert (unknown.status_code, error_of(unknown)["code"]) == (404, "route_not_found")


async def test_admin_routes_want_an_admin_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = write_keys(tmp_path, alice="max_requests = 3", root="admin = true")
    async with site(tmp_path, api_key_file=file) as at:
        assert (await at.http.get("/admin/keys")).status_code == 401
        normal = await at.http.get("/admin/keys", headers=bearer("alice"))
        assert (normal.status_code, error_of(normal)["code"]) == (403, "admin_key_needed")
        assert "key=alice" in caplog.text  # who tried
        assert await complete(at, "root") == 200
        answer = await at.http.get("/admin/keys", headers=bearer("root"))
    alice, root = answer.json()["data"]
    assert (alice["name"], alice["max_requests"], alice["admin"]) == ("alice", 3, False)
    assert (root["requests_total"], root["requests_in_flight"]) == (2, 1)
    assert hash_of("alice") not in answer.text


async def test_keys_are_rotated_by_reading_the_file_again(tmp_path: Path) -> None:
    file = write_keys(tmp_path, alice="", root="admin = true")
    async with site(tmp_path, api_key_file=file) as at:
        write_keys(tmp_path, bob="", root="admin = true")
        reloaded = await at.http.post("/admin/keys/reload", headers=bearer("root"))
        assert [entry["name"] for entry in reloaded.json()["data"]] == ["bob", "root"]
        assert [await complete(at, key) for key in ("alice", "bob")] == [401, 200]
        file.write_text("broken")
        broken = await at.http.post("/admin/keys/reload", headers=bearer("root"))
        assert (broken.status_code, error_of(broken)["code"]) == (409, "key_file_invalid")
        assert await complete(at, "bob") == 200
        assert await at.metric("lightwell_key_file_errors_total") == 1


OPEN = (
    "/health/live", "/health/ready", "/health", "/metrics", "/version", "/api/version", "/", "/docs", "/openapi.json",
)  # fmt: skip
KEYS = ("first-key", "zweiter-schlüssel")


async def test_the_model_is_listed_with_its_root_and_limit(plain: Site) -> None:
    (card,) = (await plain.http.get("/v1/models")).json()["data"]
    assert (await plain.http.get("/v1/models/org/tiny")).json() == card
    unknown = await plain.http.get("/v1/models/gpt-4")
    assert (card["id"], card["object"], card["root"], card["max_model_len"]) == (
        "org/tiny", "model", "/models/tiny", 64
    )  # fmt: skip
    assert {"created", "owned_by"} <= set(card)
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")


async def test_ready_is_told_with_its_reason(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with site(tmp_path, engine) as at:
        ready = {"ready": True, "reason": "ready", "models": {"org/tiny": "loaded"}}
        assert (await at.http.get("/health/ready")).json() == ready
        engine.is_ready = False
        for path in ("/health", "/health/ready"):
            answer = await at.http.get(path)
            told = answer.json()
            assert (answer.status_code, told["ready"], told["reason"]) == (503, False, "worker 0 is starting")
            assert told["models"] == {"org/tiny": "loading"}
            assert answer.headers["retry-after"]
        assert (await at.http.get("/health/live")).status_code == 200
        engine.live = False
        assert (await at.http.get("/health/live")).status_code == 503


async def test_metrics_are_prometheus_text_with_the_engines_numbers(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(counters=EngineStats(prompt_tokens_total=12))) as at:
        answer = await at.http.get("/metrics")
        assert await at.metric("lightwell_prompt_tokens_total") == 12
    assert answer.headers["content-type"].startswith("text/plain; version=")


async def test_requests_are_counted_by_template_method_and_status(plain: Site) -> None:
    await plain.http.get("/v1/models/org/tiny")
    await plain.post("/v1/completions", {})
    name = 'lightwell_http_requests_total{method="%s",route="%s",status="%d"}'
    assert await plain.metric(name % ("GET", "/v1/models/{model_id:path}", 200)) == 1
    assert await plain.metric(name % ("POST", "/v1/completions", 400)) == 1


async def test_open_routes_answer_get_and_head_without_a_key(tmp_path: Path) -> None:
    async with site(tmp_path, api_key=KEYS) as at:
        for path in OPEN:
            assert (await at.http.get(path)).status_code == 200, path
            assert (await at.http.head(path)).status_code == 200, path
        assert (await at.http.head("/v1/models")).status_code == 401
        assert (await at.http.head("/v1/models", headers={"Authorization": "Bearer first-key"})).status_code == 200
        assert (await at.http.head("/v1/completions")).status_code == 405
        name = 'lightwell_http_requests_total{method="HEAD",route="/health/live",status="200"}'
        assert await at.metric(name) == 1


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "Basic first-key", "first-key", "Bearer first-ke"])
async def test_without_a_valid_key_the_api_answers_401_before_reading_the_body(
    header: str | None, tmp_path: Path
) -> None:
    async with site(tmp_path, api_key=KEYS) as at:
        headers = {} if header is None else {"authorization": header}
        answer = await at.http.post("/v1/completions", content=b"no json", headers=headers)
        models = await at.http.get("/v1/models", headers=headers)
    assert (answer.status_code, models.status_code) == (401, 401)
    assert error_of(answer)["code"] == "invalid_api_key"


async def test_the_api_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with site(tmp_path, root_path="/behind/proxy") as at:
        page = (await at.http.get("/docs")).text
        assert "http" not in page.replace('lang="en"', "")
        links = re.findall(r'(?:src|href|url: )=?"([^"]+)"', page)
        assert links
        assert all(link.startswith("/behind/proxy/") for link in links)
        for link in links:
            answer = await at.http.get(link.removeprefix("/behind/proxy"))
            assert answer.status_code == 200, link
        assert (await at.http.get("/docs/../settings.py")).status_code == 404
        assert (await at.http.get("/docs/nothing.js")).status_code == 404


async def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with site(tmp_path, root_path="/behind/proxy") as at:
        answer = await at.http.get("/")
        assert "script-src 'self';" in answer.headers["content-security-policy"]
        links = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
        assert links
        assert all(link.startswith("/behind/proxy/web/") for link in links)
        for link in links:
            part = link.removeprefix("/behind/proxy")
            plain = await at.http.get(part, headers=[(b"accept-encoding", b"identity")])
            assert plain.status_code == 200, link
            assert plain.text == (await at.http.get(part, headers=[(b"accept-encoding", b"gzip")])).text
        version = links[0].split("/")[4]
        for name in ("nothing.js", "../docs/start.js", "%2e%2e/docs/start.js", ""):
            assert (await at.http.get(f"/web/{version}/{name}")).status_code == 404
        assert "reload the page" in error_of(await at.http.get("/web/0123456789ab/app.js"))["message"]


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
