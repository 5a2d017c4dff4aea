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
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from lightwell.model.checkpoint import resolve as checkpoint
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.generation_defaults import SamplingDefaults, read_sampling_defaults
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.network.cross_encoder import score_defaults
from lightwell.model.network.sentence_transformers import embedding_defaults
from lightwell.model.tokenization.chat_template import ChatTemplate, ChatTemplateError, read_template_option
from lightwell.model.tokenization.template_client import shared_client
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.config.auth.keys import KeyFileError, Keyring
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.config.size_checks import check_sizes
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.http.error_handlers import install_error_handlers
from lightwell.server.http.security_headers import BrowserHeaders
from lightwell.server.lifecycle import processes
from lightwell.server.lifecycle.greeting import Greeting
from lightwell.server.observability.access_log import RequestLog
from lightwell.server.observability.logs import configure_logging
from lightwell.server.observability.metrics import Metrics, of_adapters, of_caches, of_engine, of_keys
from lightwell.server.observability.otel import Tracing, is_wanted
from lightwell.server.observability.version import lightwell_version
from lightwell.server.worker.engine_worker import ENGINE_FACTORY
from lightwell.server.worker.model_fingerprint import fingerprint

logger = logging.getLogger(__name__)

_DESCRIPTION = (
    "Generation, attention patterns and embeddings from one running transformer. OpenAI-compatible where OpenAI has a "
    "route; fields beyond it are additive."
)


class ServeError(RuntimeError):
    """The server cannot start or continue; the message is one line for the operator."""


def load_model_files(settings: Settings) -> ModelFiles:
    """Find the model's folder and read all but the weights. Raises ValueErrors of one line."""
    folder = checkpoint.resolve(settings.model, settings.gguf_file, settings.revision)
    try:
        before = fingerprint(folder)
    except OSError as error:
        raise ModelLoadError(f"{error.filename}: cannot be read ({error.strerror})") from error
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    limit = settings.max_model_len
    if limit is not None and limit > config.max_model_len:
        raise SettingsError(f"--max-model-len {limit} is over the model's context of {config.max_model_len} tokens")
    source = tokenizer.chat_template if settings.chat_template is None else read_template_option(settings.chat_template)
    if source is None:
        shared_client().stop()
    model_id = settings.served_model_name or checkpoint.name_of(settings.model, folder)
    if any(name == model_id for name, _ in settings.lora):
        raise SettingsError(f"--lora: {model_id!r} is the model's own name; another one is accepted")
    return ModelFiles(
        settings=settings,
        id=model_id,
        root=settings.model or str(checkpoint.root_of(folder)),
        folder=folder,
        fingerprint=before,
        config=config,
        tokenizer=tokenizer,
        chat_template=None if source is None else ChatTemplate(source, tokenizer),
        embedding_defaults=embedding_defaults(folder, config),
        score_defaults=score_defaults(folder, config),
        sampling_defaults=SamplingDefaults()
        if settings.generation_config == "vllm"
        else read_sampling_defaults(folder),
        max_model_len=limit or config.max_model_len,
    )


def create_app(
    settings: Settings,
    keys: Keyring,
    files: ModelFiles,
    client: EngineClient,
    lifespan: processes.Lifespan,
    metrics: Metrics,
    tracing: Tracing | None = None,
) -> ASGIApp:
    """Make the application with every route, in plain ASGI wrappers, so that `receive` is the server's own."""
    # Imported here: building the routes takes half a second, while the workers are starting.
    from lightwell.server.dialects import build_routes
    from lightwell.server.generation.context import AppContext

    metrics.watch(lambda: of_engine(client.stats(), client.counts, client.worker_numbers()))
    metrics.watch(lambda: of_caches([worker.info for worker in client.workers if worker.info is not None]))
    metrics.watch(lambda: of_keys(keys))
    metrics.watch(lambda: of_adapters(client.adapters.num_requests()))
    client.on_step = metrics.observe_step
    app = FastAPI(
        title="Lightwell",
        version=lightwell_version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,  # FastAPI's pages load their scripts from the network; /docs is a route of ours
        redoc_url=None,
    )
    model = ServedModel.of(files, client, metrics)
    context = AppContext(settings=settings, keys=keys, metrics=metrics, model=model)
    install_error_handlers(app)
    _add_openapi(app)
    app.router.routes += build_routes(context)
    on_end = [metrics.observe_exchange] if tracing is None else [metrics.observe_exchange, tracing.record]
    return RequestLog(BrowserHeaders(app, settings.cors_origin), *on_end)


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
    metrics = Metrics(settings.metric_alias)
    tracing: Tracing | None = None
    try:
        check_sizes(settings)
        keys = Keyring(settings.api_key, None if settings.api_key_file is None else Path(settings.api_key_file))
        if keys.is_open and not is_loopback(settings.host):
            warning = "every client of %.99s may use this server: it has no API key (--api-key-file or --api-key)"
            logger.warning(warning, settings.host)
        files = load_model_files(settings)
        metrics.name_model(files.id)
        if is_wanted(settings.otlp_endpoint, os.environ):
            tracing = Tracing(settings.otlp_endpoint, files.id)
        greeting = Greeting(settings, files.config, files.id, can_chat=files.chat_template is not None)

        def build_app(client: EngineClient, lifespan: processes.Lifespan) -> ASGIApp:
            greeted = partial(greeting.around, lifespan, client.workers)
            return create_app(settings, keys, files, client, greeted, metrics, tracing)

        processes.run(
            settings,
            settings.engine_config(files.folder),
            build_app,
            on_address=lambda url: setattr(greeting, "address", url),
            name=files.id,
            model_files=files.fingerprint,
            on_connection_end=metrics.observe_connection_end,
            engine_factory=engine_factory,
        )
    except (KeyFileError, ModelLoadError, ChatTemplateError, SettingsError, processes.ServerGaveUp) as error:
        raise ServeError(str(error)) from error
    finally:
        if tracing is not None:
            tracing.shut_down()
