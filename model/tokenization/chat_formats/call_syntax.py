"""How a model writes its tool calls: the texts around their names and arguments. It knows no template and no tool."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<[^<>\s]+")
_NINE_CHARACTER_IDS = "[TOOL_CALLS]"


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
        return (self.prefix, self.opening, self.between, self.closing, self.next_call or "")

    def heads(self, before: Iterable[str], names: Iterable[str]) -> dict[str, str]:
        """Return each text that may stand before a call's arguments, with the tool's name; `before` is what may stand
        before the name.
        """
        befores = tuple(before)
        return {f"{each}{name}{self.between}": name for name in names for each in befores}

    def written(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return the text of calls, each a name and its arguments as JSON, as a model would write it."""
        between_calls = f"{self.closing}\n{self.opening}" if self.next_call is None else self.next_call
        bodies = [f"{name}{self.between}{arguments}" for name, arguments in calls]
        return f"{self.opening}{between_calls.join(bodies)}{self.closing}"


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
