"""Bundles of the page's modules: in a script, each module becomes a function that fills an object with its exports.

The page with its first view is one script. Another view adds one when it is opened, and the first of them one more with
the modules that two views need. Only the forms of import and export that the page uses are understood here.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

FOLDER = "bundle/"
"""Folder of the scripts; the rest of a script's path is the path of its first module."""
START = f"{FOLDER}app.js"
"""The path of the script that the page begins with."""

_NAMES = r"\{([^}]*)\}"
_IMPORT = re.compile(rf'^import\s*{_NAMES}\s*from\s*"([^"]+)";', re.MULTILINE)
_PASSED_ON = re.compile(rf'^export\s*{_NAMES}\s*from\s*"([^"]+)";', re.MULTILINE)
_EXPORTED_LIST = re.compile(rf"\bexport\s*{_NAMES};?\s*$")
_EXPORTED = re.compile(r"^export (?=(?:async function\*?|function\*?|class|const) (\w+))", re.MULTILINE)
_LATER = re.compile(r'\bimport\(\s*"([^"]+)"\s*\)')
_AGAIN = re.compile(r"\bimport\(`\./([^`]*)`\)")
"""A second try to load a view's code, under another address."""
_LEFT = re.compile(r"^(?:import|export)\b.*|\bimport\(.*|</script|<script|<!--", re.MULTILINE | re.IGNORECASE)

MAKERS = """const made = {};
const makers = {};
function use(name) {
  if (!(name in made)) makers[name]((made[name] = {}));
  return made[name];
}
"""
"""JavaScript that runs the function of a module when another one uses it for the first time."""
_LOADERS = """const address = (name) => new URL("../" + name, import.meta.url).href;
const later = async (path) => {
  const name = path.replace(/\\?.*/, "");
  if (!(name in makers)) await import("./" + path);
  return use(name);
};
export { makers, use, address, later };
"""
"""JavaScript that finds the address of a file of the page, and fetches the script of a module that is not here yet."""


def reachable(files: Mapping[str, bytes], start: Iterable[str], *, follows_later: bool) -> set[str]:
    """Return these modules and all modules that they import. follows_later: also modules that are loaded later."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        with_later = follows_later and name != "views.js"
        waiting += [_resolved(name, path) for path in _imported(files[name], with_later=with_later)]
    return found


@lru_cache(1024)  # each view's script asks again what all views import
def _imported(source: bytes, *, with_later: bool) -> list[str]:
    patterns = [_IMPORT, _PASSED_ON, *([_LATER] if with_later else [])]
    return [match.groups()[-1] for pattern in patterns for match in pattern.finditer(source.decode())]


def bundle(files: Mapping[str, bytes], path: str, first_view: str) -> str | None:
    """Return the script of that path, or None. `START` has the page with `first_view`, views.js the modules of several
    views, any other path the further modules of its first module. Raises ValueError as `as_functions` does.
    """
    name = path.removeprefix(FOLDER)
    if name not in files or not name.endswith(".js"):
        return None
    first = reachable(files, ["app.js", first_view], follows_later=False)
    if path == START:
        return f'{MAKERS}{_LOADERS}{as_functions(files, first)}use("app.js");\n'
    up = "../" * name.count("/") or "./"
    begin = f'import {{ makers, use, address, later }} from "{up}app.js";\n'
    views = [reachable(files, [view], follows_later=False) for view in files if re.fullmatch(r"views/\w+\.js", view)]
    shared = {one for one, uses in Counter(one for view in views for one in view).items() if uses > 1} - first
    needed = reachable(files, [name], follows_later=False) - first
    own, isolated = (shared, True) if name == "views.js" else (needed - shared, not needed & shared)
    return begin + ("" if isolated else f'import "{up}views.js";\n') + as_functions(files, own)


def as_functions(files: Mapping[str, bytes], names: Iterable[str]) -> str:
    """Return these modules as functions, in the order of their names.

    Raises ValueError if an import or export has a form that the page does not use, or if the text would end a script.
    """
    return "".join(_as_function(name, files[name].decode()) for name in sorted(names))


def _as_function(name: str, source: str) -> str:
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
    text = _AGAIN.sub(r"later(`\1`)", text)
    text = text.replace("import.meta.url", f'address("{name}")')
    if left := _LEFT.search(text):
        raise ValueError(f"{name}: {left[0]!r} is in no form that can be put into one file")
    return f'makers["{name}"] ??= (own) => {{\n{text}\nObject.assign(own, {{ {", ".join(exported)} }});\n}};\n'


def _resolved(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
