"""Builds the jinja environment of chat templates: what `transformers` gives them, in a sandbox that no template can
make hang.

There are two bounds that need each other. Time: what takes more than `MAX_SECONDS` of CPU time is interrupted, which
works between the steps of Python only. Size: so that no single step takes long, nothing may make or read a value of
more than `MAX_SIZE`, all that it holds counted as often as it is held. What could exceed it in one step is checked
before: a repetition, a replacement, a join, a width. A few of jinja's filters and of Python's methods that no chat
template needs are left out, as it would take more to bound them.

It knows one template's rules, but no conversations.
"""

import contextlib
import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SIZE = 8_000_000
"""Most characters and entries of a value, or of the output."""
MAX_LOOP_STEPS = 1_000_000
"""Most steps of all loops of one rendering together."""
MAX_SECONDS = 2.0
"""Most CPU time for one rendering or one compilation."""
MAX_INT_BITS = 4096
_MAX_WIDTH = 1000
"""The largest indentation, number of digits after rounding, separator, or format of a date."""
BUDGET = "_lightwell_budget"
_COUNTED = "_lightwell_counted"
_JOINED = "_lightwell_joined"
_CHECKED = "_lightwell_checked"

_LEFT_OUT_FILTERS = (
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "truncate", "urlencode", "urlize",
    "wordwrap", "xmlattr",
)  # fmt: skip
_LEFT_OUT_METHODS = frozenset(
    {"center", "encode", "expandtabs", "from_bytes", "ljust", "maketrans", "rjust", "to_bytes", "translate", "zfill"}
)
_PERCENT_WIDTH = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")
_BRACE_WIDTH = re.compile(r":[^{}]*?(\d+)(?:[^{}\d]+(\d+))?")


# ---- time


class _TimeIsOver(jinja2.TemplateRuntimeError):
    pass


