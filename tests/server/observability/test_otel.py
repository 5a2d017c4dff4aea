"""Traces as a collector receives them; a missing collector does not delay or break answers."""

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lightwell.server.config.settings import SettingsError
from lightwell.server.engine.messages.outputs import Timing
from lightwell.server.http.errors import Unavailable
from lightwell.server.observability.access_log import RequestLog, current_record
from lightwell.server.observability.otel import Tracing, is_wanted
from tests.server.fake_client import FakeEngine
from tests.server.observability.collector import PARENT, Collector, collector
from tests.server.running import PATIENCE, ROOT
from tests.server.serving import site

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
BODY = {"prompt": "hello", "max_tokens": 3}


async def answer_to(
    tracing: Tracing, folder: Path, engine: FakeEngine | None = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    async with site(folder, engine or FakeEngine(), on_end=[tracing.record]) as at:
        await at.http.get("/health/live")
        return await at.post("/v1/completions", BODY, headers=headers)


async def traced(
    folder: Path, engine: FakeEngine | None = None, headers: dict[str, str] | None = None
) -> tuple[httpx.Response, Collector]:
    """Return the answer to a completion, and the receiver of its traces."""
    with collector() as receiver:
        tracing = Tracing(receiver.url, {})
        answer = await answer_to(tracing, folder, engine, headers)
        tracing.shut_down()
    return answer, receiver


async def test_a_request_is_a_span_without_its_prompt(tmp_path: Path) -> None:
    answer, receiver = await traced(tmp_path, headers={"x-request-id": "mine"})
    assert receiver.resource["service.name"] == "lightwell"
    root = receiver.root
    assert root["name"] == "POST /v1/completions"
    expected = {
        "http.response.status_code": 200,
        "gen_ai.request.id": "mine",
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "org/tiny",
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert {name: root["attributes"][name] for name in expected} == expected
    assert not root["is_error"]
    assert "hello" not in str(receiver.spans)


async def test_the_phases_of_a_request_are_spans_inside_its_own(tmp_path: Path) -> None:
    async def run(request: Request) -> Response:
        record = current_record.get()
        assert record is not None
        now = time.monotonic()
        record.note_end("stop", Timing(arrival=now, scheduled=now + 0.25, first_token=now + 0.75, finished=now + 2.75))
        return PlainTextResponse("")

    with collector() as receiver:
        tracing = Tracing(receiver.url, {})
        app = RequestLog(Starlette(routes=[Route("/v1/completions", run)]), tracing.record)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as http:
            await http.get("/v1/completions")
        tracing.shut_down()
    root = receiver.root
    children = {span["name"]: span for span in receiver.spans if span is not root}
    took = {name: round((span["end"] - span["begin"]) / 1e9, 3) for name, span in children.items()}
    assert took == {"queue": 0.25, "prefill": 0.5, "decode": 2.0}
    assert all(span["parent"] == root["id"] and span["trace"] == root["trace"] for span in children.values())
    assert abs(children["queue"]["begin"] / 1e9 - time.time()) < 60
    seconds = {name: root["attributes"][f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token")}
    assert seconds == pytest.approx({"time_in_queue": 0.25, "time_to_first_token": 0.75})


async def test_the_clients_trace_goes_on_here_if_the_client_records_it(tmp_path: Path) -> None:
    _, receiver = await traced(tmp_path, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert (receiver.root["trace"], receiver.root["parent"]) == (TRACE, PARENT)
    _, receiver = await traced(tmp_path, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert receiver.spans == []


async def test_a_failure_of_the_server_is_an_error_of_the_span(tmp_path: Path) -> None:
    _, receiver = await traced(tmp_path, FakeEngine(refuse=Unavailable("no", code="not_ready")))
    assert receiver.root["is_error"]
    assert receiver.root["attributes"]["error.type"] == "not_ready"


@pytest.mark.parametrize("answers", [False, True], ids=["nobody listens", "it never answers"])
async def test_a_dead_collector_costs_a_request_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    before = set(threading.enumerate())
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if answers:
            silent.listen()
        tracing = Tracing(f"http://127.0.0.1:{silent.getsockname()[1]}", {})
        assert (await answer_to(tracing, tmp_path)).status_code == 200
        tracing.shut_down()  # returns, although nothing was sent
    # An exporter that still tries draws random delays, which the property tests after this one would see.
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name


def test_the_variables_of_opentelemetry_turn_traces_on_and_off() -> None:
    assert not is_wanted(None, {})
    assert is_wanted("http://here:4318", {})
    assert is_wanted(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"})
    assert not is_wanted("http://here:4318", {"OTEL_SDK_DISABLED": "true"})


def test_another_protocol_is_refused_and_the_one_for_traces_goes_before_the_one_for_all_signals() -> None:
    general, own = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    Tracing("http://here:4318", {general: "grpc", own: "http/protobuf"}).shut_down()
    for environ, named in (({general: "grpc"}, general), ({general: "http/protobuf", own: "grpc"}, own)):
        with pytest.raises(SettingsError, match=f"^{named} 'grpc' is not usable; http/protobuf is accepted"):
            Tracing("http://here:4317", environ)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_missing_package_is_said_at_the_start_with_its_remedy() -> None:
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None\n"
    done = python(
        hidden + "from lightwell.server.cli import main; sys.exit(main(['serve', '--otlp-endpoint', 'http://here']))"
    )
    assert done.returncode == 1
    assert "pip install 'lightwell[otel]'" in done.stderr.splitlines()[-1]


def test_the_api_process_loads_no_torch_and_without_traces_nothing_of_opentelemetry() -> None:
    heavy = "('torch', 'opentelemetry.sdk', 'opentelemetry.exporter')"  # FastAPI brings OpenTelemetry's API
    done = python(
        f"import lightwell.server.lifecycle.app, sys; print([name for name in sys.modules if name.startswith({heavy})])"
    )
    assert done.stdout.strip() == "[]", done.stderr
