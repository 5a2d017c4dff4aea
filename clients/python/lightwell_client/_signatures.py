"""Signatures for help(), inspect and a notebook's Shift-Tab: each argument of the clients' methods with its type, its
default and a description. Type checkers need none of it: they read `**options: Unpack[...]`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Argument:
    """Description of an argument, in a line, and its default."""

    meaning: str
    default: Any = None
    """The server's default, which is therefore not sent: None if the line gives it, `...` if it is the client's own."""


def documented(common: tuple[type, ...], meanings: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Make a decorator that gives a class's public methods signatures and docstrings which name every argument.

    Args:
        common: TypedDicts of common arguments, which are listed last, the first of them at the very end.
        meanings: descriptions of the positional arguments.
    """

    def decorate(kind: type[T]) -> type[T]:
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                _document(method, common, meanings)
        return kind

    return decorate


def _document(method: Callable[..., Any], common: tuple[type, ...], meanings: Mapping[str, str]) -> None:
    signature = inspect.signature(method)
    parameters = {**signature.parameters}
    lines = [f"{name}: {meanings[name]}" for name in parameters if name not in ("self", "options")]
    options = parameters.pop("options", None)
    if options is not None:
        (kind,) = get_args(options.annotation)  # of Unpack
        for name, type_, argument in _arguments(kind, common):
            parameters[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=argument.default, annotation=type_)
            lines.append(f"{name}: {argument.meaning}")
    if lines:
        text, raises, errors = inspect.cleandoc(method.__doc__ or "").partition("\n\nRaises:")
        method.__doc__ = "\n    ".join([f"{text}\n\nArgs:", *lines]) + raises + errors
    method.__dict__["__signature__"] = signature.replace(parameters=list(parameters.values()))


def _arguments(kind: type, common: tuple[type, ...]) -> Iterator[tuple[str, Any, Argument]]:
    """Yield the fields of a TypedDict, each with its type and its documentation; those in `common` last."""
    hints = get_type_hints(kind, include_extras=True)
    for name in sorted(hints, key=lambda name: [name in options.__annotations__ for options in common]):
        assert get_origin(hints[name]) is Annotated, f"{kind.__name__}.{name} has no Argument"
        type_, argument = get_args(hints[name])
        yield name, type_ | None if argument.default is None else type_, argument
