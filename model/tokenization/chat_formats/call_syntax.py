"""Syntax of a model's tool calls: the texts around their names and arguments. Independent of templates."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<[^<>\s]+|>>+|\w+\[\{\"")
_NINE_CHARACTER_IDS = "[TOOL_CALLS]"
ID = "\0"
"""Placeholder, in the texts around a call, for an id or a number that the model writes there."""
ID_CHARACTERS = "[A-Za-z0-9_.:-]"


@dataclass(frozen=True, slots=True)
class PairSyntax:
    """The syntax of arguments that are written one by one: `before_name`, name, `after_name`, value, `after_value`.
    Texts are written without quotes, other values as JSON.
    """

    before_name: str
    after_name: str
    after_value: str
    after_name_of_json: str = ""
    """The text after the name of a value in JSON, if it differs; ID is the placeholder of the value's type."""

    quotes: tuple[str, str] = ("", "")
    """The texts between which some templates write a text that contains tags."""
    is_python: bool = False
    """True for the arguments of a call in Python: in parentheses, with commas between literals."""

    @property
    def name_ends(self) -> tuple[str, ...]:
        """Return the possible texts after a name."""
        return (self.after_name, *([self.after_name_of_json] if self.after_name_of_json else []))

    def holds(self, name: str) -> bool:
        """Return whether the calls can contain an argument of this name."""
        if self.is_python:
            return name == name.strip() and not re.search("[=)]", name)
        return all(f"{name}{end}".find(end.partition(ID)[0]) == len(name) for end in self.name_ends)


