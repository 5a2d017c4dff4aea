"""`parse`: answers that are objects of a type, or of a JSON schema."""

import datetime
import json
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema
import pydantic
import pytest
from typing_extensions import TypedDict

from lightwell_client import NotParsed
from tests.client.conftest import Asker
from tests.client.test_tools import CALLS, answer
from tests.client.wire_server import Reply, WireServer
from tests.server.dialects.test_structured_outputs import SCHEMA


class Animal(pydantic.BaseModel):
    """The type of the parsed answers in these tests."""

    kind: Literal["fox", "goose"]
    legs: int = pydantic.Field(ge=0, le=9)


@dataclass
class Place:
    name: str
    since: datetime.date | None = None


class Named(TypedDict):
    name: str


FOX = '{"kind": "fox", "legs": 4}'


def test_a_model_goes_as_its_schema_and_comes_back_as_an_object(ask: Asker, server: WireServer) -> None:
    server.will(answer({"content": FOX}, "stop"))
    result = ask.call("parse", "Which animal?", Animal, temperature=0)
    assert result.value == Animal(kind="fox", legs=4)
    assert result.completion.text == FOX
    sent = server.seen[0].body
    assert sent["messages"] == [{"role": "user", "content": "Which animal?"}]
    assert sent["temperature"] == 0
    form = {"name": "answer", "schema": Animal.model_json_schema(), "strict": True}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": form}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (SCHEMA, '{"name": "x", "legs": 2}', {"name": "x", "legs": 2}),
        (Place, '{"name": "Bern", "since": "1191-01-01"}', Place("Bern", datetime.date(1191, 1, 1))),
        (Named, '{"name": "Bern"}', {"name": "Bern"}),
        (list[int], "[1, 2]", [1, 2]),
    ],
)
def test_other_types_and_schemas_are_read_too(
    ask: Asker, server: WireServer, schema: Any, text: str, value: Any
) -> None:
    server.will(answer({"content": text}, "stop"))
    assert ask.call("parse", "Hi", schema).value == value
    sent = server.seen[0].body["response_format"]["json_schema"]["schema"]
    jsonschema.validate(json.loads(text), sent)
    if isinstance(schema, dict):
        assert sent == schema


def test_each_choice_is_parsed(ask: Asker, server: WireServer) -> None:
    goose = FOX.replace("fox", "goose")
    choices = [
        {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for number, text in enumerate((FOX, goose))
    ]
    server.will(Reply(body={"choices": choices}))
    result = ask.call("parse", "Which animals?", Animal, n=2)
    assert [animal.kind for animal in result.values] == ["fox", "goose"]


@pytest.mark.parametrize(
    ("message", "finish_reason", "problem"),
    [
        ({"content": '{"kind": "fo'}, "length", r"cut off \(finish_reason \"length\"\).*allow more tokens.*\"fo"),
        ({"content": FOX}, "length", "cut off"),
        ({"content": None, "reasoning": "Hm"}, "length", "cut off"),
        ({"content": None, "tool_calls": CALLS}, "tool_calls", "calls get_weather, get_time"),
        ({"content": '{"kind": "cow", "legs": 4}'}, "stop", "'fox' or 'goose'"),
        ({"content": "A fox."}, "stop", "'A fox.' does not match the schema: (?s:.*)Invalid JSON"),
        ({"content": None}, "stop", "does not match the schema"),
    ],
)
def test_an_answer_that_is_no_object_says_why_and_is_not_lost(
    ask: Asker, server: WireServer, message: dict[str, Any], finish_reason: str, problem: str
) -> None:
    server.will(answer(message, finish_reason))
    with pytest.raises(NotParsed, match=problem) as caught:
        ask.call("parse", "Which animal?", Animal)
    assert caught.value.completion.choices[0].finish_reason == finish_reason
    assert caught.value.completion.message.content == message["content"]


@pytest.mark.parametrize("schema", [object(), Asker, "Animal", 3])
def test_what_has_no_schema_is_refused_before_anything_is_sent(ask: Asker, server: WireServer, schema: Any) -> None:
    with pytest.raises(TypeError, match="schema is "):
        ask.call("parse", "Hi", schema)
    with pytest.raises(TypeError, match="no argument 'response_format'"):
        ask.call("parse", "Hi", Animal, response_format={"type": "text"})
    assert server.seen == []
