"""How long the ingress of the Ray Serve application lets a request wait, with fakes of Ray's handle and status."""

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the extra nightly)")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, on import
    from ray import serve

    from deploy.ray import ingress
    from deploy.ray.engine import Head

pytestmark = pytest.mark.nightly

PATIENCE = 60.0


class Answer:
    """The attributes of Ray's answers that the ingress uses."""

    def __init__(self, begin: asyncio.Event) -> None:
        self._begin = begin
        pieces: list[Head | bytes] = [Head(200, []), b"told"]
        self._pieces = iter(pieces)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def __aiter__(self) -> "Answer":
        return self

    async def __anext__(self) -> Head | bytes:
        await self._begin.wait()
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


class Engines:
    """The methods of Ray's handle that the ingress uses; no answer begins before `let_begin`."""

    app_name, deployment_name = "lightwell", "Engine"

    def __init__(self) -> None:
        self._begin = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.answers: list[Answer] = []

    def options(self, **_: Any) -> "Engines":
        return self

    def remote(self, scope: Any, body: bytes) -> Answer:
        self._loop = asyncio.get_running_loop()
        self.answers.append(Answer(self._begin))
        return self.answers[-1]

    def let_begin(self) -> None:
        """Let answers begin; callable from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin.set)


def ask(engines: Any, count: int) -> list[httpx.Response]:
    """Return the answers of an ingress to as many requests at once."""

    async def run() -> list[httpx.Response]:
        app = ingress.Ingress(engines, 1 << 20).__serve_build_asgi_app__()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return await asyncio.wait_for(asyncio.gather(*(http.get("/v1/models") for _ in range(count))), PATIENCE)

    return asyncio.run(run())


def status(**replica_states: int) -> Any:
    engine = SimpleNamespace(replica_states=replica_states)
    return SimpleNamespace(applications={"lightwell": SimpleNamespace(deployments={"Engine": engine})})


@pytest.mark.parametrize("told", [RuntimeError("the controller is gone"), status(STOPPING=1), status(RECOVERING=1)])
def test_requests_wait_while_a_replica_may_answer_and_share_one_look(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    engines, num_requests = Engines(), 30

    def look() -> Any:
        looks.append(told)
        if len(looks) == 3:
            engines.let_begin()
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(ingress, "_LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(serve, "status", look)
    answers = ask(engines, num_requests)
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "told")}
    assert len(looks) < num_requests


def test_requests_end_once_no_replica_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    monkeypatch.setattr(ingress, "_LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(serve, "status", lambda: status(STARTING=2, STOPPED=1))
    (answer,) = ask(engines, 1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
    assert answer.headers["retry-after"]
    assert engines.answers[0].is_cancelled
