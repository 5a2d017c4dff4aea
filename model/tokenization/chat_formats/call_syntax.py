"""How a model writes its tool calls: the texts around their names and arguments. It knows no template and no tool."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<[^<>\s]+")
_NINE_CHARACTER_IDS = "[TOOL_CALLS]"


@dataclass(frozen=True, slots=True)
class PairSyntax:
    """How arguments are written that are no JSON: for each `before_name`, its name, `after_name`, its value,
    `after_value`. Values that are text are written as they are, others as JSON.
    """

    before_name: str
    after_name: str
    after_value: str


@dataclass(frozen=True)
class CallSyntax:
    """The calls of a message are `opening`, name, `between`, arguments as JSON; then, for each further one,
    `next_call`, name, `between`, arguments; then `closing`.
    """

    opening: str
    between: str
    closing: str
    next_call: str | None = None
    """None where a message holds one call."""
    prefix: str = ""
    """What some answers have before `opening`, such as a token that says that a call follows."""
    pairs: PairSyntax | None = None
    """How arguments are written, if not as JSON."""

    @cached_property
    def trigger(self) -> str:
        """Return the beginning of `opening` after which nothing but a call may follow: its first tag, or all of it."""
        tag = _TAG.match(self.opening)
        return self.opening if tag is None else tag[0]

    @property
    def is_tagged(self) -> bool:
        """Return whether calls begin with a tag. Those that do not begin like ordinary text, such as JSON, and are
        calls only where they begin an answer.
        """
        return _TAG.match(self.opening) is not None

    @property
    def id_form(self) -> tuple[str, int]:
        """Return what a call's id begins with, and how many letters and digits follow. Mistral's templates take ids of
        nine characters alone.
        """
        return ("", 9) if self.opening.startswith(_NINE_CHARACTER_IDS) else ("call_", 24)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all texts that may stand around a call."""
        pairs = self.pairs
        around = () if pairs is None else (pairs.before_name, pairs.after_name, pairs.after_value)
        return (self.prefix, self.opening, self.between, self.closing, self.next_call or "", *around)

    @property
    def after_between(self) -> tuple[str, ...]:
        """Return the texts with one of which arguments begin, or what follows a call that has none."""
        if self.pairs is None:
            return ("{",)
        return (self.pairs.before_name, self.closing, *(() if self.next_call is None else (self.next_call,)))

    def heads(self, before: Iterable[str], names: Iterable[str]) -> dict[str, str]:
        """Return each text that may stand before a call's arguments, with the tool's name; `before` is what may stand
        before the name.
        """
        befores = tuple(before)
        return {f"{each}{name}{self.between}": name for name in names for each in befores}

    def written(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return the text of calls, each a name and its arguments as JSON, as a model would write it."""
        between_calls = f"{self.closing}\n{self.opening}" if self.next_call is None else self.next_call
        bodies = [f"{name}{self.between}{self._written(arguments)}" for name, arguments in calls]
        return f"{self.opening}{between_calls.join(bodies)}{self.closing}"

    def _written(self, arguments: str) -> str:
        pairs = self.pairs
        if pairs is None:
            return arguments
        return "".join(
            f"{pairs.before_name}{name}{pairs.after_name}"
            f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}{pairs.after_value}"
            for name, value in json.loads(arguments).items()
        )


GENERIC = CallSyntax(
    opening='<tool_call>\n{"name": "',
    between='", "arguments": ',
    next_call='}\n</tool_call>\n<tool_call>\n{"name": "',
    closing="}\n</tool_call>",
)
"""The calls of models whose templates know no tools: the prompt asks for this form."""


@dataclass(frozen=True)
class Tool:
    """A tool, as far as a call's syntax depends on it."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, which are an object."""

    def is_text(self, name: str) -> bool:
        """Return whether an argument is text, or one of several types of which one is."""
        return _is_text(self.property(name), self.parameters)

    def property(self, name: str) -> Any:
        """Return the schema of an argument, or None if the tool names none."""
        properties = self.parameters.get("properties")
        return properties.get(name) if isinstance(properties, dict) else None


_MAX_REFERENCES = 8
"""References that are followed: a schema may refer to itself."""


def _is_text(schema: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found: Any = root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return _is_text(found, root, depth + 1)
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list):
        return all(isinstance(option, str) for option in options)
    kinds = schema.get("type")
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return True
    variants = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(_is_text(variant, root, depth + 1) for variant in variants)
