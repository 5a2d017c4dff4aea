"""Runs the real processes around the fake engine, with a few bare routes: `python -m tests.server.fake_server
[flags]`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp

from lightwell.server.cli import build_parser, fail
from lightwell.server.config.command_line import from_arguments
from lightwell.server.config.settings import SettingsError
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.generation.model_list import ModelSlot
from lightwell.server.http.error_handlers import install_error_handlers
from lightwell.server.http.sse import DONE, EventStream
from lightwell.server.lifecycle import processes
from lightwell.server.lifecycle.drain import DrainServer
from lightwell.server.lifecycle.model_host import ModelHosts, ServerGaveUp
from lightwell.server.observability.access_log import RequestLog, current_record
from lightwell.server.observability.logs import configure_logging
from lightwell.server.observability.metrics import ModelMetrics


async def events(handle: RequestHandle) -> AsyncIterator[bytes]:
    async for output in handle:
        yield b"data: %d\n\n" % (output.token_id or 0)
    yield DONE


HELD_BYTES = 1000
"""Bytes of captures that count until the answer of /endless is sent."""


def build_app(client: EngineClient, lifespan: processes.Lifespan) -> ASGIApp:
    app = FastAPI(lifespan=lifespan)
    install_error_handlers(app)

    @app.post("/fake")
    async def generate(request: Request) -> Response:
        body = await request.json()
        task = GenerateTask(sampling=SamplingParams(max_tokens=body["max_tokens"], seed=0))
        handle = await client.submit(
            EngineRequest(prompt_token_ids=body["prompt"], task=task),
            RequestContext(current_record.get()),
        )
        if body.get("stream"):
            return EventStream(events(handle), handle.close)
        try:
            return JSONResponse({"tokens": [output.token_id async for output in handle]})
        finally:
            handle.close()

    @app.get("/endless")
    async def endless() -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield bytes(1 << 18)
                await asyncio.sleep(0)  # without this, the loop would never yield after the client has left

        client.hold_capture(HELD_BYTES, request_context=RequestContext(current_record.get()))
        return StreamingResponse(pieces())

    @app.get("/health/live")
    async def live() -> Response:
        return Response(status_code=200 if client.live else 503)

    @app.get("/health/ready")
    async def ready() -> Response:
        return Response(client.reason(), status_code=200 if client.ready() else 503)

    @app.get("/state")
    async def state() -> Response:
        return JSONResponse(
            {
                "inflight": client.num_inflight,
                "restarts": client.counts.worker_restarts,
                "integrity_failures": client.counts.integrity_failures,
                "pids": [worker.pid for worker in client.workers],
                "has_torch": "torch" in sys.modules,
                "stats": asdict(client.stats()),
            }
        )

    return RequestLog(app)


def signal_where_the_loop_begins(number: int) -> None:
    """Send a signal to this process at the moment at which its event loop begins."""
    begin = DrainServer.run

    def run(server: DrainServer, sockets: Any) -> None:
        signal.raise_signal(number)
        begin(server, sockets)

    DrainServer.run = run


def main() -> int:
    if number := os.environ.get("FAKE_SIGNAL"):
        signal_where_the_loop_begins(int(number))
    try:
        settings = from_arguments(build_parser().parse_args(["serve", *sys.argv[1:]]), os.environ)
        configure_logging(settings.log_level, settings.log_format)
        factory = "tests.server.fake_engine:FakeEngine.from_folder"
        slot = ModelSlot(settings, ["the fake"], ModelMetrics())
        hosts = ModelHosts(1, lambda slot, reason: server[0].give_up(reason), factory)
        server: list[processes.LightwellServer] = []

        def make(address: str) -> processes.LightwellServer:
            client = hosts.add(slot, settings.engine_config(Path("no-folder")), {}).client
            build = partial(build_app, client)
            server.append(processes.LightwellServer(settings, hosts, build, lambda reason: None))
            return server[0]

        processes.run(settings, hosts, make, "the fake")
    except (SettingsError, ServerGaveUp) as error:
        return fail(str(error), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
