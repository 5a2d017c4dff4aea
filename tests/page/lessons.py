"""Reads lessons as the page does, in a second implementation: the choices and sentences of each step for the served
model.
"""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.error import HTTPError

from tests.page.conftest import ask, percent, written
from tests.source_tree import ROOT
from tests.support.processes import Server

FOLDER = ROOT / "server" / "web" / "page" / "lessons"
QUOTE = re.compile(r"\{(\w+)((?:\.\w+|\[[^\]]*\])*)(?::(\w+))?\}")
RELATION = re.compile(r"(.+?) (>=|<=|!=|=|>|<|near) (.+)")


def flat(parts: Any) -> list[float]:
    """Return the numbers of nested lists."""
    return [number for part in parts for number in flat(part)] if isinstance(parts, (list, tuple)) else [parts]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


FUNCTIONS: dict[str, Callable[..., float]] = {
    "sum": lambda *parts: math.fsum(flat(parts)),
    "difference": lambda a, b: a - b,
    "product": lambda *parts: math.prod(parts),
    "ratio": lambda a, b: a / b,
    "root": math.sqrt,
    "exp": math.exp,
    "length": lambda a: math.hypot(*a),
    "dot": dot,
    "cosine": lambda a, b: dot(a, b) / (math.hypot(*a) * math.hypot(*b)),
}
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "near": lambda a, b: math.isclose(a, b, rel_tol=0.01),
}
PLACES = {
    "layer": "layers", "head": "heads", "query": "query_positions", "key": "key_positions", "position": "positions",
}  # fmt: skip


def grouped(number: float) -> str:
    """Return a whole number as the page writes it, with thin spaces."""
    return f"{round(number):,}".replace(",", "\u202f")


def shown_number(number: float) -> str:
    """Return a number as a sentence without a format has it."""
    return grouped(number) if number == int(number) else written(number)


FORMATS: dict[str, Callable[[Any], str]] = {
    "percent": percent, "grouped": grouped, "number": written, "token": lambda token: token.strip() or token,
}  # fmt: skip


def read(name: str) -> dict[str, Any]:
    """Return a lesson by its file's name."""
    lesson: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return lesson


NAMES: list[str] = json.loads((FOLDER / "list.json").read_text(encoding="utf-8"))


def at(value: Any, path: str) -> Any:
    """Return the value at a path in an answer, or None."""
    for whole, bracketed in re.findall(r"(\[([^\]]*)\]|[^.[\]]+)", path):
        step = bracketed if whole.startswith("[") else whole
        name, is_search, wanted = step.partition("=")
        if value is None:
            return None
        if is_search:
            value = next((one for one in value if str(one.get(name)) == wanted), None)
        elif isinstance(value, list):
            if step == "length":
                value = len(value)
            else:
                value = value[int(step)] if -len(value) <= int(step) < len(value) else None
        else:
            value = value.get(step)
    return value


