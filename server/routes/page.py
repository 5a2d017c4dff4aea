"""GET / and GET /docs with its assets: pages that need no network, under whatever path a proxy puts them."""

import html
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, Response

from server.errors import NotFound, shown
from server.routes.context import AppContext

_WEB = Path(__file__).parent.parent / "web"
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
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
<script>SwaggerUIBundle({{url: "{root}/openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null}})</script>
</body>
</html>
"""

_INDEX = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Lightwell</title></head>
<body>
<h1>Lightwell</h1>
<p>Serving <b>{model}</b>.</p>
<ul>
<li><a href="{root}/docs">The API</a></li>
<li><a href="{root}/v1/models">The model</a></li>
<li><a href="{root}/health">Health</a></li>
<li><a href="{root}/metrics">Metrics</a></li>
</ul>
</body>
</html>
"""


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the pages to the router; they are no part of the API's description."""

    def root(request: Request) -> str:
        return html.escape(str(request.scope.get("root_path") or context.settings.root_path).rstrip("/"))

    @router.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return HTMLResponse(_INDEX.format(root=root(request), model=html.escape(context.model_id)))

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(_DOCS.format(root=root(request)))

    @router.get("/docs/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise NotFound(f"No asset {shown(name)}; accepted: {', '.join(_ASSETS)}.", code="route_not_found")
        return FileResponse(_WEB / "docs" / name, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=86400"})
