"""Answers that are objects: generates JSON that follows a schema, and parses it. It is pure; both clients use it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from lightwell_client._calls import as_messages, body_of, reader_of
from lightwell_client._exceptions import LightwellError
from lightwell_client._options import Message, ParseOptions
from lightwell_client._results import ChatChoice, ChatCompletion
from lightwell_client._wire import Answer, Call

T = TypeVar("T")


class NotParsed(LightwellError):
    """The answer to `parse` was cut off, calls a tool, or does not match the schema."""

    def __init__(self, message: str, completion: ChatCompletion) -> None:
        super().__init__(message)
        self.completion = completion
        """The whole answer."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """The answer to `parse`."""

    values: tuple[T, ...]
    """Value of each choice, in the order of `completion.choices`."""
    completion: ChatCompletion

    @property
    def value(self) -> T:
        """Return the value of the first choice."""
        return self.values[0]


def parse(
    model: str | None,
    messages: str | Sequence[Message],
    schema: type[Any] | Mapping[str, Any],
    options: Mapping[str, Any],
) -> Call[Parsed[Any]]:
    """Return the call for `parse`.

    Raises:
        TypeError: there is no JSON schema of `schema`.
    """
    json_schema, from_json = _schema_and_reader(schema)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": json_schema, "strict": True}}
    fields = {"model": model, "messages": as_messages(messages), "response_format": form}
    read = reader_of(ChatCompletion)

    def read_answer(answer: Answer) -> Parsed[Any]:
        completion = read(answer)
        values = tuple(_value(completion, choice, from_json) for choice in completion.choices)
        return Parsed(values, completion)

    return Call("POST", "/v1/chat/completions", read_answer, body_of(fields, options, ParseOptions), options=options)


def _schema_and_reader(schema: type[Any] | Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[[str], Any]]:
    """Return a JSON schema, and a parser of its texts. Raises TypeError if there is none."""
    if isinstance(schema, Mapping):
        return schema, json.loads
    if isinstance(schema, str):  # pydantic would take it for the name of a type
        raise TypeError(f"schema is {schema!r}; a JSON schema as a dict, or a type, is accepted")
    try:
        adapter = TypeAdapter(schema)
        return adapter.json_schema(), adapter.validate_json
    except PydanticUserError as error:
        raise TypeError(f"schema is {schema!r}, which has no JSON schema: {error.message}") from error


def _value(completion: ChatCompletion, choice: ChatChoice, from_json: Callable[[str], Any]) -> Any:
    """Return the value of a choice. Raises NotParsed."""
    text, calls = choice.message.content or "", choice.message.tool_calls
    if choice.finish_reason == "length":
        problem = 'the answer was cut off (finish_reason "length"): allow more tokens'
        raise NotParsed(f"{problem}; it begins {text[:200]!r}", completion)
    if calls:
        names = ", ".join(call.function.name for call in calls)
        raise NotParsed(f"the answer calls {names}; `completion` has the calls", completion)
    try:
        return from_json(text)
    except ValueError as error:  # pydantic's is one, too
        raise NotParsed(f"the answer {text[:200]!r} does not match the schema: {error}", completion) from error
