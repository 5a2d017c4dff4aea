"""The files of lessons: an error in one is reported clearly, and two models have all numbers that they quote."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest
from playwright.sync_api import Page

from tests import readme
from tests.page import lessons
from tests.page.conftest import Open, show
from tests.source_tree import ROOT
from tests.support.shared import shared_server


@pytest.mark.parametrize("name", lessons.NAMES)
def test_a_lessons_file_is_whole(name: str) -> None:
    assert lessons.problems(lessons.read(name)) == []


def test_every_file_of_the_folder_is_in_the_list() -> None:
    assert sorted(lessons.NAMES) == sorted(path.stem for path in lessons.FOLDER.glob("*.json") if path.stem != "list")


def say(sentence: object) -> Callable[[dict[str, Any]], object]:
    """Return a change that adds a sentence to a lesson's first step."""
    return lambda lesson: lesson["steps"][0]["say"].append(sentence)


def ask_also(value: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    """Return a change that adds a value to a lesson."""
    return lambda lesson: lesson["values"].update(more=value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lesson: lesson.pop("title"), "the lesson has no 'title'"),
        (lambda lesson: lesson.update(levels=3), "the lesson has 'levels', which nothing reads"),
        (lambda lesson: lesson.pop("otherwise"), "does not say 'otherwise'"),
        (lambda lesson: lesson["steps"][0].update(view="atention"), "in the view 'atention', which is none of"),
        (lambda lesson: lesson["steps"][0].update(select={"haed": 1}), "selects 'haed', which is no field"),
        (say("{lok.value}"), "{lok} is quoted, which is none of the values"),
        (say("{sum:percnt}"), "{sum:percnt} has no format of that name"),
        (say({"if": "{sum} is 1", "say": "."}), "the condition '{sum} is 1'"),
        (say({"say": "."}), "neither text nor an 'if'"),
        (ask_also({"route": "/v1/next"}), "does not say which 'value' of the answer"),
        (ask_also({"compute": "mean", "of": []}), "computes 'mean', which is none of"),
        (ask_also({"words": "it"}), "none of a 'word', a 'compute' of values"),
        (ask_also({"word": "it"}), "the value 'more' is quoted nowhere"),
    ],
)
def test_an_error_in_a_file_is_told(change: Callable[[dict[str, Any]], object], said: str) -> None:
    lesson = copy.deepcopy(lessons.read("six-steps"))
    change(lesson)
    assert any(said in problem for problem in lessons.problems(lesson)), lessons.problems(lesson)


DEFAULT = pytest.param(tuple(readme.DEFAULT_MODEL), marks=pytest.mark.nightly)


@pytest.mark.parametrize("arguments", [("--served-model-name", "fables"), DEFAULT])
def test_a_model_has_all_that_lessons_quote(page: Page, arguments: tuple[str, ...]) -> None:
    """Tests of the routes check the numbers (tests/model/analysis/, tests/server/dialects/)."""
    show(page, shared_server(*arguments), "server")
    for name in lessons.NAMES:
        told = lessons.say(page, lessons.read(name))
        assert not told["missing"], name
        for step in told["steps"]:
            assert step["said"], name
            assert step["chosen"] is not None, name


DOCUMENT = (ROOT / "docs" / "lessons.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"^```json\n(.*?)^```\n.*?^```text\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
PICTURES = re.findall(r"^\| ([A-E–]) \| .* \| ([\w-]+): (.*) \| (\w+)(?: `(.*)`)? \|$", DOCUMENT, re.MULTILINE)


def test_the_documents_example_is_whole_and_says_what_stands_below_it(open_view: Open) -> None:
    assert EXAMPLE
    lesson = json.loads(EXAMPLE[1])
    assert lessons.problems(lesson) == []
    steps = lessons.say(open_view("server"), lesson)["steps"]
    said = [sentence for step in steps for sentence in step["said"]]
    digits = re.compile(r"\d+(?:\.\d+)?")  # the last ones are the CPU's affair
    assert [digits.sub("0", line) for line in said] == [digits.sub("0", line) for line in EXAMPLE[2].splitlines()]


def test_the_documents_table_has_every_step_with_its_view_and_selection() -> None:
    there = {
        (name, step["title"]): (step["view"], step.get("select", {}))
        for name in lessons.NAMES
        for step in lessons.read(name)["steps"]
        if name != "tour"
    }
    assert {(name, title) for _, name, title, _, _ in PICTURES} == there.keys()
    for _, name, title, view, fields in PICTURES:
        assert view == there[name, title][0], title
        chosen = {field: str(value) for field, value in there[name, title][1].items()}
        assert dict(parse_qsl(fields)).items() <= chosen.items(), title
