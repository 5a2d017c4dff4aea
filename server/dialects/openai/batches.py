"""/v1/batches: begin, watch, list and cancel batches. The routes exist only with --batch-dir."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from lightwell.server.dialects.openai.files import owner_of, page
from lightwell.server.generation.context import AppContext
from lightwell.server.schemas.batches import MAX_EXPIRY, BatchRequest


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router, if there is a folder of batches."""
    if context.batches is None:
        return
    runner = context.batches
    folder = runner.folder

    @router.post("/v1/batches", tags=["batches"], summary="Begin a batch", response_model=None)
    async def create(request: Request, body: BatchRequest) -> dict[str, Any]:
        """Begin to answer the requests of a file. They run only while no other requests do."""
        wished = MAX_EXPIRY if body.output_expires_after is None else body.output_expires_after.seconds
        batch = await runner.create(
            owner_of(request),
            body.input_file_id,
            endpoint=body.endpoint,
            metadata=body.metadata,
            output_seconds=min(wished, int(context.settings.max_batch_age)),
        )
        return batch.answer()

    @router.get("/v1/batches", tags=["batches"], summary="The batches", response_model=None)
    async def batches(
        request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
    ) -> dict[str, Any]:
        """Return the batches of the key, the newest first, in pages: `after` is the last id of the page before."""
        owner = owner_of(request)
        return page([each for each in folder.batches.values() if each.owner == owner], limit, after)

    @router.get("/v1/batches/{batch_id}", tags=["batches"], summary="A batch", response_model=None)
    async def batch(request: Request, batch_id: str) -> dict[str, Any]:
        """Return the state of a batch."""
        return folder.batch(owner_of(request), batch_id).answer()

    @router.post("/v1/batches/{batch_id}/cancel", tags=["batches"], summary="Cancel a batch", response_model=None)
    async def cancel(request: Request, batch_id: str) -> dict[str, Any]:
        """End a batch early. Its answers so far are kept; the other requests get an error."""
        found = folder.batch(owner_of(request), batch_id)
        await runner.cancel(found)
        return found.answer()
