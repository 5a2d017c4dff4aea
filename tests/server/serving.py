"""An application around the fake engine and a byte-level tokenizer made in code: tests send it HTTP in process.

Most tests make an application of their own. Validators and the page's files are therefore made once per process, and
FastAPI analyses a route when a test uses it (`quick_routes`).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from pydantic import TypeAdapter
from starlette.routing import BaseRoute, compile_path

from lightwell.model.checkpoint.generation_defaults import SamplingDefaults
from lightwell.model.config import ClassifierConfig, ModelConfig
from lightwell.model.network.cross_encoder import score_defaults
from lightwell.model.network.sentence_transformers import EmbeddingDefaults, embedding_defaults
from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.batches.runner import BatchRunner
from lightwell.server.config.auth.keys import Keyring, hash_of
from lightwell.server.config.settings import Settings
from lightwell.server.dialects import build_routes
from lightwell.server.dialects.ops.web_assets import WebAssets
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.model_list import ModelList
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.http.error_handlers import install_error_handlers
from lightwell.server.http.security_headers import BrowserHeaders
from lightwell.server.lifecycle.in_process import forget_routes
from lightwell.server.observability.access_log import RequestLog, RequestRecord
from lightwell.server.observability.metrics import Metrics, of_engine, of_keys
from tests.server.fake_client import HIDDEN_SIZE, INFO, NUM_HEADS, NUM_LAYERS, FakeEngine

END_OF_TEXT = 256
VOCAB_SIZE = 257
START = 1
"""Token id that the decoder of the encoder-decoder begins with."""
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
)


def byte_alphabet() -> list[str]:
    """Return GPT-2's character of each byte, so that token id = byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]


def write_tokenizer(folder: Path, special: Sequence[str] = ("<|end|>",)) -> None:
    """Write a byte-level tokenizer: token id = byte, and 256 ends the text; it is the first of the special tokens."""
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    ids = {token: END_OF_TEXT + number for number, token in enumerate(special)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, "special": True, **flags} for token in special],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab | ids, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def tiny_config() -> ModelConfig:
    """Return the config of the fake network."""
    return ModelConfig(
        architecture="GPT2LMHeadModel",
        family="gpt2",
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        num_layers=NUM_LAYERS,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_HEADS,
        head_dim=2,
        intermediate_size=16,
        max_model_len=INFO.max_model_len,
        norm="layernorm",
        norm_eps=1e-5,
        activation="gelu",
        gated_mlp=False,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        rope=None,
        learned_positions=True,
        tie_word_embeddings=True,
        attention_scale=1.0,
    )


def tiny_encoder() -> ModelConfig:
    """Return the config of a BERT-like variant of the fake network."""
    return replace(
        tiny_config(),
        architecture="BertModel",
        kind="encoder",
        norm_placement="post",
        final_norm=False,
        has_head=False,
        causal=False,
        num_token_types=2,
        embedding_norm=True,
    )


def tiny_classifier(*labels: str) -> ModelConfig:
    """Return the config of a variant of the fake network that labels its input."""
    head = ClassifierConfig(labels=labels or ("LABEL_0",), state="last")
    return replace(tiny_config(), architecture="GPT2ForSequenceClassification", has_head=False, classifier=head)


def tiny_masked_lm() -> ModelConfig:
    """Return the config of a variant of that encoder that fills in words."""
    return replace(tiny_encoder(), architecture="BertForMaskedLM", has_head=True, head_transform="gelu")


def tiny_encoder_decoder() -> ModelConfig:
    """Return the config of a BART-like variant; its encoder and decoder differ in the numbers of layers and heads."""
    encoder = replace(tiny_encoder(), num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4, max_model_len=40)
    return replace(
        tiny_config(),
        architecture="BartForConditionalGeneration",
        kind="encoder-decoder",
        norm_placement="post",
        final_norm=False,
        cross_attention=True,
        encoder=encoder,
        decoder_start_token_id=START,
    )


