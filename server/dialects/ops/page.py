"""GET /, the page, and GET /docs, with their files: they work offline and under any path of a proxy."""

import asyncio
import html
import json
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from lightwell.server.dialects.ops.script_bundles import START
from lightwell.server.dialects.ops.single_file_page import SHEETS, views_of
from lightwell.server.dialects.ops.web_assets import SAVED, SHEET, WebAssets
from lightwell.server.generation.context import AppContext
from lightwell.server.http.errors import NotFound, shown

_WEB = Path(__file__).parent.parent.parent / "web"
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "start.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}

_DOCS = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Lightwell API</title>
<link rel="icon" href="{root}/docs/favicon.png">
<link rel="stylesheet" href="{root}/docs/swagger-ui.css">
</head>
<body>
<div id="api"></div>
<script src="{root}/docs/swagger-ui-bundle.js"></script>
<script src="{root}/docs/start.js"></script>
</body>
</html>
"""

# Only this server's files may run or be fetched; pictures may also come from the page's own memory.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY}  # every answer has the other headers
# Swagger UI writes its styles into the document.
_DOCS_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'"),
}


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the pages to the router; they are not part of the API's description."""

    def root(request: Request) -> str:
        return html.escape(str(request.scope.get("root_path") or context.settings.root_path).rstrip("/"))

    assets = WebAssets(_WEB / "page")

    @router.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        assets.refresh()
        # Without a known root the addresses are relative, which suits any path that ends in a slash.
        prefix = f"{root(request)}/" if root(request) else ""
        folder = f"{prefix}web/{assets.digest}"
        page = assets.files["index.html"].content.decode()
        page = SHEETS.sub("", page, count=len(SHEETS.findall(page)) - 1)
        page = SHEETS.sub(f'<link rel="stylesheet" href="{folder}/{SHEET}">\n', page)
        page = page.replace("{script}", START).replace("{folder}", folder)
        if sum(len(slot.names) + len(slot.adapters) for slot in context.models) > 1:
            page = page.replace('<div id="app">', '<div id="app" data-models>')
        may_frame = context.settings.embed_origins if request.query_params.get("embed") == "1" else ()
        policy = _CONTENT_SECURITY_POLICY
        if may_frame:
            policy = policy.replace("frame-ancestors 'none'", f"frame-ancestors {' '.join(may_frame)}")
        return HTMLResponse(page, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})

    @router.get("/web/saved/{view}.html", include_in_schema=False)
    async def saved(request: Request, view: str) -> Response:
        """Return the page with one view as one file. The page or the client fills it. It does not run here: every
        answer's policy forbids that, unless a route sets another.
        """
        assets.refresh()
        answer = await asyncio.to_thread(_sent, request, assets, assets.digest, f"{SAVED}{view}.html")
        if answer is None:
            accepted = ", ".join(views_of(assets.contents))
            raise NotFound(f"No view {shown(view)}; accepted: {accepted}.", code="route_not_found")
        return answer

    @router.get("/web/saved/{view}.json", include_in_schema=False)
    async def requests_of_view(view: str) -> Response:
        """Return the first requests of a view, so that a client can fill its file; `$` marks the input."""
        requests = json.loads((_WEB / "page" / "requests.json").read_text(encoding="utf-8"))
        if view not in requests:
            raise NotFound(f"No view {shown(view)}; accepted: {', '.join(requests)}.", code="route_not_found")
        return JSONResponse({"requests": requests[view]})

    @router.get("/web/{digest}/{name:path}", include_in_schema=False)
    async def file(request: Request, digest: str, name: str) -> Response:
        answer = None if name.startswith(SAVED) else await asyncio.to_thread(_sent, request, assets, digest, name)
        if answer is None:
            raise NotFound(
                f"No file {shown(name)} of version {shown(digest)}; reload the page.", code="route_not_found"
            )
        answer.headers.update({**_PAGE_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"})
        return answer

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(_DOCS.format(root=root(request)), headers=_DOCS_HEADERS)

    @router.get("/docs/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise NotFound(f"No asset {shown(name)}; accepted: {', '.join(_ASSETS)}.", code="route_not_found")
        return FileResponse(_WEB / "docs" / name, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})


def _sent(request: Request, assets: WebAssets, digest: str, name: str) -> Response | None:
    """Return a file, compressed if the client accepts that, or None if there is none. It runs in a thread, since
    bundling and compression would block the event loop.
    """
    asset = assets.find(digest, name)
    if asset is None:
        return None
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(asset.content, media_type=asset.media_type, headers=headers)
    return Response(asset.compressed, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"})
