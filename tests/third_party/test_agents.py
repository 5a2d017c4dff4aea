"""Has agents, unmodified, run a tool of theirs and answer, over a checkpoint that calls it (tests.tiny.scripted): one
turn, in which the server is asked twice. Claude Code and Codex read a file.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Server, serve
from tests.third_party.test_clients import HERE, ROOT, run
from tests.tiny.scripted import make_scripted

pytestmark = [
    pytest.mark.tool,
    pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="clients are tried by `make test-nightly`"),
]

MODEL = "mine"
NOTE = "The fox has it: 4711."
ANSWER = ["The note", " says that", " the fox", " has it."]
QUESTION = "What does the note say?"
CODEX = """
model = "{model}"
model_provider = "here"

[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""


@contextmanager
def caller(folder: Path, tool: str, argument: str, value: str, answer: Sequence[str] = ANSWER) -> Iterator[Server]:
    """Serve a model that calls a tool with one argument, and then answers."""
    call = ['<tool_call>\n{"name": "', tool, '", "arguments": ', f'{{"{argument}": "', value, '"}', "}\n</tool_call>"]
    with serve([str(make_scripted(folder / "model", call, answer)), "--served-model-name", MODEL]) as running:
        yield running


def events_of(client: str, program: str, *arguments: str, folder: Path, environment: Mapping[str, str]) -> list[Any]:
    """Return the lines of JSON that a program prints; it sees nothing of who runs the tests."""
    command = ROOT / ".tools" / client / "bin" / program
    if not command.exists():
        pytest.skip(f"no {client} here: tests/tools/install.sh needs npm for it")
    alone = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    with (folder / "printed").open("w+b") as printed:  # and no pipe: what it leaves behind would hold that open
        done = subprocess.run(
            [str(command), *arguments], env=alone, cwd=folder, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
            timeout=120, check=False,
        )  # fmt: skip
        printed.seek(0)
        lines = printed.read().decode().splitlines()
    assert done.returncode == 0, "\n".join(lines)[-5000:]
    return [json.loads(line) for line in lines if line.startswith("{")]


def claude_code(server: Server, folder: Path, *arguments: str) -> list[Any]:
    """Ask the question of Claude Code, and return its events."""
    models = ("MODEL", "DEFAULT_HAIKU_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_OPUS_MODEL")
    environment = {f"ANTHROPIC_{name}": MODEL for name in models}
    environment |= {"ANTHROPIC_AUTH_TOKEN": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    environment |= {"DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}
    environment["ANTHROPIC_BASE_URL"] = server.url
    options = ["-p", QUESTION, "--output-format", "stream-json", "--verbose", *arguments]
    return events_of("claude-code", "claude", *options, folder=folder, environment=environment)


def test_claude_code_reads_a_file_and_answers(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text(NOTE)
    with caller(tmp_path, "Read", "file_path", str(note)) as server:
        events = claude_code(server, tmp_path, "--allowedTools", "Read")
    (read,) = [event["tool_use_result"]["file"] for event in events if "tool_use_result" in event]
    assert read["content"] == NOTE
    (last,) = [event for event in events if event["type"] == "result"]
    assert (last["is_error"], last["num_turns"], last["result"]) == (False, 2, "".join(ANSWER))


def test_claude_code_finds_a_tool_that_it_has_deferred(tmp_path: Path) -> None:
    with caller(tmp_path, "ToolSearch", "query", "select:WebSearch") as server:
        events = claude_code(server, tmp_path)
    (found,) = [event["message"]["content"][0]["content"] for event in events if "tool_use_result" in event]
    assert found == [{"type": "tool_reference", "tool_name": "WebSearch"}]
    assert [event["result"] for event in events if event["type"] == "result"] == ["".join(ANSWER)]


def codex(server: Server, folder: Path) -> list[Any]:
    """Ask the question of Codex, and return its events."""
    (folder / "config.toml").write_text(CODEX.format(model=MODEL, url=server.url))
    arguments = ["exec", "--json", "--skip-git-repo-check", QUESTION]
    return events_of("codex", "codex", *arguments, folder=folder, environment={"CODEX_HOME": str(folder)})


def test_codex_calls_a_function_of_a_namespace(tmp_path: Path) -> None:
    nobody = "00000000-0000-0000-0000-000000000000"
    with caller(tmp_path, "multi_agent_v1.close_agent", "target", nobody) as server:
        events = codex(server, tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (called,) = [item for item in items if item["type"] == "collab_tool_call"]
    assert (called["tool"], called["agents_states"][nobody]["status"]) == ("close_agent", "not_found")
    assert events[-1]["type"] == "turn.completed"


def test_codex_reads_a_file_and_answers(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text(NOTE)
    with caller(tmp_path, "exec_command", "cmd", f"cat {note}") as server:
        events = codex(server, tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (ran,) = [item for item in items if item["type"] == "command_execution"]
    assert (ran["aggregated_output"], ran["exit_code"]) == (NOTE, 0)
    assert [item["text"] for item in items if item["type"] == "agent_message"] == ["".join(ANSWER)]
    assert events[-1]["type"] == "turn.completed"


def test_agents_of_pydantic_ai_run_a_tool_and_answer_with_an_object(tmp_path: Path) -> None:
    answer = ['{"city": ', '"Oslo', '", ', '"degrees": ', "3", "}"]
    with caller(tmp_path, "weather", "city", "Oslo", answer) as server:
        told = json.loads(run("pydantic-ai", "python", str(HERE / "pydantic_ai_tool.py"), server.url, MODEL))
    assert told == {"asked": ["Oslo"] * 4, "outputs": [{"city": "Oslo", "degrees": 3}] * 4}