@dataclass
class Site:
    """A running application, its engine and its context."""

    app: Any
    engine: FakeEngine
    context: AppContext
    http: httpx.AsyncClient

    @property
    def model(self) -> ServedModel:
        return self.context.models.loaded[0]

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **options)

    async def error(self, path: str, body: Any, status: int) -> dict[str, Any]:
        """Return the error object of an answer that must have this status, after checking the one shape."""
        answer = await self.post(path, body)
        assert answer.status_code == status, answer.text
        return error_of(answer)

    async def metric(self, name: str) -> float:
        """Return the value of one line of /metrics, by its name and labels."""
        text = (await self.http.get("/metrics")).text
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return next((float(value) for label, _, value in lines if label == name), 0.0)


HUGGING_FACE = (
    "/",
    "/predict",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/similarity",
    "/info",
    "/generate",
    "/generate_stream",
)
"""Paths of the routes of Text Embeddings Inference and Text Generation Inference."""


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """Check that the error object has the shape that the path's API uses, and return it."""
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    if answer.request.url.path.startswith("/v1/messages"):
        assert (told.pop("type"), told.pop("request_id")) == ("error", answer.headers["request-id"])
    if answer.request.url.path in HUGGING_FACE:  # two texts
        assert set(told) == {"error", "error_type"}
        return {"message": told["error"], "type": told["error_type"]}
    if answer.request.url.path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        assert told.pop("message") == told["error"]["message"]
    if answer.request.url.path.startswith("/v1/systemone"):
        assert told.pop("detail") == told["error"]["message"]
    assert set(told) == {"error"}
    error = told["error"]
    if answer.request.url.path.startswith("/api/"):  # Ollama's are a text
        assert isinstance(error, str)
        return {"message": error}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    return dict(error)


_model_field = cache(create_model_field)
_compiled = cache(compile_path)
_adapters: dict[Any, TypeAdapter[Any]] = {}
_UNUSED = "_unused"
"""Attribute of a route with the function that lets FastAPI analyse it."""


def _adapter(annotated: Any, config: Any) -> TypeAdapter[Any]:
    """Return the validator of an `Annotated` type, made at the first call with an equal one."""
    key = annotated.__origin__, repr(annotated.__metadata__), repr(config)
    if key not in _adapters:
        _adapters[key] = TypeAdapter(annotated, config=config)
    return _adapters[key]


_assets = cache(WebAssets)
_analyse = APIRoute.__init__


def _postpone(route: APIRoute, path: str, *, methods: Sequence[str], **options: Any) -> None:
    """Set the fields of a route that requests are matched with; `_use` sets the others."""
    route.path_regex, _, route.param_convertors = _compiled(path)
    route.endpoint, route.methods = options["endpoint"], set(methods)
    vars(route)[_UNUSED] = partial(_analyse, route, path, methods=methods, **options)


def _use(route: APIRoute, name: str) -> Any:
    """Return an attribute that the route lacks until FastAPI has analysed it."""
    if _UNUSED not in vars(route):
        raise AttributeError(name)
    with (
        mock.patch("fastapi.routing.create_model_field", _model_field, create=True),
        mock.patch("fastapi._compat.v2.TypeAdapter", _adapter, create=True),
    ):
        vars(route).pop(_UNUSED)()
    return getattr(route, name)


APIRoute.__getattr__ = _use  # type: ignore[attr-defined]  # other routes have all attributes


def quick_routes(context: AppContext) -> list[BaseRoute]:
    """Return the routes in a small part of FastAPI's time: it analyses only the used routes.

    It replaces private names of FastAPI (checked with 0.165.0). With a version that lacks them, it takes longer.
    """
    with (
        mock.patch.object(APIRoute, "__init__", _postpone),
        mock.patch("lightwell.server.dialects.ops.page.WebAssets", _assets),
    ):
        return build_routes(context)


