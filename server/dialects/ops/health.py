"""Health, metrics and version: these routes are open to all, so that probes and scrapers need no key."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from lightwell.server.dialects.responses import json_response
from lightwell.server.generation.context import AppContext
from lightwell.server.observability.metrics import CONTENT_TYPE
from lightwell.server.observability.version import lightwell_version


def add_routes(router: APIRouter, context: AppContext) -> None:
    unready: dict[int | str, dict[str, Any]] = {503: {"description": "Loading, draining, or a worker is lost or hung."}}

    @router.get("/health/live", tags=["operation"], summary="The process runs", responses=unready)
    async def live() -> Response:
        """Return 200 while the process can recover by itself, and 503 once it should be restarted."""
        loaded = context.models.loaded
        alive = not loaded or any(model.engine.live for model in loaded)
        return json_response({"live": alive}, 200 if alive else 503)

    @router.get("/health/ready", tags=["operation"], summary="Requests are accepted", responses=unready)
    async def ready() -> Response:
        """Return 200 when every worker of every loaded model has recently shown that it works and the server is not
        draining. Models that are not loaded, or cannot be, are reported only.
        """
        loaded = context.models.loaded
        reason = next((model.engine.reason() for model in loaded if not model.engine.ready()), "ready")
        if reason == "ready" and context.models.is_draining:
            reason = "draining"
        is_ready = reason == "ready"
        states = {slot.id: slot.state for slot in context.models}
        answer = json_response({"ready": is_ready, "reason": reason, "models": states}, 200 if is_ready else 503)
        if not is_ready:
            answer.headers["Retry-After"] = "1"
        return answer

    @router.get("/health", tags=["operation"], summary="The same as /health/ready", responses=unready)
    async def health() -> Response:
        """Return 200 when requests are accepted."""
        return await ready()

    @router.get("/metrics", tags=["operation"], summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        """Return all metrics in the Prometheus text format."""
        return Response(await context.metrics.read(), media_type=CONTENT_TYPE)

    @router.get("/version", tags=["operation"], summary="Version of the server")
    async def get_version() -> dict[str, str | None]:
        """Return the version, and the dtype in which the first loaded model computes, null while it loads."""
        dtype = next((model.compute_dtype for model in context.models.loaded), None)
        return {"version": lightwell_version(), "compute_dtype": dtype}
