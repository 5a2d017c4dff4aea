"""Reads the files of lessons, and has the page say them without drawing any view."""

import json
import re
from functools import cache
from typing import Any

from playwright.sync_api import Page

from tests.source_tree import ROOT

FOLDER = ROOT / "server" / "web" / "page" / "lessons"
QUOTE = re.compile(r"\{(\w+)((?:\.\w+|\[[^\]]*\])*)(?::(\w+))?\}")
RELATION = re.compile(r"(.+?) (>=|<=|!=|=|>|<|near) (.+)")
FUNCTIONS = ("sum", "difference", "product", "ratio", "root", "exp", "length", "dot", "cosine")
RELATIONS = (">", "<", ">=", "<=", "=", "!=", "near")
FORMATS = ("percent", "grouped", "number", "token")


def read(name: str) -> dict[str, Any]:
    """Return a lesson by its file's name."""
    lesson: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return lesson


NAMES: list[str] = json.loads((FOLDER / "list.json").read_text(encoding="utf-8"))


SAY = """
async (lessons) => {
  const { later, use } = await import(document.querySelector("script[type=module]").src);
  await later("views/lessons/card.js");
  const { Values } = use("views/lessons/values.js");
  return Promise.all(lessons.map(async (lesson) => {
    const values = new Values(lesson);
    const steps = await Promise.all(lesson.steps.map(async (step) => {
      const { said, left } = await values.say(step.say);
      return { said, left, chosen: await values.fill({ ...lesson.select, ...step.select }) };
    }));
    const found = await Promise.all(Object.keys(lesson.values).map(async (name) => [name, await values.get(name)]));
    return { steps, missing: found.filter(([, value]) => value === null).map(([name]) => name) };
  }));
}
"""


def say(page: Page, lesson: dict[str, Any]) -> dict[str, Any]:
    """Return the values that the model lacks, and of each step the sentences, how many are left out, and the fields
    that it chooses. The page must be open.
    """
    told: list[dict[str, Any]] = page.evaluate(SAY, [lesson])
    return told[0]


PAGE = FOLDER.parent


@cache
def known_views() -> frozenset[str]:
    """Return the names of the page's views."""
    return frozenset(re.findall(r'^    id: "(\w+)"', (PAGE / "views.js").read_text(encoding="utf-8"), re.MULTILINE))


@cache
def known_fields() -> frozenset[str]:
    """Return the names of the address's fields."""
    state = (PAGE / "core" / "state.js").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^  (\w+): (?:text|integer|optional|number|choice|flag)\(", state, re.MULTILINE))


NAMED = {"title", "about", "group", "text", "values", "steps"}
OPTIONAL = {"follows", "for", "otherwise", "select"}
VALUE_KINDS = ({"word", "nth", "text"}, {"compute", "of"}, {"route", "body", "value", "largest", "smallest"})


def quoted_in(part: Any) -> set[tuple[str, str | None]]:
    """Return the names, each with its format, that a part of a lesson quotes."""
    if isinstance(part, str):
        found = set()
        for name, path, how in QUOTE.findall(part):
            found |= {(name, how or None)} | quoted_in(path)
        return found
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return {found for each in inner for found in quoted_in(each)}


def problems(lesson: dict[str, Any]) -> list[str]:
    """Return the errors of a lesson, each as a sentence with the place and the accepted values."""
    found = [f"the lesson has no {name!r}" for name in sorted(NAMED - lesson.keys())]
    found += [f"the lesson has {name!r}, which nothing reads" for name in sorted(lesson.keys() - NAMED - OPTIONAL)]
    if found:
        return found
    if "for" in lesson and "otherwise" not in lesson:
        found.append("the lesson is 'for' some models and does not say 'otherwise' to the others")
    found += [said for name, given in lesson["values"].items() for said in problems_of_value(name, given)]
    found += problems_of_fields("the lesson", lesson.get("select", {}))
    for place, step in enumerate(lesson["steps"], 1):
        found += problems_of_step(f"step {place}", step)
    known = {"text", *lesson["values"]}
    literal = {"layer"}  # of the page's own: "blocks.{layer}.attn.W_Q"
    for name, how in sorted(quoted_in([lesson["values"], lesson["steps"], lesson.get("select")]), key=str):
        if name not in known | literal:
            found.append(f"{{{name}}} is quoted, which is none of the values: {', '.join(sorted(known))}")
        if how is not None and how not in FORMATS:
            found.append(f"{{{name}:{how}}} has no format of that name: {', '.join(sorted(FORMATS))}")
    used = {name for name, _ in quoted_in([lesson["values"], lesson["steps"], lesson.get("select")])}
    return found + [f"the value {name!r} is quoted nowhere" for name in lesson["values"] if name not in used]


def problems_of_value(name: str, given: dict[str, Any]) -> list[str]:
    """Return the errors of one of a lesson's values."""
    keys = given.keys()
    if not any(keys <= kind and next(iter(kind & {"word", "compute", "route"})) in keys for kind in VALUE_KINDS):
        return [f"the value {name!r} is none of a 'word', a 'compute' of values, or a 'value' of a 'route'"]
    if "route" in keys and "value" not in keys:
        return [f"the value {name!r} asks a route, and does not say which 'value' of the answer it is"]
    if "compute" in keys and given["compute"] not in FUNCTIONS:
        return [f"the value {name!r} computes {given['compute']!r}, which is none of {', '.join(FUNCTIONS)}"]
    return []


def problems_of_fields(where: str, fields: dict[str, Any]) -> list[str]:
    """Return the errors of the fields of the address that a step chooses."""
    return [f"{where} selects {field!r}, which is no field of the address" for field in fields.keys() - known_fields()]


def problems_of_step(where: str, step: dict[str, Any]) -> list[str]:
    """Return the errors of a step."""
    needed = {"view", "title", "say"}
    found = [f"{where} has no {name!r}" for name in sorted(needed - step.keys())]
    unread = sorted(step.keys() - needed - {"select", "frame", "for"})
    found += [f"{where} has {name!r}, which nothing reads" for name in unread]
    if step.get("view", "attention") not in known_views():
        found.append(f"{where} is in the view {step['view']!r}, which is none of {', '.join(sorted(known_views()))}")
    found += problems_of_fields(where, step.get("select", {}))
    for sentence in step.get("say", []):
        if isinstance(sentence, str):
            continue
        if not {"if", "say"} <= sentence.keys() <= {"if", "say", "else"}:
            found.append(f"{where} has a sentence that is neither text nor an 'if' with 'say' and perhaps 'else'")
        for one in sentence.get("if", "0 = 0").split(" and "):
            if not RELATION.fullmatch(one):
                found.append(f"{where} has the condition {one!r}, which compares nothing by {' '.join(RELATIONS)}")
    return found
