"""/v1/files: upload, list, read and delete the files of batches. The routes exist only with --batch-dir."""

import os
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from lightwell.server.batches.folder import BatchFolder, Upload
from lightwell.server.batches.records import Record
from lightwell.server.config.auth.keys import ApiKey
from lightwell.server.dialects.auth_route import KEY_IN_SCOPE
from lightwell.server.generation.context import AppContext
from lightwell.server.http.error_handlers import translated
from lightwell.server.http.errors import BadRequest, Conflict, Forbidden, NotFound, shown
from lightwell.server.http.multipart import MultipartReader, boundary_of
from lightwell.server.http.sse import ClientGone
from lightwell.server.schemas.batches import MAX_EXPIRY, ExpiresAfter

_PIECE = 1 << 20
"""Bytes that are written to the disk, or read from it, at a time."""
_MOST_FORM = 64 << 10
"""Most bytes of an upload in addition to its file."""
_MOST_NAME = 255
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": MAX_EXPIRY},
                    },
                }
            }
        },
    }
}


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router, if there is a folder of batches."""
    if context.batches is None:
        return
    folder = context.batches.folder

    @router.post("/v1/files", tags=["batches"], summary="Upload a file", response_model=None, openapi_extra=_FORM)
    async def upload(request: Request) -> dict[str, Any]:
        """Store a file of requests for batches: a form with `file`, `purpose` and `expires_after`."""
        _check_origin(request, context.settings.cors_origin)
        announced = request.headers.get("content-length", "")
        size = max(0, int(announced) - _MOST_FORM) if announced.isdigit() else 0
        receiving = Upload(folder, owner_of(request), size)
        try:
            fields = await _receive(request, receiving)
            seconds = _expiry(fields, context.settings.max_batch_age)
            return (await receiving.finish(fields["file"], seconds)).answer()
        finally:
            await receiving.drop()

    @router.get("/v1/files", tags=["batches"], summary="The files", response_model=None)
    async def files(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        purpose: str | None = None,
    ) -> dict[str, Any]:
        """Return the files of the key, in pages: `after` is the last id of the page before."""
        owner = owner_of(request)
        own = [each for each in folder.files.values() if each.owner == owner and not each.is_expired]
        return page(
            [each for each in own if purpose in (None, each.purpose)], limit, after, is_reversed=order == "desc"
        )

    @router.get("/v1/files/{file_id}", tags=["batches"], summary="A file", response_model=None)
    async def file(request: Request, file_id: str) -> dict[str, Any]:
        """Return the facts about a file."""
        return folder.file(owner_of(request), file_id).answer()

    @router.delete("/v1/files/{file_id}", tags=["batches"], summary="Delete a file", response_model=None)
    async def delete(request: Request, file_id: str) -> dict[str, Any]:
        """Delete a file, unless an unfinished batch reads it."""
        found = folder.file(owner_of(request), file_id)
        if folder.is_in_use(found.id):
            message = "An unfinished batch reads this file; a file without such a batch is accepted. Cancel the batch."
            raise Conflict(message, param="file_id", code="file_in_use")
        await folder.delete(found.id)
        return {"id": found.id, "object": "file", "deleted": True}

    @router.get("/v1/files/{file_id}/content", tags=["batches"], summary="Read a file", response_model=None)
    async def content(request: Request, file_id: str) -> Response:
        """Return the content of a file."""
        found = folder.file(owner_of(request), file_id)
        try:
            opened = await folder.do(folder.open, found.id)
        except OSError:  # it was removed, or replaced by a link
            raise NotFound(f"There is no file {shown(file_id)}.", param="file_id", code="file_not_found") from None
        size = os.fstat(opened.fileno()).st_size
        headers = {"content-length": str(size)}
        return StreamingResponse(_pieces(folder, opened), headers=headers, media_type="application/octet-stream")


def owner_of(request: Request) -> str:
    """Return the owner of the request's key; "" on a server without keys."""
    key: ApiKey | None = request.scope.get(KEY_IN_SCOPE)
    return "" if key is None else key.owner


def page(records: Sequence[Record], limit: int, after: str | None, *, is_reversed: bool = True) -> dict[str, Any]:
    """Return a page of OpenAI's lists. Raises BadRequest if no record has the id `after`."""
    ordered = sorted(records, key=lambda record: (record.order, record.id), reverse=is_reversed)
    begin = 0
    if after is not None:
        ids = [record.id for record in ordered]
        if after not in ids:
            message = f"after: {shown(after)} is not in the list; the last id of a page is accepted."
            raise BadRequest(message, param="after", code="invalid_value")
        begin = ids.index(after) + 1
    chosen = ordered[begin : begin + limit]
    return {
        "object": "list",
        "data": [record.answer() for record in chosen],
        "first_id": chosen[0].id if chosen else None,
        "last_id": chosen[-1].id if chosen else None,
        "has_more": begin + limit < len(ordered),
    }


def _check_origin(request: Request, origins: tuple[str, ...]) -> None:
    """Raise Forbidden for a page of another origin, which browsers report here; they send forms without preflight."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    is_ours = site in ("same-origin", "none") or origin in origins
    if (origin is not None or site is not None) and not is_ours:
        raise Forbidden(
            f"Origin {shown(origin)} may not upload files; only the server's own page and the origins of --cors-origin "
            "may.",
            code="origin_not_allowed",
        )


async def _receive(request: Request, target: Upload) -> dict[str, str]:
    """Return the fields of a form, with the name of its file; the file's content goes to `target`. Raises the
    errors of both, and BadRequest for a missing field.
    """
    form = MultipartReader(request.stream(), boundary_of(request.headers))
    fields: dict[str, str] = {}
    try:
        while (part := await form.next_part()) is not None:
            if part.name in fields:
                raise BadRequest(f"{shown(part.name)} is given twice; one is accepted.", code="form_invalid")
            if part.name != "file":
                fields[part.name] = await form.text()
                continue
            fields["file"] = os.path.basename((part.filename or "file.jsonl").replace("\\", "/"))[:_MOST_NAME]
            buffer = b""
            async for piece in form.data():
                buffer += piece
                if len(buffer) >= _PIECE:
                    await target.write(buffer)
                    buffer = b""
            await target.write(buffer)
    except ClientDisconnect:
        raise ClientGone from None
    for name, accepted in (("file", "a file"), ("purpose", "'batch'")):
        if name not in fields or (name == "purpose" and fields[name] != "batch"):
            message = f"{name}: {shown(fields.get(name))}; {accepted} is accepted."
            raise BadRequest(message, param=name, code="invalid_value")
    return fields


def _expiry(fields: dict[str, str], most: float) -> int:
    """Return the seconds until a file expires. Raises BadRequest for fields that are not known, or for their values."""
    given: dict[str, Any] = {}
    for name, value in fields.items():
        inner = name.removeprefix("expires_after[").removesuffix("]")
        if inner != name:
            given[inner] = int(value) if inner == "seconds" and value.isdecimal() and len(value) < 10 else value
        elif name not in ("file", "purpose"):
            raise BadRequest(
                f"{shown(name)} is not a known field; file, purpose and expires_after are accepted.",
                code="unknown_field",
            )
    return min(translated(ExpiresAfter, given).seconds if given else MAX_EXPIRY, int(most))


async def _pieces(folder: BatchFolder, file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while piece := await folder.do(file.read, _PIECE):
            yield piece