def places(lists: Any, *before: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return all numbers of nested lists, each with its place."""
    if not isinstance(lists, list):
        return [] if lists is None else [(lists, before)]
    return [found for i, inner in enumerate(lists) for found in places(inner, *before, i)]


@cache
def answered(server: Server, route: str, body: str) -> Any:
    """Return a route's answer to a body, both as JSON; each request is sent once, as on the page."""
    return ask(server, route, json.loads(body))


class Replayed:
    """A lesson on the model that a server serves."""

    def __init__(self, lesson: dict[str, Any], server: Server) -> None:
        self.lesson = lesson
        self.asked: list[tuple[str, Any, Any]] = []
        """Route, body and answer of every request, for tests that check the numbers in another way."""
        self._server = server
        self.value = cache(self._value)

    def _ask(self, route: str, body: Any = None) -> Any:
        answer = answered(self._server, f"/{route.removeprefix('/')}", json.dumps(body))
        self.asked.append((route, body, answer))
        return answer

    def _value(self, name: str) -> Any:
        if name == "text":
            return self.lesson["text"]
        given = self.fill(self.lesson["values"][name])
        if given is None:
            return None
        if "word" in given:
            return self._position({"text": self.lesson["text"], "nth": 1} | given)
        try:
            if "compute" in given:
                return FUNCTIONS[given["compute"]](*given["of"])
            answer = self._ask(given["route"], given.get("body"))
        except ArithmeticError:
            return None
        except HTTPError as error:
            if error.code >= 429:  # busy, or away
                raise
            return None  # refused: this model lacks the route or its parts
        start = answer
        if isinstance(answer.get("data"), list) and not given["value"].startswith("data"):
            start = answer["data"][0]
        found = at(start, given["value"])
        names = given.get("largest") or given.get("smallest")
        if found is None or not names:
            return found
        pick = max if "largest" in given else min
        value, place = pick(places(found), key=lambda one: one[0])
        named = {
            name: start[PLACES[name]][i] if PLACES.get(name) in start else i
            for name, i in zip(names, place, strict=False)
        }
        return {"value": value, **named}

    def _position(self, given: dict[str, Any]) -> int | None:
        begins = [found.start() for found in re.finditer(re.escape(given["word"]), given["text"])]
        if len(begins) < given["nth"]:
            return None
        end = begins[given["nth"] - 1] + len(given["word"])
        offsets = self._ask("/tokenize", {"prompt": given["text"], "return_offsets": True})["offsets"]
        return max((i for i, (first, after) in enumerate(offsets) if first < end and after > first), default=None)

    def fill(self, part: Any, write: Callable[[float], str] = str) -> Any:
        """Return a part of the lesson with its quotes replaced by their values, or None if a value is missing."""
        if isinstance(part, str):
            return self._fill_text(part, write)
        if isinstance(part, dict):
            values = self.fill(list(part.values()), write)
            return None if values is None else dict(zip(part, values, strict=True))
        if isinstance(part, list):
            filled = [self.fill(inner, write) for inner in part]
            return None if any(a is None and b is not None for a, b in zip(filled, part, strict=True)) else filled
        return part

    def _fill_text(self, text: str, write: Callable[[float], str]) -> Any:
        if alone := QUOTE.fullmatch(text):
            return self._quoted(alone)
        parts, end = [], 0
        for match in QUOTE.finditer(text):
            value = self._quoted(match)
            if value is None:
                return None
            parts += [text[end : match.start()], value if isinstance(value, str) else write(value)]
            end = match.end()
        return "".join(parts) + text[end:]

    def _quoted(self, match: re.Match[str]) -> Any:
        name, path, how = match.groups()
        if name not in {"text", *self.lesson["values"]}:
            return match[0]  # the page's own fields have such names: blocks.{layer}.attn.W_Q
        steps = self._fill_text(path, str)
        found = None if steps is None else at(self.value(name), steps)
        return found if found is None or not how else FORMATS[how](found)

    def holds(self, condition: str) -> bool:
        """Return whether a condition is true of the model."""
        for one in condition.split(" and "):
            match = RELATION.fullmatch(one)
            assert match, f"{one!r} is no relation of two values"
            a, b = (as_number(self.fill(side)) for side in (match[1], match[3]))
            if a is None or b is None or not RELATIONS[match[2]](a, b):
                return False
        return True

    def said(self, step: dict[str, Any]) -> list[str]:
        """Return the sentences that are true of the model."""
        said = []
        for sentence in step["say"]:
            words = sentence
            if not isinstance(sentence, str):
                words = sentence["say"] if self.holds(sentence["if"]) else sentence.get("else")
            filled = None if words is None else self.fill(words, shown_number)
            if filled:
                said.append(filled if isinstance(filled, str) else shown_number(filled))
        return said

    def look(self, step: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the address that a step chooses, without fields that have no value."""
        given = {"text": self.lesson["text"], **self.lesson.get("select", {}), **step.get("select", {})}
        return {field: value for field, inner in given.items() if (value := self.fill(inner)) is not None}


def as_number(side: Any) -> Any:
    """Return a side of a relation, as a number where it reads as one, true and false as words."""
    if side is None or isinstance(side, bool):
        return side if side is None else str(side).lower()
    try:
        return float(side)
    except ValueError:
        return side


PAGE = FOLDER.parent


@cache
def known_views() -> frozenset[str]:
    """Return the names of the page's views."""
    return frozenset(re.findall(r'^    id: "(\w+)"', (PAGE / "views.js").read_text(encoding="utf-8"), re.MULTILINE))


@cache
def known_fields() -> frozenset[str]:
    """Return the names of the address's fields."""
    state = (PAGE / "core" / "state.js").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^  (\w+): (?:text|integer|number|choice|flag)\(", state, re.MULTILINE))


NAMED = {"title", "about", "text", "values", "steps"}
OPTIONAL = {"follows", "for", "otherwise", "select"}
VALUE_KINDS = (
    {"word", "nth", "text"},
    {"compute", "of"},
    {"route", "body", "value", "largest", "smallest"},
)


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