@contextlib.contextmanager
def bounded_time() -> Iterator[None]:
    """Interrupt what runs after MAX_SECONDS of this process's CPU time: raises TemplateRuntimeError.

    Only the main thread, in which a server's event loop runs, can be interrupted; elsewhere nothing is bounded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, _interrupt)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _TimeIsOver(f"the template takes more than {MAX_SECONDS:g} s")


class Budget:
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
    """Return what a `for` runs over: the same values, charged to the budget."""
    budget: Budget = context[BUDGET]
    if isinstance(values, Sized):
        budget.spend(len(values))
        return values
    return budget.count(values)


# ---- sizes


def check_size(size: int) -> None:
    """Raise TemplateRuntimeError for a value, or an output, of that size, if it is too large."""
    if size > MAX_SIZE:
        raise jinja2.TemplateRuntimeError(f"the template makes a value of more than {MAX_SIZE} characters")


def _size_of(value: Any) -> int:
    """Return the characters and entries of a value. What it holds twice counts twice, as it would be written or
    compared twice.
    """
    size, left = 0, [value]
    while left:
        value = left.pop()
        if isinstance(value, str | list | tuple | dict):
            size += len(value)
            check_size(size)
        if isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value
            left += value.values()
        elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise jinja2.TemplateRuntimeError(f"the template makes a number of more than {MAX_INT_BITS} bits")
    return size


def _checked(value: Any) -> Any:
    """Return the value, unless it has grown out of bounds."""
    if isinstance(value, str):  # nearly always
        check_size(len(value))
    else:
        _size_of(value)
    return value


def _join(parts: Iterable[str]) -> str:
    parts = list(parts)
    check_size(sum(map(len, parts)))
    return "".join(parts)


def _joined(values: Iterable[Any]) -> str:
    """Return what `~` makes of its operands."""
    return _join(map(str, values))


def _check_repeated(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            check_size(len(value) * times)


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > 2 * MAX_INT_BITS:
        raise jinja2.TemplateRuntimeError(f"the template makes a number of more than {MAX_INT_BITS} bits")


def _check_format(form: str, values: Any, sign: str, widths: re.Pattern[str]) -> None:
    """Check that neither widths nor values repeated by name make a text too large. `sign` begins a placeholder in
    `form`.
    """
    found = [width for widths_of_one in widths.findall(form) for width in widths_of_one if width]
    if "*" in found or any(len(width) > len(str(MAX_SIZE)) for width in found):
        raise jinja2.TemplateRuntimeError("the template formats with a width that is not accepted")
    times = 1 if sign == "%" and not isinstance(values, dict) else form.count(sign)  # by place each is used once
    check_size(len(form) + sum(map(int, found)) + times * _size_of(values))


def _check_replacement(text: str, old: str, new: str, *more: Any) -> None:
    check_size(len(text) + text.count(old) * len(new))


def _check_joint(separator: str, values: list[Any]) -> None:
    check_size(_size_of(values) + len(separator) * len(values))


def _narrow(width: Any, what: str) -> None:
    """Raise TemplateRuntimeError for a width larger than any template needs."""
    size = len(width) if isinstance(width, str) else width
    if isinstance(size, int) and abs(size) > _MAX_WIDTH:
        raise jinja2.TemplateRuntimeError(f"{what} of more than {_MAX_WIDTH} is not accepted")


# ---- what templates call


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    _narrow(form, "a form of a date")
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter would escape <, > and & for HTML.
    for width in (indent, *(separators or ())):
        _narrow(width, "an indentation or separator")
    _size_of(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _sum(values: Iterable[Any], start: float = 0) -> Any:
    """Return the sum of numbers: lists added one to the next would be copied again each time."""
    if not isinstance(start, int | float):
        raise jinja2.TemplateRuntimeError("sum takes numbers")
    return sum(values, start)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _narrow(width, "an indentation")
    check_size(len(text) + (1 + text.count("\n")) * (len(width) if isinstance(width, str) else width))
    return jinja2.filters.do_indent(text, width, first, blank)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    _narrow(precision, "a precision")
    return jinja2.filters.do_round(value, precision, method)


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text = str(value)
    _check_replacement(text, str(old), str(new))
    return text.replace(str(old), str(new), -1 if count is None else count)


@jinja2.pass_environment
def _join_filter(environment: jinja2.Environment, values: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = map(jinja2.filters.make_attrgetter(environment, attribute), values)
    values = list(values)
    _check_joint(str(d), values)
    return str(d).join(map(str, values))


def _format_filter(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise jinja2.TemplateRuntimeError("format takes values by place or by name, not both")
    _check_format(str(value), kwargs or list(args), "%", _PERCENT_WIDTH)
    return str(value) % (kwargs or args)


class _Generation(Extension):
    """The `{% generation %}` tag, which marks the assistant's text for training; here its body is written as it is."""

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
    """`dict` in templates: it makes dictionaries and has no other attributes to reach."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


# ---- the environment


class _Bounds(NodeTransformer):
    """Puts a guard around what every loop runs over, every joined text (`~`) and every list that is written out."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _guarded(_COUNTED, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _guarded(_JOINED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Filter:
        self.generic_visit(node)
        return _guarded(_CHECKED, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Filter:
        self.generic_visit(node)
        return _guarded(_CHECKED, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _guarded(_CHECKED, node) if node.ctx == "load" else node


def _guarded(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The jinja environment of chat templates, every step of which is bounded."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    concat = staticmethod(_join)  # of what blocks and macros write

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        own_filters: dict[str, Callable[..., Any]] = {
            "tojson": _tojson, "sum": _sum, "indent": _indent, "round": _round, "replace": _replace,
            "join": _join_filter, "format": _format_filter,
        }  # fmt: skip
        kept = {name: filter_ for name, filter_ in self.filters.items() if name not in _LEFT_OUT_FILTERS}
        self.filters = {name: _with_checked_result(filter_) for name, filter_ in (kept | own_filters).items()}
        self.filters |= {_COUNTED: _counted, _JOINED: _joined, _CHECKED: _checked}
        own: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _strftime_now}
        self.globals |= own | {"dict": _TemplateDict(), "namespace": _TemplateNamespace}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_repeated(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right, "%", _PERCENT_WIDTH)
        return _checked(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_left_out = isinstance(obj, str | int) and attr in _LEFT_OUT_METHODS
        return not is_left_out and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, [*args, kwargs], "{", _BRACE_WIDTH)
            if "{" in "".join(re.findall(r":[^}]*", value.__self__)):
                raise jinja2.TemplateRuntimeError("the template formats with a width that is not accepted")
            return wrapped(*args, **kwargs)

        return bounded

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and __obj.__name__ == "replace" and len(args) >= 2:
            _check_replacement(text, *args)
        elif isinstance(text, str) and __obj.__name__ == "join" and args:
            args = (list(args[0]),)
            _check_joint(text, args[0])
        return _checked(super().call(__context, __obj, *args, **kwargs))


def _with_checked_result(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with a check that its result is within bounds; what jinja passes to it besides the value stays
    the same.
    """

    def checked(*args: Any, **kwargs: Any) -> Any:
        return _checked(filter_(*args, **kwargs))

    checked.__dict__.update(getattr(filter_, "__dict__", {}))  # jinja's marks: pass the context, the environment
    return checked