@dataclass(frozen=True, slots=True)
class BareSyntax:
    """The syntax of arguments that differ from JSON in two ways: names have no quotes, and texts have no escapes and
    `quote` on both sides.
    """

    quote: str
    comma: str = ","
    colon: str = ":"
    is_sorted: bool = False
    """Whether properties are sorted by name, at every depth."""

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Return names in the order of the text."""
        return sorted(names, key=str.lower) if self.is_sorted else list(names)

    def written(self, value: Any) -> str:
        """Return the text of a value."""
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            members = [f"{name}{self.colon}{self.written(value[name])}" for name in self.ordered(value)]
            return f"{{{self.comma.join(members)}}}"
        if isinstance(value, list):
            return f"[{self.comma.join(map(self.written, value))}]"
        return json.dumps(value)


@dataclass(frozen=True)
class CallSyntax:
    """The syntax of a message's calls: `opening`, name, `between`, arguments as JSON; then, for each further call,
    `next_call`, name, `between`, arguments; then `closing`.
    """

    opening: str
    """Empty if the prompt ends with the text before a first call."""
    between: str
    closing: str
    next_call: str | None = None
    """None if a message contains at most one call."""
    optional_end: str = ""
    """A text that may follow `closing`."""
    optional_id: str = ""
    """A text with an id that may follow the arguments of a call."""
    pairs: PairSyntax | None = None
    """The syntax of arguments that are written one by one."""
    bare: BareSyntax | None = None
    """The syntax of arguments that are nearly JSON. They are JSON if this and `pairs` are None."""
    has_ids: bool = False
    """Whether the template writes the ids of calls: the model writes a call's id at ID."""
    others: tuple["CallSyntax", ...] = ()
    """Other forms of the model's calls; they differ only in the texts around the arguments."""

    @property
    def forms(self) -> tuple["CallSyntax", ...]:
        """Return all forms of the model's calls, the template's own first."""
        return (self, *self.others)

    @property
    def trigger(self) -> str:
        """Return the beginning of `opening` that only a call may follow: its first tag, or all of it."""
        tag = _TAG.match(self.opening)
        return self.opening if tag is None else tag[0]

    @property
    def is_tagged(self) -> bool:
        """Return whether calls begin with a tag. Without one, they begin like ordinary text, such as JSON, and are
        calls only at the beginning of an answer.
        """
        return _TAG.match(self.opening) is not None

    @property
    def id_form(self) -> tuple[str, int]:
        """Return the beginning of a call's id, and the number of letters and digits after it. Mistral's templates
        accept only ids of nine characters.
        """
        return ("", 9) if self.opening.startswith(_NINE_CHARACTER_IDS) else ("call_", 24)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all texts that may occur around a call and its arguments."""
        pairs = self.pairs
        around = () if pairs is None else (pairs.before_name, *pairs.name_ends, pairs.after_value)
        quotes = () if self.bare is None else (self.bare.quote,)
        own = (self.opening, self.between, self.closing, self.next_call or "", self.optional_end, *around, *quotes)
        return (*own, *(text for other in self.others for text in other.texts))

    @property
    def after_between(self) -> tuple[str, ...]:
        """Return the possible texts at the beginning of the arguments, or after a call without arguments."""
        if self.pairs is None or self.pairs.is_python:
            return ("{",) if self.pairs is None else ("(",)
        texts = (self.pairs.before_name, self.closing, *(() if self.next_call is None else (self.next_call,)))
        return tuple(text.lstrip() for text in texts)

    def heads(self, before: str, tools: Iterable[str]) -> "Heads":
        """Return the text from `before` up to the arguments for each tool, with the tool's name and this form."""
        return {f"{before}{tool}{self.between}": (tool, self) for tool in tools}

    def written(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return the text of calls in JSON or in Python; each call is a name and its arguments as JSON."""
        between_calls = f"{self.closing}\n{self.opening}" if self.next_call is None else self.next_call
        bodies = [f"{name}{self.between}{self._written(arguments)}" for name, arguments in calls]
        return f"{self.opening}{between_calls.join(bodies)}{self.closing}"

    def _written(self, arguments: str) -> str:
        if self.pairs is None:
            return arguments
        return f"({', '.join(f'{name}={_in_python(value)}' for name, value in json.loads(arguments).items())})"


def _in_python(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


Heads = Mapping[str, tuple[str, CallSyntax]]
"""Texts before the arguments of a call, with the tool's name and the form of each."""


def num_matched(text: str, head: str) -> int | None:
    """Return the length of `head`, which may contain an id, at the beginning of `text`: -1 if more text may complete
    it, None if `text` does not begin with it.
    """
    if ID not in head:
        return len(head) if text.startswith(head) else -1 if head.startswith(text) else None
    before, _, behind = head.partition(ID)
    found = re.compile(re.escape(before) + ID_CHARACTERS + "+").match(text)
    if found is None or found.end() == len(text):
        return -1 if found is not None or before.startswith(text) else None
    length = num_matched(text[found.end() :], behind)
    return length if length in (None, -1) else found.end() + length


def id_in(text: str, head: str) -> str:
    """Return the id in the text of a head, with the tool's name if the id contains it, or "" if there is no id."""
    before, found, _ = head.partition(ID)
    runs = re.finditer(ID_CHARACTERS + "+", text if found else "")
    return next((run[0] for run in runs if run.end() > len(before)), "")


GENERIC = CallSyntax(
    opening='<tool_call>\n{"name": "',
    between='", "arguments": ',
    next_call='}\n</tool_call>\n<tool_call>\n{"name": "',
    closing="}\n</tool_call>",
)
"""The calls of models with templates without tools: the prompt describes this form."""


@dataclass(frozen=True)
class Tool:
    """The properties of a tool that the syntax of its calls depends on."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, which are an object."""
    grammar: str | None = None
    """The grammar of the arguments in llguidance's dialect of Lark, if calls write them as JSON or nearly so. If it is
    None, llguidance compiles the schema itself, for JSON.
    """
    value_grammars: Mapping[str, str | None] = field(default_factory=dict)
    """The grammars of values other than texts between tags, by the arguments' names; None if no value is possible."""

    def argument(self, name: str) -> dict[str, Any]:
        """Return the schema of an argument; {} for an unknown one."""
        properties = self.parameters.get("properties")
        return _resolved(properties.get(name) if isinstance(properties, dict) else None, self.parameters)

    def kinds(self, name: str) -> frozenset[str]:
        """Return the possible JSON types of an argument: all of them if the schema does not restrict them."""
        return _kinds(self.argument(name), self.parameters)


KIND_OF: Mapping[type, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object", list: "array",
}  # fmt: skip
"""JSON schema's type of each Python type."""
KINDS = frozenset(KIND_OF.values())
_MAX_REFERENCES = 8
"""Largest number of references that are followed, one after another: a schema may refer to itself."""


def _resolved(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the target of a schema's `$ref`, or the schema itself."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        schema = found
    return schema if isinstance(schema, dict) else {}


def _kinds(schema: dict[str, Any], root: Mapping[str, Any], *, follows_variants: bool = True) -> frozenset[str]:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list):
        return frozenset(KIND_OF[type(choice)] for choice in choices)
    own = schema.get("type")
    kinds = KINDS & {own} if isinstance(own, str) else KINDS.intersection(own) if isinstance(own, list) else KINDS
    if "number" in kinds:
        kinds |= {"integer"}
    if not follows_variants:  # the variants of variants are ignored: a schema may refer to itself many times
        return kinds
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            each = [_kinds(_resolved(variant, root), root, follows_variants=False) for variant in schema[key]]
            kinds &= frozenset.intersection(*each) if key == "allOf" else frozenset.union(*each)
    return kinds
