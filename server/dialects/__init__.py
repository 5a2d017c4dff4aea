"""HTTP routes, one folder for each API. Routes convert bodies to requests and results to answers, without computation.

The application adds the error handlers (`server.http.errors`) and the HTTP metrics (`server.observability.metrics`)
around them, and omits FastAPI's own /docs: it would load its scripts from the network, and hide ours.
"""

from importlib import import_module
from typing import Any

from fastapi import APIRouter, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.routing import BaseRoute

from lightwell.server.dialects.anthropic import messages
from lightwell.server.dialects.auth_route import OpenRoute, admin_route, guarded_route
from lightwell.server.dialects.huggingface import labels, sparse, tei, tgi
from lightwell.server.dialects.judgements import classify, decisions, rerank, score, systemone
from lightwell.server.dialects.ollama import embed as ollama_embed
from lightwell.server.dialects.ollama import models as ollama_models
from lightwell.server.dialects.ollama import text as ollama_text
from lightwell.server.dialects.openai import batches, chat, completions, embeddings, files, models, tokenize
from lightwell.server.dialects.openai_responses import route as responses
from lightwell.server.dialects.ops import adapters, admin, capabilities, health, model_loading, page
from lightwell.server.dialects.running_route import running_route
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.supported_routes import INSPECTIONS
from lightwell.server.schemas.anthropic.messages import MessagesErrorAnswer
from lightwell.server.schemas.base import AnswerModel, ErrorAnswer
from lightwell.server.schemas.judgements.head_fields import RerankErrorAnswer, TeiErrorAnswer
from lightwell.server.schemas.judgements.systemone import SystemOneErrorAnswer
from lightwell.server.schemas.ollama import OllamaErrorAnswer

_STATUSES = {
    400: "A value is invalid; the message names it and the accepted values.",
    401: "No key, or a wrong one.",
    403: "The key may not do this.",
    404: "No such model.",
    406: "No such answer format.",
    413: "The body or the answer would be too large.",
    415: "The body is not JSON.",
    429: "As much work waits as is accepted, or the key's limit is reached; see Retry-After.",
    500: "The engine failed on this request.",
    503: "Loading, draining, or the worker was lost; see Retry-After.",
    504: "The request took longer than allowed.",
}


def _errors(answer: type[AnswerModel]) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route, which are all written as `answer`, for the OpenAPI page."""
    schema = {"$ref": f"#/components/schemas/{answer.__name__}"}
    return {
        # "default" also keeps FastAPI from announcing a 422 that this server never sends.
        "default": {"model": answer, "description": "Any other error, in the same shape."},
        # The others refer to its schema: given the model, FastAPI would make a validator of each status of each route,
        # which took most of the time of making an application.
        **{
            status: {"description": text, "content": {"application/json": {"schema": schema}}}
            for status, text in _STATUSES.items()
        },
    }


_KEY = [
    Security(HTTPBearer(auto_error=False, description="One of the server's keys.")),
    Security(
        APIKeyHeader(name="x-api-key", auto_error=False, description="The same, where Anthropic's clients send it.")
    ),
]
"""Document in the OpenAPI page that a key is sent, in one header or the other; `guard` checks it, before the body is
read.
"""


def build_routes(context: AppContext) -> list[BaseRoute]:
    """Return all routes: the API behind its key, the operator's behind an admin key; health, metrics and pages are
    open.

    They are tried in order. They are one list, for the application's own: routers within routers would try each route
    once more at every level.
    """
    keys, max_body_bytes = context.keys, context.settings.max_body_bytes
    guarded = guarded_route(keys, max_body_bytes)
    errors = _errors(ErrorAnswer)
    key = [] if keys.is_open else _KEY

    def api_of(route_class: type[APIRoute], error: type[AnswerModel] = ErrorAnswer) -> APIRouter:
        return APIRouter(route_class=route_class, responses=_errors(error), dependencies=key)

    def routes_of(router: APIRouter, *parts: Any) -> list[BaseRoute]:
        """Return the routes that modules, or functions of theirs, add to the router."""
        for part in parts:
            (part if callable(part) else part.add_routes)(router, context)
        return router.routes

    inspections = [
        import_module(f"lightwell.server.dialects.inspect.{name}") for name in (*INSPECTIONS.values(), "weight_slices")
    ]
    run = running_route(guarded, context)
    looking = running_route(guarded, context, is_inspection=True)
    admins = admin_route(keys, max_body_bytes)
    operators = APIRouter(route_class=admins, responses=errors, dependencies=_KEY, include_in_schema=keys.has_admin)
    # Open to every client of a server without keys, and to admins only on one with keys.
    loading = APIRouter(
        route_class=guarded if keys.is_open else admins,
        responses=errors,
        dependencies=key,
        include_in_schema=keys.is_open or keys.has_admin,
    )
    return [
        # First: these have the most to do.
        *routes_of(api_of(run), completions, chat, responses, embeddings, decisions, score, classify),
        *routes_of(api_of(looking), *inspections),
        *routes_of(api_of(run, OllamaErrorAnswer), ollama_text, ollama_embed),
        *routes_of(api_of(run, MessagesErrorAnswer), messages),
        *routes_of(api_of(run, SystemOneErrorAnswer), systemone),
        *routes_of(api_of(run, RerankErrorAnswer), rerank),
        *routes_of(api_of(run, TeiErrorAnswer), labels, tei, sparse, tgi),
        *routes_of(APIRouter(route_class=OpenRoute), health, page, ollama_models.add_open_routes),
        # After the others: the path of one model would match the paths of its weights.
        *routes_of(api_of(guarded), tokenize, capabilities, files, batches, models),
        *routes_of(api_of(guarded, OllamaErrorAnswer), ollama_models),
        *routes_of(api_of(guarded, MessagesErrorAnswer), messages.add_counting),
        *routes_of(api_of(guarded, TeiErrorAnswer), tei.add_info),
        *routes_of(operators, admin, model_loading.add_admin_routes),
        *routes_of(loading, adapters, model_loading),
    ]
