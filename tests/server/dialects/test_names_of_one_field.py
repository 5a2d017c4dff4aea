"""Fields that have several names, with equal values, and names under which the one model is served."""

from pathlib import Path
from typing import Any

import pytest

from lightwell.server.dispatch.served_adapter import ServedAdapter
from tests.server.dialects.routes import ROUTES, RUN_NOTHING
from tests.server.serving import Site, site

USER = {"role": "user", "content": "x"}
LARK, SCHEMA = 'start: "yes" | "no"', {"type": "object", "properties": {"a": {"type": "integer"}}}
THINKS = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}|quiet{% endif %}"


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def json_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


NAMES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, str]]] = {
    "guidance's VLLMModel": (
        "/v1/chat/completions", {"messages": [USER], "structured_outputs": {"grammar": LARK}},
        {"guided_grammar": LARK}, {"guided_grammar": 'start: "a"'}, ("guided_grammar", "structured_outputs.grammar"),
    ),
    "a schema": (
        "/v1/completions", {"prompt": "x", "guided_json": SCHEMA},
        {"response_format": json_schema(SCHEMA)}, {"response_format": json_schema({})},
        ("guided_json", "response_format.json_schema.schema"),
    ),
    "a schema and its blanks": (
        "/v1/completions", {"prompt": "x", "structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, {"guided_json": SCHEMA},
        ("guided_json", "structured_outputs.json"),
    ),
    "any object": (
        "/v1/completions", {"prompt": "x", "response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}}, {"structured_outputs": {"json": {}}},
        ("response_format", "structured_outputs.json"),
    ),
    "a number": (
        "/v1/completions", {"prompt": "x", "guided_json": {"const": 1, "type": "integer"}},
        {"structured_outputs": {"json": {"type": "integer", "const": 1}}},
        {"structured_outputs": {"json": {"type": "integer", "const": True}}},
        ("guided_json", "structured_outputs.json"),
    ),
    "a whole number with a point": (
        "/v1/completions", {"prompt": "x", "guided_json": {"enum": [2.0, {"a": 1}]}},
        {"structured_outputs": {"json": {"enum": [2, {"a": 1.0}]}}},
        {"structured_outputs": {"json": {"enum": [2, {"a": True}]}}},
        ("guided_json", "structured_outputs.json"),
    ),
    "limits": (
        "/v1/chat/completions", {"messages": [USER], "max_tokens": 3},
        {"max_completion_tokens": 3}, {"max_completion_tokens": 4}, ("max_completion_tokens", "max_tokens"),
    ),
    "thoughts": (
        "/v1/chat/completions", {"messages": [{**USER, "reasoning": "a", "reasoning_content": "a"}]},
        {}, {"messages": [{**USER, "reasoning": "a", "reasoning_content": "b"}]},
        ("messages[0].reasoning", "reasoning_content"),
    ),
    "Anthropic's formats": (
        "/v1/messages", {"messages": [USER], "max_tokens": 3, "output_config": {"format": json_format(SCHEMA)}},
        {"output_format": json_format(SCHEMA)}, {"output_format": json_format({})},
        ("output_config.format", "output_format"),
    ),
    "a number in Anthropic's formats": (
        "/v1/messages", {"messages": [USER], "max_tokens": 3, "output_config": {"format": json_format({"const": 1})}},
        {"output_format": json_format({"const": 1})}, {"output_format": json_format({"const": True})},
        ("output_config.format", "output_format"),
    ),
    "thinking budgets": (
        "/v1/chat/completions", {"messages": [USER], "thinking_budget": 3},
        {"thinking_token_budget": 3}, {"thinking_token_budget": 4}, ("thinking_budget", "thinking_token_budget"),
    ),
    "Ollama's thinking": (
        "/api/chat", {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
        {"think": False}, {"think": True}, ("enable_thinking of chat_template_kwargs", "think"),
    ),
    "Ollama's model": (
        "/api/show", {"model": "org/tiny"}, {"name": "org/tiny"}, {"name": "llama"}, ("model", "name"),
    ),
}  # fmt: skip
"""The route, a body with one name, further names with the same value, with another value, and both names."""


@pytest.mark.parametrize("what", NAMES)
async def test_both_names_of_a_field_are_accepted_if_their_values_are_equal(what: str, tmp_path: Path) -> None:
    path, body, equal, different, names = NAMES[what]
    async with site(tmp_path, template=THINKS) as at:
        for fields in ({}, equal):
            asked = {**body, **fields, **({"seed": 1} if path.startswith("/v1/") else {})}
            answer = await at.post(path, {**asked, "options": {"seed": 1}} if path == "/api/chat" else asked)
            assert answer.status_code == 200, answer.text
        assert not at.engine.submitted or at.engine.submitted[0].task == at.engine.submitted[1].task
        error = await at.error(path, {**body, **different}, 400)
    for name in names:
        assert name in error["message"]
    assert "both given, but differ" in error["message"]


PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/next", "/api/chat", "/api/embed", "/tokenize",
)  # fmt: skip
BODIES = {path: (ROUTES | RUN_NOTHING)[path] for path in PATHS}


@pytest.mark.parametrize("name", ["tgi", "dummy", "text-embeddings-inference", None])
async def test_names_that_clients_send_without_knowing_one_are_the_models(name: str | None, plain: Site) -> None:
    for path, body in BODIES.items():
        answer = await plain.post(path, {**body, "model": name})
        assert answer.status_code == 200, (path, answer.text)
        assert (await plain.post(path, {**body, "model": "llama"})).status_code == 404
    if name is not None:
        assert (await plain.http.get(f"/v1/models/{name}")).json()["id"] == "org/tiny"


async def test_an_adapter_keeps_its_name(plain: Site) -> None:
    plain.model.adapters._served["tgi"] = ServedAdapter("tgi", 1, Path("/loras/tgi"), 0)
    answer = await plain.post("/v1/completions", {"prompt": "x", "model": "tgi"})
    assert answer.json()["model"] == "tgi"
