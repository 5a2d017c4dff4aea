"""Structured outputs: schemas, patterns, choices and grammars, by every name that clients use, with a real network."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest

from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, events_of, site
from tests.tiny import make_variant

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,5}$"},
        "legs": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}
GBNF = 'root ::= "yes" | "no" [0-9]'
EBNF = 'root ::= answer\nanswer ::= "yes" | "no" [0-9]'
LARK = 'start: "yes" | "no" /[0-9]/'
TAGS = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}
CHOICES = ["up", "down", 'a "quoted" one']
JSON_FIELDS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"response_format": {"type": "json_object", "value": SCHEMA}},
    {"response_format": {"type": "json", "value": json.dumps(SCHEMA)}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    {"guided_json": SCHEMA, "guided_decoding_backend": "guidance"},
    {"json_schema": SCHEMA},
    {"json_schema": json.dumps(SCHEMA), "grammar": "", "response_format": {"type": "text"}},
]
PATTERN_FIELDS: list[dict[str, Any]] = [
    {"structured_outputs": {"grammar": LARK}},
    {"structured_outputs": {"grammar": EBNF}},
    {"guided_grammar": EBNF},
    {"grammar": GBNF},
    {"ebnf": EBNF},
    {"structured_outputs": {"regex": "yes|no[0-9]"}},
    {"guided_regex": "yes|no[0-9]"},
    {"regex": "yes|no[0-9]"},
    {"response_format": {"type": "regex", "value": "yes|no[0-9]"}},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    return InlineEngine(folder=make_variant("llama-gqa", tmp_path_factory.mktemp("llama")))


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site(engine.folder, engine, config=engine.model_config) as built:
        yield built


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": "Once"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Once"}]}
    return {**asked, "max_tokens": 44, "temperature": 1.0, **fields}


def texts_of(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]


async def answered(at: Site, path: str, **fields: Any) -> dict[str, Any]:
    answer = await at.post(path, body_of(path, **fields))
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    assert {choice["finish_reason"] for choice in read["choices"]} == {"stop"}
    return read


@pytest.mark.parametrize(
    ("path", "fields"),
    [*((CHAT, fields) for fields in JSON_FIELDS), (COMPLETIONS, JSON_FIELDS[0])],  # both routes have the same fields
)
async def test_json_keeps_to_its_schema_by_every_name(at: Site, path: str, fields: dict[str, Any]) -> None:
    for text in texts_of(await answered(at, path, n=2, **fields)):
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("fields", PATTERN_FIELDS, ids="+".join)
async def test_patterns_and_grammars_hold_by_every_name(at: Site, fields: dict[str, Any]) -> None:
    (text,) = texts_of(await answered(at, COMPLETIONS, **fields))
    assert re.fullmatch("yes|no[0-9]", text)


@pytest.mark.parametrize("fields", [{"guided_choice": CHOICES}, {"structured_outputs": {"choice": CHOICES}}])
async def test_an_answer_is_one_of_the_choices(at: Site, fields: dict[str, Any]) -> None:
    texts = texts_of(await answered(at, CHAT, n=8, **fields))
    assert set(texts) <= set(CHOICES)


async def test_any_object_is_json(at: Site) -> None:
    answer = (await at.post(CHAT, body_of(CHAT, response_format={"type": "json_object"}, n=4))).json()
    for choice in answer["choices"]:
        text = choice["message"]["content"]
        assert text.startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


async def test_between_tags_the_text_keeps_to_the_schema(at: Site) -> None:
    tags = {**TAGS, "triggers": ["<"]}
    bias = {str(token): 100.0 for token in at.model.tokenizer.encode("<", False).ids}
    answer = await at.post(COMPLETIONS, body_of(COMPLETIONS, structural_tag=json.dumps(tags), logit_bias=bias))
    (text,) = texts_of(answer.json())
    for found in re.findall("<a>(.*?)</a>", text):
        jsonschema.validate(json.loads(found), SCHEMA)
    assert re.match("[^<]*<a>", text)


async def test_a_stream_brings_the_same_text_token_by_token(at: Site) -> None:
    fields = {"guided_json": SCHEMA, "seed": 4, "return_token_ids": True}
    whole = (await answered(at, CHAT, **fields))["choices"][0]
    *chunks, end = events_of(await at.post(CHAT, body_of(CHAT, stream=True, **fields)))
    assert end == "[DONE]"
    pieces = [chunk["choices"][0] for chunk in chunks]
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == whole["message"]["content"]
    assert [i for piece in pieces for i in piece.get("token_ids", ())] == whole["token_ids"]
    assert pieces[-1]["finish_reason"] == "stop"


async def test_what_comes_with_tokens_comes_with_every_one(at: Site) -> None:
    fields = {"guided_json": SCHEMA, "seed": 4, "return_token_ids": True}
    plain = (await answered(at, CHAT, **fields))["choices"][0]
    looked = await answered(at, CHAT, logprobs=True, top_logprobs=2, attention={"layers": 0, "heads": [1]}, **fields)
    (choice,) = looked["choices"]
    assert choice["token_ids"] == plain["token_ids"]
    assert len(choice["logprobs"]["content"]) == len(plain["token_ids"])
    assert choice["attention"]["shape"][2] == len(plain["token_ids"])


async def test_stop_strings_end_a_text_within_its_grammar(at: Site) -> None:
    answer = await answered(at, CHAT, guided_json=SCHEMA, stop=['"legs"'])
    assert re.fullmatch(r'\{"name": ".*", ', texts_of(answer)[0])
    assert answer["choices"][0]["stop_reason"] == '"legs"'


async def test_interventions_change_the_words_and_not_the_form(at: Site) -> None:
    change = [{"point": "hook_resid_post", "layer": 1, "op": "scale", "value": -3.0}]
    answer = await answered(at, CHAT, guided_json=SCHEMA, interventions=change)
    jsonschema.validate(json.loads(texts_of(answer)[0]), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"guided_json": {"type": "objekt"}}, "guided_json.type", "objekt"),
        ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json.properties.a.not", "not"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}}},
            "response_format.json_schema.schema.$ref",
            "#/x",
        ),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_object", "value": {"type": "no"}}}, "response_format.value.type", "no"),
        ({"response_format": {"type": "json"}}, "response_format.value", "required"),
        (
            {"response_format": {"type": "regex", "value": {"type": "object"}}},
            "response_format.value",
            "regular expression",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "not closed"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1"),
        ({"grammar": "root ::= ("}, "grammar", "line 1"),
        ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar", "line 1: the syntax"),
        ({"structured_outputs": {"grammar": 'start: "flag" b\nb: /(a/'}}, "structured_outputs.grammar", "line 2: a br"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "a rule or terminal is used"),
        ({"guided_json": {"type": "string", "pattern": "(?=a)b"}}, "guided_json.pattern", "look-ahead"),
        ({"guided_json": {"enum": ["a"], "pattern": "a)"}}, "guided_json.pattern", "character 1"),
        ({"structured_outputs": {"yaml": 1}}, "structured_outputs.yaml", "no such field"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "guided_regex"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_path(
    at: Site, fields: dict[str, Any], param: str, told: str
) -> None:
    answer = await at.post(COMPLETIONS, body_of(COMPLETIONS, **fields))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], told in error["message"]) == (param, True), error
    assert not re.search(r"\n|llguidance|\(in regex\)|parse|\^|panic|\d\(\d", error["message"])
    await answered(at, COMPLETIONS, guided_regex="ok")


def lark_chain(length: int) -> str:
    return "start: r0\n" + "".join(f'r{i}:"a"r{i + 1}\n' for i in range(length)) + f'r{length}: "z"\n'


def gbnf_chain(length: int) -> str:
    return "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(length)) + f'r{length} ::= "z" root\n'


async def test_a_hostile_grammar_is_answered_or_refused(at: Site) -> None:
    bombs: list[dict[str, Any]] = [
        {"guided_regex": "(a{1000}){1000}"},
        {"guided_json": {"enum": [f"{i:020}" for i in range(100_000)]}},
        {"guided_regex": "(" * 200 + "a" + ")*" * 200},
        *({"guided_grammar": lark_chain(length)} for length in (4_900, 13_000)),
        *({"grammar": gbnf_chain(length)} for length in (4_900, 8_000)),
    ]
    answers = [await at.post(COMPLETIONS, body_of(COMPLETIONS, **bomb)) for bomb in bombs]
    assert {answer.status_code for answer in answers} <= {200, 400, 413}


async def test_refusals_are_counted(at: Site) -> None:
    await at.post(COMPLETIONS, body_of(COMPLETIONS, guided_json={"type": "objekt"}))
    metrics = (await at.http.get("/metrics")).text
    assert "lightwell_grammars_refused_total 1.0" in metrics
