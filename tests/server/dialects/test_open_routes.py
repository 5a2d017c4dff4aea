"""Models, health, metrics, version and pages, and the keys that they need."""

import re
from pathlib import Path

import pytest

from server.engine.outputs import EngineStats
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, error_of, site

OPEN = (
    "/health/live",
    "/health/ready",
    "/health",
    "/metrics",
    "/version",
    "/api/version",
    "/",
    "/docs",
    "/openapi.json",
)
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
        assert (await at.http.get("/health/ready")).json() == {"ready": True, "reason": "ready"}
        engine.is_ready = False
        for path in ("/health", "/health/ready"):
            answer = await at.http.get(path)
            assert (answer.status_code, answer.json()) == (503, {"ready": False, "reason": "worker 0 is starting"})
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


async def test_each_of_several_keys_opens_the_api(tmp_path: Path) -> None:
    async with site(tmp_path, api_key=KEYS) as at:
        for key in KEYS:
            headers = [(b"authorization", f"Bearer {key}".encode())]
            assert (await at.http.get("/v1/models", headers=headers)).status_code == 200


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
