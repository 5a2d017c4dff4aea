"""Asks by other projects' clients, unmodified, for objects of a schema and calls of a tool, each in an environment of
its own (tests/tools/install.sh). What the model says is not judged: that the client makes its own types of it, is.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.resolve import smollm2_file
from tests.support.processes import Server, serve
from tests.third_party.test_clients import HERE, run

pytestmark = [
    pytest.mark.tool,
    pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="clients are tried by `make test-nightly`"),
]

MODEL = "small"
CLIENTS = {
    "openai": ("openai_schemas.py", 3, 3, 2),
    "instructor": ("instructor_schemas.py", 6, 0, 0),
    "pydantic-ai": ("pydantic_ai_schemas.py", 12, 0, 0),
    "langchain-openai": ("langchain_schemas.py", 8, 2, 2),
    "outlines": ("outlines_schemas.py", 4, 0, 0),
    "litellm": ("litellm_schemas.py", 4, 3, 4),
    "ollama": ("ollama_schemas.py", 3, 0, 1),
    "anthropic": ("anthropic_schemas.py", 2, 2, 1),
    "huggingface-hub": ("huggingface_schemas.py", 2, 0, 0),
    "guidance": ("guidance_schemas.py", 1, 0, 0),
}
"""Client -> its program, and how many objects, calls and answers after a tool's result that prints."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A trained model that follows a schema's sense a little; its context holds what these clients write into a
    prompt.
    """
    try:
        smollm2_file()
    except ModelLoadError as missing:
        pytest.skip(str(missing))
    with serve(["smollm2", "--served-model-name", MODEL]) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
def test_objects_of_a_schema_and_a_turn_with_a_tool(client: str, server: Server, tmp_path: Path) -> None:
    program, num_objects, num_calls, num_answers = CLIENTS[client]
    told = json.loads(run(client, "python", str(HERE / program), server.url, MODEL, cwd=tmp_path).splitlines()[-1])
    assert len(told["objects"]) == num_objects
    for found in told["objects"]:
        assert found.keys() == {"city", "degrees"}
        assert found["city"] in ("Bern", "Oslo")
        assert 0 <= found["degrees"] <= 40
    calls, answers = told.get("calls", []), told.get("answers", [])
    assert len(calls) >= num_calls
    assert all(call["name"] == "weather" and call["arguments"]["city"] in ("Bern", "Oslo") for call in calls)
    assert len(answers) == num_answers
    assert all(isinstance(answer, str) for answer in answers)  # a small model may have no more to say
