"""A client that disconnects frees its place in the engine at any stage of its request. The tests use bare ASGI."""

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import Request
from starlette.types import Message

from lightwell.model.config import ModelConfig
from lightwell.server.dialects.inspect import contributions, inspection, next_token, trajectory
from lightwell.server.http.sse import ClientGone
from lightwell.server.http.tensor_formats import Format
from tests.server.dialects.looks import engine_of
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, build_site, tiny_classifier

COMPLETION = ("/v1/completions", {"prompt": "ab", "max_tokens": 4})
CHAT = {"messages": [{"role": "user", "content": "U"}]}
WRITING: dict[str, tuple[str, dict[str, Any], int]] = {
    "several choices": ("/v1/completions", {"prompt": "ab", "max_tokens": 4, "n": 3}, 3),
    "a chat": ("/v1/chat/completions", CHAT, 1),
    "a response": ("/v1/responses", {"input": "x"}, 1),
    "a message": ("/v1/messages", {**CHAT, "max_tokens": 4}, 1),
    "a chat of Ollama": ("/api/chat", CHAT, 1),
    "a text of Ollama": ("/api/generate", {"prompt": "U"}, 1),
    "a raw text of Ollama": ("/api/generate", {"prompt": "U", "raw": True}, 1),
}
"""A route that writes text, a body, and the number of its choices."""


class Visitor:
    """One HTTP request; its client can disconnect at any time."""

    def __init__(self, at: Site, path: str, body: dict[str, Any], spec_version: str = "2.3") -> None:
        self.at = at
        self.sent: list[Any] = []
        self.has_left = asyncio.Event()
        self.leave_when: Callable[[Any], bool] = lambda message: False
        self._body: bytes | None = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json")]
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
        }

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.has_left.is_set() and self._scope["asgi"]["spec_version"] == "2.4":
            raise OSError("the client left")
        self.sent.append(message)
        if self.leave_when(message):
            self.has_left.set()

    async def visit(self) -> None:
        async with asyncio.timeout(60):
            await self.at.app(self._scope, self.receive, self.send)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def is_everything_freed(engine: FakeEngine) -> bool:
    return bool(engine.submitted) and all(each.handle.is_closed for each in engine.submitted)


async def aborts(at: Site) -> float:
    return await at.metric('lightwell_request_success_total{finish_reason="abort"}')


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("path", "body", "choices"), WRITING.values(), ids=WRITING)
async def test_leaving_before_the_first_token_frees_every_choice(
    path: str, body: dict[str, Any], choices: int, streams: bool, tmp_path: Path
) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    at = build_site(tmp_path, engine)
    visitor = Visitor(at, path, {**body, "stream": streams})
    visit = asyncio.create_task(visitor.visit())
    await until(lambda: len(engine.submitted) == choices)
    visitor.has_left.set()
    await visit
    assert is_everything_freed(engine)
    assert all(each.handle.was_aborted for each in engine.submitted)
    assert await aborts(at) == choices


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_leaving_between_two_tokens_frees_every_choice(spec_version: str, tmp_path: Path) -> None:
    gate = asyncio.Event()
    gate.set()
    engine = FakeEngine(gate=gate)
    at = build_site(tmp_path, engine)
    path, body = COMPLETION
    visitor = Visitor(at, path, {**body, "n": 2, "max_tokens": 50, "stream": True}, spec_version)

    def leave_at_the_first_token(message: Any) -> bool:
        is_token = bool(message.get("body", b"").startswith(b"data: "))
        if is_token and spec_version == "2.3":  # such servers drop data without a client
            gate.clear()
        return is_token

    visitor.leave_when = leave_at_the_first_token
    try:
        await visitor.visit()
    except Exception as error:
        assert type(error).__name__ == "ClientDisconnect"  # noqa: PT017  (how newer servers are told)
    assert is_everything_freed(engine)
    assert any(each.handle.was_aborted for each in engine.submitted)


async def test_leaving_while_no_token_flows_frees_the_stream(tmp_path: Path) -> None:
    gate = asyncio.Event()
    gate.set()
    engine = FakeEngine(gate=gate)
    at = build_site(tmp_path, engine)
    path, body = COMPLETION
    visitor = Visitor(at, path, {**body, "stream": True})

    def close_gate(message: Any) -> bool:
        gate.clear()
        return False

    visitor.leave_when = close_gate
    visit = asyncio.create_task(visitor.visit())
    await until(lambda: len(visitor.sent) > 1)
    visitor.has_left.set()
    await visit
    assert is_everything_freed(engine)
    assert engine.submitted[0].handle.was_aborted


