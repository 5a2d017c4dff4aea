"""Assembly of one server: model files, application, processes. It imports no torch.

It reads config, tokenizer and chat template before a worker gets its job: a folder that cannot be served ends the start
with one line.
"""

import asyncio
import ipaddress
import logging
import os
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.tokenization.chat_template import ChatTemplateError
from lightwell.server.batches.runner import BatchRunner
from lightwell.server.config.auth.keys import KeyFileError, Keyring
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.config.size_checks import check_sizes
from lightwell.server.generation.model_list import ModelList
from lightwell.server.http.error_handlers import install_error_handlers
from lightwell.server.http.forwarding import Forwarding
from lightwell.server.http.security_headers import BrowserHeaders
from lightwell.server.lifecycle import processes
from lightwell.server.lifecycle.api_processes import ApiProcesses, num_api_processes
from lightwell.server.lifecycle.greeting import greet
from lightwell.server.lifecycle.model_host import ServerGaveUp
from lightwell.server.lifecycle.server_models import ServerModels
from lightwell.server.observability.access_log import RequestLog
from lightwell.server.observability.logs import configure_logging
from lightwell.server.observability.metrics import Metrics, of_keys
from lightwell.server.observability.otel import Tracing, is_wanted
from lightwell.server.observability.version import lightwell_version
from lightwell.server.worker.engine_worker import ENGINE_FACTORY

logger = logging.getLogger(__name__)

_DESCRIPTION = (
    "Generation, attention patterns and embeddings from one running transformer. OpenAI-compatible where OpenAI has a "
    "route; fields beyond it are additive."
)


class ServeError(RuntimeError):
    """The server cannot start or continue; the message is one line for the operator."""


def create_app(
    settings: Settings,
    keys: Keyring,
    models: ModelList,
    lifespan: processes.Lifespan,
    metrics: Metrics,
    tracing: Tracing | None = None,
    batches: BatchRunner | None = None,
    main_socket: str | None = None,
) -> ASGIApp:
    """Make the application with every route, in plain ASGI wrappers, so that `receive` is the server's own.

    main_socket: in an API process, the socket of the main process, which answers the requests that do not run a model.
    """
    # Imported here: building the routes takes half a second, while the workers are starting.
    from lightwell.server.dialects import build_routes
    from lightwell.server.generation.context import AppContext

    metrics.watch(lambda: of_keys(keys))
    app = FastAPI(
        title="Lightwell",
        version=lightwell_version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,  # FastAPI's pages load their scripts from the network; /docs is a route of ours
        redoc_url=None,
    )
    context = AppContext(settings=settings, keys=keys, metrics=metrics, models=models, batches=batches)
    install_error_handlers(app)
    _add_openapi(app)
    app.router.routes += build_routes(context)
    if batches is not None:
        batches.app = RequestLog(app, is_background=True)
    on_end = [metrics.observe_exchange] if tracing is None else [metrics.observe_exchange, tracing.record]
    logged = RequestLog(BrowserHeaders(app, settings.cors_origin), *on_end)
    if main_socket is None:
        return logged
    local = {
        (method, route.path)
        for route in app.router.routes
        if isinstance(route, APIRoute)
        for method in getattr(route, "runs_model", ())
    }
    return Forwarding(logged, local, main_socket)


def _add_openapi(app: FastAPI) -> None:
    """Add GET /openapi.json. A thread makes the document on the first request, which takes most of a second."""

    async def openapi(request: Request) -> Response:
        root = request.scope.get("root_path", "").rstrip("/")
        return JSONResponse(await asyncio.to_thread(app.openapi) | ({"servers": [{"url": root}]} if root else {}))

    app.add_route("/openapi.json", openapi, include_in_schema=False)


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(settings: Settings, *, engine_factory: str = ENGINE_FACTORY) -> None:
    """Serve until a signal. Raises ServeError, with the reason in one line."""
    configure_logging(settings.log_level, settings.log_format)
    tracing: Tracing | None = None
    try:
        check_sizes(settings)
        keys = Keyring(settings.api_key, None if settings.api_key_file is None else Path(settings.api_key_file))
        if keys.is_open and not is_loopback(settings.host):
            warning = "every client of %.99s may use this server: it has no API key (--api-key-file or --api-key)"
            logger.warning(warning, settings.host)
        models = ServerModels(settings, engine_factory)
        if is_wanted(settings.otlp_endpoint, os.environ):
            tracing = Tracing(settings.otlp_endpoint)

        def make(address: str) -> processes.LightwellServer:
            def build_app(lifespan: processes.Lifespan) -> ASGIApp:
                running = partial(greet, lifespan, models.greetings(address))
                batches = BatchRunner.of(settings, sum(len(host.client.workers) for host in models.hosts))
                if batches is not None:
                    running = partial(batches.around, running)
                return create_app(settings, keys, models.list, running, models.metrics, tracing, batches)

            models.make_hosts()
            server = processes.LightwellServer(settings, models.hosts, build_app, models.metrics.observe_connection_end)
            models.on_end = server.give_up
            if (count := num_api_processes(settings)) > 1:
                server.front = ApiProcesses(settings, count, models.list.loaded, keys, models.metrics, server.give_up)
            return server

        processes.run(settings, models.hosts, make, models.names or "no model yet")
    except (KeyFileError, ModelLoadError, ChatTemplateError, SettingsError, ServerGaveUp) as error:
        raise ServeError(str(error)) from error
    finally:
        if tracing is not None:
            tracing.shut_down()
