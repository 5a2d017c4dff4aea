"""Makes one HTML file of the page and one of its views, which opens from disk: browsers load no module from there.

The modules become functions of one classic script, the styles one sheet. What the file shows is filled in by whoever
saves it, where `EMPTY` stands: page/core/saved.js says in which form. The file's own policy runs that script alone and
asks nothing of any network.
"""

import base64
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping

EMPTY = '<script type="application/json" id="saved">null</script>'

_NAMES = r"\{([^}]*)\}"
_IMPORT = re.compile(rf'^import\s*{_NAMES}\s*from\s*"([^"]+)";', re.MULTILINE)
_PASSED_ON = re.compile(rf'^export\s*{_NAMES}\s*from\s*"([^"]+)";', re.MULTILINE)
_EXPORTED_LIST = re.compile(rf"\bexport\s*{_NAMES};?\s*$")
_EXPORTED = re.compile(r"^export (?=(?:async function\*?|function\*?|class|const) (\w+))", re.MULTILINE)
_LATER = re.compile(r'\bimport\(\s*"([^"]+)"\s*\)')
_AGAIN = re.compile(r"\bimport\(`[^`]*`\)")
"""A second try to load a view's code: there is none in a file."""
_LEFT = re.compile(r"^(?:import|export)\b.*|\bimport\(.*|</script|<script|<!--", re.MULTILINE | re.IGNORECASE)
SHEETS = re.compile(r'<link rel="stylesheet" href="\{folder\}/([^"]+)">\n')
"""A line of index.html that names a style sheet."""

_START = """(() => {
"use strict";
const root = JSON.parse(document.getElementById("saved").textContent)?.root ?? "http://localhost/";
const address = (name) => new URL("web/saved/" + name, root).href;
const made = {};
const makers = {};
function use(name) {
  if (!(name in made)) makers[name]((made[name] = {}));
  return made[name];
}
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
    """Return the HTML of the page with that view.

    Raises:
        ValueError: a module is written in a way that is not understood here.
    """
    names = reachable(files, ["app.js"], follows_later=False)
    names |= reachable(files, [f"views/{view}.js"], follows_later=True)
    modules = "".join(_as_function(name, files[name].decode()) for name in sorted(names))
    script = f'{_START}{modules}use("app.js");\n}})();\n'
    style = one_sheet(files)
    policy = (
        f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; img-src data: blob:; "
        "media-src blob:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(policy=policy, style=style, script=script, empty=EMPTY)


def one_sheet(files: Mapping[str, bytes]) -> str:
    """Return all styles of the page, in its order: one request in place of one for each part."""
    return "\n".join(files[name].decode() for name in SHEETS.findall(files["index.html"].decode()))


def reachable(files: Mapping[str, bytes], start: Iterable[str], *, follows_later: bool) -> set[str]:
    """Return the modules that these import, and they themselves; with those that are loaded later, or without."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        source = files[name].decode()
        patterns = [_IMPORT, _PASSED_ON, *([_LATER] if follows_later and name != "views.js" else [])]
        waiting += [_resolved(name, match.groups()[-1]) for pattern in patterns for match in pattern.finditer(source)]
    return found


def _as_function(name: str, source: str) -> str:
    """Return a module as a function that fills an object with what the module exports.

    Raises:
        ValueError: an import or export is of a form that the page does not use, or the text would end a script.
    """
    exported: list[str] = _EXPORTED.findall(source)

    def imported(match: re.Match[str]) -> str:
        return f'const {{{match[1].replace(" as ", ": ")}}} = use("{_resolved(name, match[2])}");'

    def passed_on(match: re.Match[str]) -> str:
        return f'Object.assign(own, (({{{match[1]}}}) => ({{{match[1]}}}))(use("{_resolved(name, match[2])}")));'

    def listed(match: re.Match[str]) -> str:
        pairs = (entry.split(" as ") for entry in match[1].split(","))
        exported.extend(f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs)
        return "\n"

    text = _IMPORT.sub(imported, source)
    text = _PASSED_ON.sub(passed_on, text)
    text = _EXPORTED_LIST.sub(listed, text)
    text = _EXPORTED.sub("", text)
    text = _LATER.sub(lambda match: f'later("{_resolved(name, match[1])}")', text)
    text = _AGAIN.sub('Promise.reject(new Error("not in this file"))', text)
    text = text.replace("import.meta.url", f'address("{name}")')
    if left := _LEFT.search(text):
        raise ValueError(f"{name}: {left[0]!r} is in no form that can be put into one file")
    return f'makers["{name}"] = (own) => {{\n{text}\nObject.assign(own, {{ {", ".join(exported)} }});\n}};\n'


def _resolved(importer: str, path: str) -> str:
    """Return the name of the file that a module names by its path from there."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _hash_of(text: str) -> str:
    """Return what a content security policy calls an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
