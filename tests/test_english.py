"""Texts are plain English: no place gains hits of tests/tools/english.py, and documents fit a window.

`python -m tests.tools.english --list` prints the hits; with `--record` it lowers the counts that fell.
"""

import json
import re
from pathlib import Path

import pytest

from tests.readme import DOCUMENTS, ROOT
from tests.tools import english
from tests.tools.javascript import comments_and_texts

HELD = json.loads(english.RECORD.read_text(encoding="utf-8"))
USERS_DOCUMENTS = [*DOCUMENTS, *(ROOT / name for name in ("SECURITY.md", "CHANGELOG.md", "clients/python/README.md"))]


def test_no_place_gains_hits() -> None:
    _, hits, found = english.count()
    gained = {where: number for where, number in hits.items() if number > HELD.get(where, 0)}
    tops = tuple(where.split(":")[0] for where in gained)
    places = [hit for hit in found if hit[0].startswith(tops)]
    assert not gained, f"more than in tests/english.json: {gained}\n{places[:20]}"


@pytest.mark.parametrize("document", USERS_DOCUMENTS, ids=lambda path: path.name)
def test_the_lines_of_a_document_fit_a_window(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    long = [line[:60] for line in text.splitlines() if len(line) > 400]
    # A patch in docs/extending.md quotes code, which has a limit of 120 columns.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    wide = [line[:60] for kind, block in blocks if kind != "diff" for line in block.splitlines() if len(line) > 100]
    assert not long
    assert not wide


def test_a_clause_with_what_is_counted_and_a_question_is_not() -> None:
    what = english.COMPILED["what-clause"]
    assert what.search("It holds what came before.")
    assert not what.search("What is a head?")


def test_code_in_a_document_is_not_counted() -> None:
    assert "what it" not in english.CODE_IN_MARKDOWN.sub("", "Text `what it is`.\n```sh\nwhat it does\n```\n")


def test_messages_help_and_descriptions_are_told_from_docstrings() -> None:
    source = '"""Docs of it."""\nField(0, description="The size of it.")\nraise ValueError(f"{x} is too large")\n'
    kinds = [(kind, text) for kind, _, text in english.python_texts("server/a.py", source)]
    assert sorted(kinds) == [
        ("comments", "Docs of it."),
        ("messages", "{} is too large"),
        ("openapi", "The size of it."),
    ]
    assert [kind for kind, *_ in english.python_texts("server/cli.py", 'add(help="a b c")')] == ["help"]


def test_the_texts_of_the_page_are_read_without_its_code() -> None:
    source = (
        "// Draws a row.\n"
        'const a = b.replace(/"x"/, "one two three") / 2;\n'
        'html`<p title="A title">Weights of ${of ? html`<b>the head</b>` : "no head"} here</p>`;\n'
    )
    assert [(line, text.split(), comment) for line, text, comment in comments_and_texts(source)] == [
        (1, ["Draws", "a", "row."], True),
        (2, ["one", "two", "three"], False),
        (3, ["Weights", "of", "{}", "here", ".", "A", "title"], False),
        (3, ["the", "head"], False),
        (3, ["no", "head"], False),
    ]