async def test_a_stream_whose_generator_never_ran_is_freed(tmp_path: Path) -> None:
    engine = FakeEngine()
    at = build_site(tmp_path, engine)
    path, body = COMPLETION
    visitor = Visitor(at, path, {**body, "stream": True})

    async def broken_send(message: Any) -> None:
        raise OSError("the connection was reset before the first byte")

    visitor.send = broken_send
    with pytest.raises(BaseException):  # noqa: B017, PT011  (what the server makes of it is not ours)
        await visitor.visit()
    assert is_everything_freed(engine)
    assert engine.submitted[0].handle.was_aborted


async def test_a_stop_string_frees_the_place_before_a_slow_client_has_taken_what_it_ends(tmp_path: Path) -> None:
    engine = FakeEngine()
    visitor = Visitor(build_site(tmp_path, engine), COMPLETION[0], {**COMPLETION[1], "stop": "i", "stream": True})
    may_take = asyncio.Event()

    async def slow_send(message: Any) -> None:
        if b'"finish_reason":"stop"' in message.get("body", b""):
            await may_take.wait()

    visitor.send = slow_send
    visit = asyncio.create_task(visitor.visit())
    await until(lambda: is_everything_freed(engine))
    assert engine.submitted[0].handle.was_aborted
    may_take.set()
    await visit


@pytest.mark.parametrize(
    ("path", "body", "config"),
    [
        ("/v1/attention", {"input": ["ab"] * 9}, None),
        ("/v1/rerank", {"query": "q", "documents": ["ab"] * 9}, tiny_classifier()),
    ],
)
async def test_leaving_frees_captures_and_ends_the_rest(
    path: str, body: dict[str, Any], config: ModelConfig | None, tmp_path: Path
) -> None:
    engine = FakeEngine(gate=asyncio.Event())
    at = build_site(tmp_path, engine, config=config, max_num_seqs=2)
    visitor = Visitor(at, path, body)
    visit = asyncio.create_task(visitor.visit())
    await until(lambda: bool(engine.submitted))
    visitor.has_left.set()
    await visit
    assert is_everything_freed(engine)
    assert len(engine.submitted) < 9
    assert await aborts(at) == len(engine.submitted)


CAN_TAKE_SECONDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "/v1/next": (next_token, "distribution", {"temperatures": [1.0] * 8}),
    "/v1/contributions": (contributions, "value_norms", {"query_positions": "all"}),
    "/v1/trajectory": (trajectory, "measure", {}),
}
"""Functions that compute a part of an answer, and the fields of a body with several parts."""


async def test_leaving_ends_parts_that_take_seconds_and_frees_their_threads() -> None:
    """More run than there are threads for them."""
    loop, leaves = asyncio.get_running_loop(), asyncio.Event()
    begun: list[threading.Event] = []

    async def receive() -> Message:
        await leaves.wait()
        return {"type": "http.disconnect"}

    def look() -> inspection.Inspection:
        request = Request({"type": "http"}, receive)
        return inspection.Inspection(cast("Any", None), request, cast("Any", None), Format.JSON, [])

    def endless(own: inspection.Inspection) -> None:
        has_ended = threading.Event()
        begun.append(has_ended)
        loop.call_soon_threadsafe(leaves.set)
        try:
            while True:
                own.check()
        finally:
            has_ended.set()

    looks = [look() for _ in range(40)]
    ends = asyncio.gather(*(each.compute(map(endless, [each])) for each in looks), return_exceptions=True)
    assert all(isinstance(end, ClientGone) for end in await asyncio.wait_for(ends, 60))
    leaves.clear()
    assert await asyncio.wait_for(look().compute(["a free thread"]), 60) == ["a free thread"]
    assert 0 < len(begun) < len(looks)
    for has_ended in begun:
        assert await asyncio.to_thread(has_ended.wait, 60)


@pytest.mark.parametrize("path", CAN_TAKE_SECONDS)
async def test_leaving_ends_what_is_computed_in_a_thread(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, fields = CAN_TAKE_SECONDS[path]
    function, loop, was_seen, calls = getattr(module, name), asyncio.get_running_loop(), threading.Event(), []

    def compute(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        loop.call_soon_threadsafe(visitor.has_left.set)
        assert was_seen.wait(60)
        return function(*arguments, **options)

    threads = ThreadPoolExecutor(1)
    monkeypatch.setattr(inspection, "_THREADS", threads)
    monkeypatch.setattr(module, name, compute)
    engine = engine_of()
    visitor = Visitor(
        build_site(tmp_path, engine, config=engine.model_config), path, {"input": ["abc", "de"], **fields}
    )
    await visitor.visit()
    was_seen.set()
    await asyncio.to_thread(threads.shutdown)
    assert len(calls) == 1