def tiny_files(
    folder: Path,
    settings: Settings,
    name: str = "org/tiny",
    template: str | None = TEMPLATE,
    config: ModelConfig | None = None,
    defaults: EmbeddingDefaults | None = None,
    sampling_defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008  # nothing changes it
    max_model_len: int = INFO.max_model_len,
) -> ModelFiles:
    """Return a model without weights. A tokenizer is written to the folder, unless it has one. Without `config`, the
    tiny config is used.
    """
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder)
    config = config or replace(tiny_config(), max_model_len=max_model_len)
    tokenizer = Tokenizer.from_folder(folder)
    return ModelFiles(
        settings=settings,
        id=name,
        root=f"/models/{name.rpartition('/')[2]}",
        folder=folder,
        fingerprint={},
        config=config,
        tokenizer=tokenizer,
        chat_template=None if template is None else ChatTemplate(template, tokenizer),
        embedding_defaults=defaults or embedding_defaults(folder, config),
        score_defaults=score_defaults(folder, config),
        sampling_defaults=sampling_defaults,
        max_model_len=max_model_len,
    )


def build_site(
    folder: Path,
    engine: FakeEngine,
    api_key: Sequence[str] = (),
    api_key_file: Path | None = None,
    on_end: Sequence[Callable[[RequestRecord], dict[str, str]]] = (),
    template: str | None = TEMPLATE,
    config: ModelConfig | None = None,
    defaults: EmbeddingDefaults | None = None,
    sampling_defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008  # nothing changes it
    max_model_len: int = INFO.max_model_len,
    **settings: Any,
) -> Site:
    """Build an application around `engine`, with the model of `tiny_files`."""
    options = Settings(**settings)
    files = tiny_files(
        folder,
        options,
        template=template,
        config=config,
        defaults=defaults,
        sampling_defaults=sampling_defaults,
        max_model_len=max_model_len,
    )
    engine.config = files.config
    metrics = Metrics()
    own = metrics.of_model()
    own.watch(lambda: of_engine(engine.stats(), engine.counts, engine.worker_numbers()))
    models = ModelList.of(ServedModel.of(files, engine, own))  # type: ignore[arg-type]  # it has the client's methods
    return site_of(models, engine, options, metrics, Keyring(tuple(map(hash_of, api_key)), api_key_file), on_end)


def site_of(
    models: ModelList,
    engine: FakeEngine,
    options: Settings,
    metrics: Metrics,
    keys: Keyring,
    on_end: Sequence[Callable[[RequestRecord], dict[str, str]]] = (),
) -> Site:
    """Build an application around a list of models; `engine` runs the first."""
    metrics.watch(lambda: of_keys(keys))
    batches = BatchRunner.of(options, 1)
    context = AppContext(settings=options, keys=keys, metrics=metrics, models=models, batches=batches)
    app = FastAPI(docs_url=None, redoc_url=None)
    install_error_handlers(app)
    app.router.routes += quick_routes(context)
    if batches is not None:
        batches.app = RequestLog(app, is_background=True)
    wrapped = RequestLog(BrowserHeaders(app, context.settings.cors_origin), metrics.observe_exchange, *on_end)
    transport = httpx.ASGITransport(app=wrapped, raise_app_exceptions=False)
    return Site(wrapped, engine, context, httpx.AsyncClient(transport=transport, base_url="http://lightwell"))


@asynccontextmanager
async def site(folder: Path, engine: FakeEngine | None = None, **options: Any) -> AsyncIterator[Site]:
    """Run `build_site`; at the end, close its HTTP client and free the application."""
    built = build_site(folder, engine or FakeEngine(), **options)
    batches = built.context.batches
    running = nullcontext() if batches is None else batches.around(lambda _: nullcontext(), built.app)
    try:
        async with running, built.http:
            yield built
    finally:
        forget_routes()


@asynccontextmanager
async def listening(at: Site) -> AsyncIterator[str]:
    """Serve the application with uvicorn on an ephemeral port, and return its address."""
    server = uvicorn.Server(uvicorn.Config(at.app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        await at.http.aclose()


def events_of(answer: httpx.Response) -> list[Any]:
    """Return the data of each event of a stream; [DONE] stays text."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]
