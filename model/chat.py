"""Chat messages to prompt text, through the model's own jinja template, in a sandbox.

Renders what `transformers` renders (`apply_chat_template`): the same jinja options, extensions, filters, globals and
variables. Adds what a server needs against a template that would hang or fill memory: a budget for loop steps, for
repeated texts and for the output. Knows one template; refuses to know requests, roles and torch.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from model.tokenizer import Encoding, Tokenizer

MAX_OUTPUT_CHARS = 8_000_000
"""Longest text a template may write or put together."""
MAX_LOOP_STEPS = 1_000_000
"""Most turns of all loops of one rendering together."""
_BUDGET = "_lightwell_budget"
_COUNTED = "_lightwell_counted"
_BOUNDED = "_lightwell_bounded"


class ChatTemplateError(ValueError):
    """The template is broken, or it refused or could not render these messages. The message is one line."""


class ChatTemplate:
    """A compiled chat template. Rendering changes nothing, so any number of threads may render."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compile `source`. Raises `ChatTemplateError` with the line of a syntax error."""
        self.source = source
        self._tokenizer = tokenizer
        try:
            self._template = _Environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template, line {error.lineno}: {_one_line(error)}") from error
        except Exception as error:
            raise ChatTemplateError(f"chat template: {_one_line(error)}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation.

        `messages` hold plain JSON values; entries that are None are left out, as if the key were missing. With
        `add_generation_prompt` the text ends where the assistant's answer begins.

        Raises `ChatTemplateError` when there is no message, when the template raises (`raise_exception`), fails on
        these messages, or exceeds its budget.
        """
        if not messages:
            raise ChatTemplateError("messages is empty; a chat needs at least one message")
        variables = {
            **self._tokenizer.special_tokens,
            "messages": [{key: value for key, value in row.items() if value is not None} for row in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            _BUDGET: _Budget(),
        }
        parts: list[str] = []
        written = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                written += len(part)
                _check_length(written)
        except Exception as error:
            # A template is a program from outside: whatever it does wrong is this conversation's error, not ours.
            raise ChatTemplateError(f"chat template: {_one_line(error)}") from error
        return "".join(parts)

    def encode(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> Encoding:
        """The prompt ids of a conversation.

        No special tokens are added: the template writes those it wants, so a template that writes the beginning token
        gets no second one. `transformers` and vLLM do the same.
        """
        text = self.render(messages, add_generation_prompt)
        return self._tokenizer.encode(text, add_special_tokens=False)


def read_template_option(option: str) -> str:
    """The source of a template given as a file's path or as the template itself (`--chat-template`).

    Raises `ChatTemplateError` when it is neither.
    """
    if "{" in option:
        return option
    try:
        return Path(option).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = _one_line(error)
        raise ChatTemplateError(f"chat template {option!r} is neither a jinja template nor a file: {reason}") from error


class _Budget:
    """The loop steps left to one rendering."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_STEPS

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise jinja2.TemplateRuntimeError(f"the template loops more than {MAX_LOOP_STEPS} times")

    def count(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.spend(1)
            yield value


@jinja2.pass_context
def _counted(context: Context, values: Any) -> Any:
    """What every `for` runs over: the same values, charged to the budget."""
    budget: _Budget = context[_BUDGET]
    if isinstance(values, Sized):
        budget.spend(len(values))
        return values
    return budget.count(values)


def _bounded(value: Any) -> Any:
    """The value, unless it is a text, a list or a number that has grown out of bounds."""
    if isinstance(value, str | list | tuple):
        _check_length(len(value))
    elif isinstance(value, int):
        _check_length(value.bit_length())
    return value


def _check_length(length: int) -> None:
    if length > MAX_OUTPUT_CHARS:
        raise jinja2.TemplateRuntimeError(f"the template makes a value of more than {MAX_OUTPUT_CHARS} characters")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is written as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja reads it from the class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _TemplateNamespace(Namespace):
    """jinja's `namespace`, without names that could reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateRuntimeError(f"namespace attribute {name!r} may not begin with an underscore")


class _TemplateDict:
    """`dict` in templates: it makes dictionaries and has nothing else to reach for."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Bounds(NodeTransformer):
    """Puts a guard around what every loop runs over and around every joined text (`~`)."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _COUNTED, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return nodes.Filter(node, _BOUNDED, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The jinja environment of chat templates, every loop and repetition of which is bounded."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters |= {"tojson": _tojson, _COUNTED: _counted, _BOUNDED: _bounded}
        own: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _strftime_now}
        self.globals |= own | {"dict": _TemplateDict(), "namespace": _TemplateNamespace}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    _check_length(len(value) * times)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_length(left.bit_length() * right)
        return _bounded(super().call_binop(context, operator, left, right))


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter would escape <, > and & for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
