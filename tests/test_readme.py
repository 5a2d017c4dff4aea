"""README and docs/ are true: their tables are the code's, examples run and print the shown output, links have a target.

`python -m tests.readme` rewrites the parts that these tests compare.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import readme, readme_fields
from tests.readme import BATCHES, CODE, DOCUMENTS, README, RERANKING, RESPONSES, ROOT, Example
from tests.readme_output import covers, form, shortened
from tests.support.processes import Server
from tests.support.shared import once, shared_server

TEXT = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
ON_DEFAULT = "\n".join(
    path.read_text(encoding="utf-8") for path in DOCUMENTS if path not in (README, RERANKING, BATCHES)
)


@pytest.fixture(scope="module")
def server() -> Server:
    folder = once("batches of the documents", lambda folder: None)
    return shared_server(*readme.DEFAULT_MODEL, "--batch-dir", str(folder))


TABLES: list[tuple[Path, str, Callable[[], str]]] = [
    (readme.REFERENCE, "settings", readme.settings_table),
    (readme.REFERENCE, "metrics", readme.metrics_table),
    (readme.REFERENCE, "fields", readme_fields.fields_table),
    (readme.REFERENCE, "points", readme.points_table),
    (RESPONSES, "fields", readme_fields.responses_table),
    (RERANKING, "fields", readme_fields.reranking_table),
    (readme.MESSAGES, "messages-fields", readme_fields.messages_table),
    (readme.OLLAMA, "ollama", readme_fields.ollama_table),
    (CODE, "folders", readme.folders_table),
]


@pytest.mark.parametrize(("document", "name", "made"), TABLES)
def test_a_table_of_a_document_is_the_codes(document: Path, name: str, made: Callable[[], str]) -> None:
    assert readme.table(name, document) == made()


OF_BATCHES = ("/v1/files", "/v1/batches")
"""Beginnings of the routes that docs/batches.md has."""


def test_every_route_is_documented(server: Server) -> None:
    described = readme.openapi(server)
    described["paths"] = {
        path: methods for path, methods in described["paths"].items() if not path.startswith(OF_BATCHES)
    }
    assert readme.table("routes") == readme.routes_table(described)


ROUTE = re.compile(
    r"(?:\b(GET|POST|PUT|DELETE|HEAD) |`)(/(?:v1/|health|metrics|version|tokenize|detokenize|admin/\w|docs\b)[\w/{}-]*)"
)
CLIENTS_README = ROOT / "clients" / "python" / "README.md"
NOT_DESCRIBED = {
    ("GET", "/docs"),
    ("GET", "/admin/keys"),
    ("POST", "/admin/keys/reload"),
    ("GET", "/admin/state"),
    ("GET", "/admin/models"),
    ("POST", "/admin/models/{model_id}/load"),
    ("POST", "/admin/models/{model_id}/unload"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
}
"""Routes that the API's description leaves out: its own page, and the routes that exist only for admin keys or with
--lora-root.
"""


def test_every_route_that_a_document_names_is_there(server: Server) -> None:
    """Check for an old error: docs/inside.md named a route with a changed path."""
    described = readme.openapi(server)["paths"]
    there = NOT_DESCRIBED | {(method.upper(), path) for path, methods in described.items() for method in methods}
    known = {(method, re.sub(r"{\w+}", "{}", path)) for method, path in there}
    known |= {("", path) for _, path in known} | {("HEAD", path) for method, path in known if method == "GET"}
    text = TEXT + CLIENTS_README.read_text(encoding="utf-8")
    text = re.sub(r"^```diff$.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)  # changes that a reader might add
    named = {(method, re.sub(r"{\w+}", "{}", path)) for method, path in ROUTE.findall(text)}
    assert len(named) > len(described)
    assert not named - known


FOLDERS = ("benchmarks", "clients", "deploy", "docs", "model", "server", "tests")
NOTES = ROOT / "benchmarks" / "NOTES.md"


def headings(path: Path) -> set[str]:
    """The anchors of a document's headings on GitHub."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", [*DOCUMENTS, NOTES], ids=lambda path: path.name)
def test_files_and_headings_that_a_document_names_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            path = (document.parent / name).resolve() if name else document
            assert path.is_file(), target
            assert not anchor or anchor in headings(path), target
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", text)
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_readme_shows_every_character_of_its_outputs(server: Server) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    text = README.read_text(encoding="utf-8")
    shown = [*readme.console_examples(text), *readme.python_examples(text)]
    real = [shortened(readme.run_console(example.command, server)) for example in readme.console_examples(text)]
    real += readme.run_python([*readme.python_examples(text)], server).values()
    assert [example.output for example in shown] == real
    assert len(real) > 1


@pytest.mark.parametrize(
    "example", list(readme.console_examples(ON_DEFAULT)), ids=lambda example: example.command[8:60]
)
def test_a_command_prints_what_stands_under_it(example: Example, server: Server) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    assert covers(form(example.output), form(readme.run_console(example.command, server)))


PYTHON_EXAMPLES = [*readme.python_examples(ON_DEFAULT)]


@pytest.fixture(scope="module")
def printed(server: Server) -> dict[Example, str]:
    return readme.run_python(PYTHON_EXAMPLES, server)


@pytest.mark.parametrize("example", PYTHON_EXAMPLES, ids=lambda example: example.command[:40])
def test_python_prints_what_stands_under_it(example: Example, printed: dict[Example, str]) -> None:
    assert covers(form(example.output), form(printed[example]))


def test_reranking_prints_what_stands_under_it() -> None:
    text = RERANKING.read_text(encoding="utf-8")
    server = shared_server(*readme.minilm())
    for example in readme.console_examples(text):
        assert covers(form(example.output), form(readme.run_console(example.command, server)))
    for example, printed in readme.run_python([*readme.python_examples(text)], server).items():
        assert covers(form(example.output), form(printed))


def test_batches_prints_what_stands_under_it(server: Server) -> None:
    text = BATCHES.read_text(encoding="utf-8")
    described = {path for path in readme.openapi(server)["paths"] if path.startswith(OF_BATCHES)}
    assert described == {path for _, path in ROUTE.findall(text) if path.startswith(OF_BATCHES)}
    for example, printed in readme.run_python([*readme.python_examples(text)], server).items():
        assert example.output == printed
