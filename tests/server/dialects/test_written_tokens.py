"""Streams of tokens that are written directly to the connection, past the application, over a real socket."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from server.http.connection import HttpProtocol
from tests.server.bare_server import PATIENCE, serving
from tests.server.fake_client import FakeEngine
from tests.server.serving import events_of, site

SCRIPT = tuple("Grüße, 世界! ".encode())
COMPLETION = ("/v1/completions", {"prompt": "ab", "echo": True})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]})


async def both_ways(folder: Path, engine: FakeEngine, path: str, body: dict[str, Any]) -> list[list[Any]]:
    """Return the events of a stream over a socket, and of the same stream with all tokens sent by the application."""
    body = {"max_tokens": 24, "stream": True, "stream_options": {"include_usage": True}, **body}
    async with (
        site(folder, engine) as at,
        serving(at.app, HttpProtocol) as port,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        answers = [await client.post(f"http://127.0.0.1:{port}{path}", json=body), await at.post(path, body)]
    assert engine.submitted[1].handle.on_token is None
    ways = [events_of(answer) for answer in answers]
    for events in ways:
        for event in events[:-1]:
            del event["id"], event["created"]
    return ways


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT], ids=["completion", "chat"])
async def test_a_stream_is_the_same_whoever_writes_its_tokens(path: str, body: dict[str, Any], tmp_path: Path) -> None:
    engine = FakeEngine(script=SCRIPT)
    written, sent = await both_ways(tmp_path, engine, path, body)
    assert engine.submitted[0].handle.on_token is not None
    assert written == sent
    assert written[-2]["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize(
    "more", [{"stop": "界"}, {"logprobs": 2}, {"n": 2}, {"return_token_ids": True}, {"attention": {"layers": 0}}]
)
async def test_streams_that_bring_more_than_text_are_left_to_the_application(
    more: dict[str, Any], tmp_path: Path
) -> None:
    written, sent = await both_ways(tmp_path, FakeEngine(script=SCRIPT), COMPLETION[0], {**COMPLETION[1], **more})
    assert sorted(map(str, written)) == sorted(map(str, sent))  # the order of the choices may differ


async def test_tokens_that_are_written_count_in_the_metrics(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as at,
        serving(at.app, HttpProtocol) as port,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        body = {"prompt": "ab", "max_tokens": 9, "stream": True}
        await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        assert await at.metric("lightwell_time_to_first_token_seconds_count") == 1
        assert await at.metric("lightwell_inter_token_latency_seconds_count") == 8
