"""One HTML file with the page and one of its views, which opens from disk, where browsers load no modules.

The modules become functions of one classic script, the styles one sheet. The client or the page replaces `EMPTY` by the
data (page/core/saved.js has the format). The file's policy permits only that script, and no network.
"""

import base64
import hashlib
import re
from collections.abc import Mapping

from lightwell.server.dialects.ops.script_bundles import MAKERS, as_functions, reachable

EMPTY = '<script type="application/json" id="saved">null</script>'

SHEETS = re.compile(r'<link rel="stylesheet" href="\{folder\}/([^"]+)">\n')
"""A line of index.html that names a style sheet."""

_START = """(() => {
"use strict";
const root = JSON.parse(document.getElementById("saved").textContent)?.root ?? "http://localhost/";
const address = (name) => new URL("web/saved/" + name, root).href;
const later = async (name) => use(name);
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Lightwell</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"><p class="boot">Loading the page…</p></div>
<noscript>This file needs JavaScript.</noscript>
{empty}
<script>{script}</script>
</body>
</html>
"""


def views_of(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the names of the page's views."""
    return tuple(re.findall(r'import\("\./views/(\w+)\.js"\)', files["views.js"].decode()))


def one_file(files: Mapping[str, bytes], view: str) -> str:
    """Return the HTML of the page with that view. Raises ValueError as `as_functions` does."""
    names = reachable(files, ["app.js"], follows_later=False)
    names |= reachable(files, [f"views/{view}.js"], follows_later=True)
    script = f'{_START}{MAKERS}{as_functions(files, names)}use("app.js");\n}})();\n'
    style = one_sheet(files)
    policy = (
        f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; img-src data: blob:; "
        "media-src blob:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(policy=policy, style=style, script=script, empty=EMPTY)


def one_sheet(files: Mapping[str, bytes]) -> str:
    """Return all styles of the page, in its order: one request in place of one for each part."""
    return "\n".join(files[name].decode() for name in SHEETS.findall(files["index.html"].decode()))


def _hash_of(text: str) -> str:
    """Return the name of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
