"""The headers for browsers on every answer, and the origins with pages that may read answers."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from lightwell.server.config.setting_names import flag_name
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.http.security_headers import SECURITY_HEADERS
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, site

ORIGIN = "https://notebook.example"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}


@pytest.fixture
async def with_cors(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with site(tmp_path, cors_origin=(ORIGIN, "http://localhost:3000")) as at:
        yield at.http


def cors_headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control")}


async def test_every_answer_carries_the_security_headers(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(), api_key=["key"]) as at:
        paths = ("/", "/docs", "/health", "/metrics", "/v1/models", "/nowhere", "/openapi.json")
        answers = [await at.http.get(path) for path in paths]
        answers.append(await at.http.post("/v1/completions", content=b"x"))
        answers.append(await at.http.request("BREW", "/v1/completions"))
    for answer in answers:
        assert SECURITY_HEADERS.keys() <= answer.headers.keys(), answer.url
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
    assert "script-src 'self'" in answers[0].headers["content-security-policy"]  # the page keeps its own policy


async def test_answers_of_the_api_are_never_stored(plain: Site) -> None:
    for stream in (False, True):
        answer = await plain.post("/v1/completions", {"prompt": "hi", "stream": stream})
        assert answer.headers["cache-control"] == "no-store"
    assert (await plain.http.get("/v1/models")).headers["cache-control"] == "no-store"


async def test_a_named_origin_may_read_answers_and_errors(with_cors: httpx.AsyncClient) -> None:
    for path, status in (("/v1/models", 200), ("/v1/nothing", 404)):
        answer = await with_cors.get(path, headers={"origin": ORIGIN})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers["vary"].lower()


async def test_a_named_origins_preflight_is_granted_with_the_headers_it_asks_for(with_cors: httpx.AsyncClient) -> None:
    answer = await with_cors.options("/v1/completions", headers={"origin": ORIGIN, **PREFLIGHT})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "https://notebook.example.evil", "http://notebook.example", "null", f"{ORIGIN}:8443", ""],
)
async def test_a_foreign_origin_gets_no_header_and_no_preflight(
    origin: str, with_cors: httpx.AsyncClient, plain: Site
) -> None:
    for http in (plain.http, with_cors):  # without named origins all are foreign
        answer = await http.get("/v1/models", headers={"origin": origin})
        preflight = await http.options("/v1/completions", headers={"origin": origin, **PREFLIGHT})
        assert (answer.status_code, cors_headers(answer)) == (200, {})
        assert (preflight.status_code, cors_headers(preflight)) == (405, {})
    assert "origin" in answer.headers["vary"].lower()  # or a cache would send the allowed origin's answer to others


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("cors_origin", ["*", "null", "notebook.example", "https://a.example/", "https://a.example/path", ""]),
        ("embed_origins", ["*", "none", "null", "https://a.example/path", "https://a.example; script-src *", ""]),
    ],
)
def test_what_is_no_origin_is_refused(setting: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(SettingsError, match=flag_name(setting)):
            Settings.from_sources({setting: [value]}, {})


def test_origins_are_read() -> None:
    origins = ["https://A.example:8443", "http://[::1]:3000"]
    settings = Settings.from_sources({"cors_origin": origins, "embed_origins": ["self", "'self'", *origins]}, {})
    assert settings.cors_origin == ("https://a.example:8443", "http://[::1]:3000")
    assert settings.embed_origins == ("'self'", "'self'", *settings.cors_origin)
    from_variable = Settings.from_sources({}, {"LIGHTWELL_EMBED_ORIGINS": "self, https://a.example"})
    assert from_variable.embed_origins == ("'self'", "https://a.example")


FRAMED = "/?embed=1"


async def test_pages_of_named_origins_may_frame_the_embedded_page_and_nothing_else(tmp_path: Path) -> None:
    async with site(tmp_path, embed_origins=("'self'", ORIGIN)) as at:
        embedded = (await at.http.get(FRAMED)).headers["content-security-policy"]
        others = [await at.http.get(path) for path in ("/", "/?embed=0", "/docs", "/v1/models", "/web/saved/lens.html")]
    assert embedded.endswith(f"; frame-ancestors 'self' {ORIGIN}")
    assert "script-src 'self'" in embedded
    for answer in others:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], answer.url


async def test_without_a_named_origin_no_page_frames_the_embedded_page(plain: Site) -> None:
    assert "frame-ancestors 'none'" in (await plain.http.get(FRAMED)).headers["content-security-policy"]
