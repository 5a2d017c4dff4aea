"""Errors about bodies use the terms of JSON, and contain no message of a library."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Site, site

CHAT, TRACE = "/v1/chat/completions", "/v1/trace"
USER = {"role": "user", "content": "x"}
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{'a'"}}]}
BYTES = {"dtype": "float32", "shape": [1], "data": "_"}
ADD = {"point": "hook_embed", "op": "add", "value": BYTES}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, 5, "The body is wrong: input should be a valid object, got 5. A JSON object is accepted."),
        (CHAT, {"messages": [5]}, "messages[0]: input should be a valid object, got 5."),
        (
            CHAT,
            {"messages": [USER], "tool_choice": {"type": "x"}},
            "tool_choice: input should be 'none', 'auto' or 'required', got {'type': 'x'}; or type should be one of "
            "'function', 'allowed_tools'.",
        ),
        (
            CHAT,
            {"messages": [USER], "tool_choice": {}},
            "tool_choice: input should be 'none', 'auto' or 'required', got {}; or type is missing, got {}.",
        ),
        (
            CHAT,
            {"messages": [USER, CALL]},
            "messages[1].tool_calls[0].function.arguments: an object as JSON is accepted, got \"{'a'\".",
        ),
        (
            CHAT,
            {"messages": [USER], "guided_json": '{"a": }'},
            "guided_json: the text is no JSON (character 6 is wrong); an object, or the JSON text of one, is accepted.",
        ),
        (
            TRACE,
            {"input": "x", "points": ["hook_embed"], "interventions": [ADD]},
            "interventions[0].value.data: no base64, got '_'.",
        ),
        (
            TRACE,
            {"input": "x", "points": ["hook_embed"], "interventions": [{**ADD, "value": {**BYTES, "shape": [-256]}}]},
            "interventions[0].value.shape[0]: input should be greater than or equal to 1, got -256.",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: input should be a valid string, got 5; or input should be a valid list, got 5.",
        ),
        (
            "/v1/systemone",
            {"state": "x", "questions": {"Response": {"type": "nope"}}},
            "questions.Response.type: 'nope' is not supported; accepted: noul, choice, score.",
        ),
        (
            "/v1/decisions",
            {"input": "x", "questions": [{"instructions": "y"}]},
            "questions[0]: type should be one of 'predicate', 'choice', 'score'.",
        ),
    ],
)
async def test_an_error_is_in_terms_of_json(plain: Site, path: str, body: Any, message: str) -> None:
    assert (await plain.error(path, body, 400))["message"] == message


async def test_a_template_that_fails_is_named_by_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    template = "a\n{{ messages[0].no.such if messages[0].content == 'x' else raise_exception('Only x.') }}"
    async with site(tmp_path, template=template) as at:
        error = await at.error(CHAT, {"messages": [USER]}, 400)
        told = "messages: the chat template refuses them: chat template, line 2: it fails on this conversation"
        assert (error["message"], error["param"]) == (told, "messages")
        assert "UndefinedError: 'dict object' has no attribute 'no'" in caplog.text
        error = await at.error(CHAT, {"messages": [{**USER, "content": "y"}]}, 400)
    assert error["message"] == "messages: the chat template refuses them: chat template: Only x."
