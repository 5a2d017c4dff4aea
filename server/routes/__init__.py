"""Holds every HTTP route, each in its own file. Routes read and check requests, and write answers; they compute
nothing.

The application adds the error handlers (`server.http.errors`) and the HTTP metrics (`server.observability.metrics`)
around them, and omits FastAPI's own /docs: it would load its scripts from the network, and hide ours.
"""

from fastapi import APIRouter, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.routing import BaseRoute

from server.routes.anthropic import messages
from server.routes.auth_route import OpenRoute, admin_route, guarded_route
from server.routes.context import AppContext
from server.routes.error_answers import error_answers
from server.routes.inspect import (
    attention,
    contributions,
    correlations,
    explain,
    heads,
    lens,
    next_token,
    rollout,
    trace,
    trajectory,
    weight_slices,
    weights,
)
from server.routes.openai import chat, completions, embeddings, models, tokenize
from server.routes.ops import adapters, admin, capabilities, health, page
from server.routes.request_context import running_route
from server.schemas.base import ErrorAnswer

_ERRORS = error_answers(ErrorAnswer)

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
    key = [] if keys.is_open else _KEY
    api = APIRouter(route_class=guarded, responses=_ERRORS, dependencies=key)
    running = APIRouter(route_class=running_route(guarded, context), responses=_ERRORS, dependencies=key)
    looking = APIRouter(
        route_class=running_route(guarded, context, is_inspection=True), responses=_ERRORS, dependencies=key
    )
    operators = APIRouter(
        route_class=admin_route(keys, max_body_bytes),
        responses=_ERRORS,
        dependencies=_KEY,
        include_in_schema=keys.has_admin,
    )
    inspections = (attention, trace, next_token, lens, explain, contributions, trajectory, heads, rollout)
    of_weights = (correlations, weights, weight_slices)
    for part in (completions, chat, messages, embeddings):
        part.add_routes(running, context)
    for part in (*inspections, *of_weights):
        part.add_routes(looking, context)
    for part in (tokenize, capabilities, models):
        part.add_routes(api, context)
    messages.add_counting(api, context)
    open_to_all = APIRouter(route_class=OpenRoute)
    for part in (health, page):
        part.add_routes(open_to_all, context)
    admin.add_routes(operators, context)
    # What everybody may do on a server without keys, and admins alone on one with keys.
    loading = APIRouter(
        route_class=guarded if keys.is_open else admin_route(keys, max_body_bytes),
        responses=_ERRORS,
        dependencies=key,
        include_in_schema=keys.is_open or keys.has_admin,
    )
    adapters.add_routes(loading, context)
    return [
        *running.routes,  # first: these have the most to do
        *looking.routes,
        *open_to_all.routes,
        *api.routes,  # after the others: its path of one model would take those of that model's weights
        *operators.routes,
        *loading.routes,
    ]
