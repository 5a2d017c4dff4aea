"""The page's source: its layers, its sizes, and that its scripts never build HTML or code from text."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.source_tree import ROOT
from tests.test_source import MAX_FILE_LINES, MAX_FUNCTION_LINES

PAGE = ROOT / "server" / "web" / "page"

MAX_PAGE_COLUMNS = 140  # ruff's limit for Python, with some room for templates

MAX_SCRIPT_BYTES = 950_000  # the page's own scripts; it may only fall

# The only importers of files of others: one file of ours in front of each.
VENDORED = {
    "vendor/preact-htm.js": "core/html.js",
    "vendor/marked.js": "core/markdown.js",
    "vendor/prism.js": "core/markdown.js",
}
MAX_VENDORED_BYTES = 150_000

# Folders of the page, from the bottom up. The files in PAGE itself import these and are imported by none of them.
PAGE_LAYERS = ("vendor", "core", "parts", "views")


def page_files(*suffixes: str) -> list[Path]:
    """Return the page's own files of these kinds."""
    return sorted(path for path in PAGE.rglob("*") if path.suffix in suffixes and "vendor" not in path.parts)


SCRIPT_IMPORT = re.compile(
    r"""^(?:import|export)\b[^"'=;]*\bfrom\s*["']([^"']+) | ^import\s*["']([^"']+) | \bimport\(\s*["']([^"']+)""",
    re.MULTILINE | re.VERBOSE,
)


def script_imports(path: Path) -> set[str]:
    """Return the files that a script imports, at once or later, by their path in the page."""
    names = map("".join, SCRIPT_IMPORT.findall(path.read_text(encoding="utf-8")))
    return {(path.parent / name).resolve().relative_to(PAGE).as_posix() for name in names if name}


def test_the_pages_files_lines_and_functions_stay_short() -> None:
    long = []
    for path in page_files(".js", ".css", ".html"):
        name = path.relative_to(ROOT)
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_FILE_LINES:
            long.append(f"{name}: {len(lines)} lines")
        long += [f"{name}:{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > MAX_PAGE_COLUMNS]
        start = None
        for i, line in enumerate(lines, 1):
            if re.match(r"(export )?(async )?function\b", line):
                start = i
            elif line == "}" and start is not None:
                if i - start + 1 > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{start}: a function of {i - start + 1} lines")
                start = None
    assert not long


def test_the_pages_scripts_stay_small() -> None:
    assert sum(path.stat().st_size for path in page_files(".js")) <= MAX_SCRIPT_BYTES


def test_the_pages_files_open_with_what_they_do() -> None:
    opening = {".js": "// ", ".css": "/* "}
    silent = [
        str(path.relative_to(ROOT))
        for path in page_files(*opening)
        if not path.read_text(encoding="utf-8").startswith(opening[path.suffix])
    ]
    assert not silent


def test_the_pages_imports_point_downwards_only() -> None:
    wrong = []
    for path in page_files(".js"):
        here = path.relative_to(PAGE).as_posix()
        for name in sorted(script_imports(path)):
            assert (PAGE / name).is_file(), f"{here} imports {name}, which is not there"
            folder, above = name.partition("/")[0], here.partition("/")[0]
            if folder == "vendor":
                allowed = here == VENDORED[name]
            else:
                # the list of views is a file of the page itself: views may look into it
                layers = {layer: i for i, layer in enumerate(PAGE_LAYERS)}
                allowed = layers.get(folder, layers["views"]) <= layers.get(above, len(PAGE_LAYERS))
            if not allowed:
                wrong.append(f"{here} imports {name}")
    assert not wrong


def test_the_files_of_others_stay_small() -> None:
    sizes = {path.relative_to(PAGE).as_posix(): path.stat().st_size for path in (PAGE / "vendor").iterdir()}
    assert sizes.keys() == VENDORED.keys()
    assert sum(sizes.values()) <= MAX_VENDORED_BYTES


def test_no_script_of_the_page_imports_itself_in_a_circle() -> None:
    """Combined scripts run one after another: in a circle of imports one would miss the exports of another."""
    imports = {path.relative_to(PAGE).as_posix(): script_imports(path) for path in page_files(".js")}
    circle: list[str] = []
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert not circle


def test_the_pages_scripts_never_make_html_or_code_of_text() -> None:
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\bnew Function\b")
    found = [
        f"{path.relative_to(ROOT)}: {way}"
        for path in page_files(".js", ".html")
        for way in ways.findall(path.read_text(encoding="utf-8"))
    ]
    assert not found
