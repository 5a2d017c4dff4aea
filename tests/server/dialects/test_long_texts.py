"""Long texts and many inputs: the event loop iterates over no characters, and handles inputs in turns."""

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from server.generation.supported_routes import CLASSIFICATIONS, SCORINGS, SPARSE
from tests.server.dialects.routes import at_path
from tests.server.dialects.test_bad_input import GOOD
from tests.server.serving import Site

TEXT = "a b " * 10_000
USER = {"role": "user", "content": TEXT}
FIRST = {"role": "user", "content": "a"}
SAID = {"role": "assistant", "content": TEXT}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": TEXT}]}
CODE = tuple(str(Path(__file__).parents[3] / folder) for folder in ("server", "model"))


def with_long_text(value: Any, name: str = "") -> list[Any]:
    """Return a body once for each of its texts, with that text long."""
    if isinstance(value, str):
        return [] if name in ("role", "type") else [TEXT]
    if isinstance(value, list):
        return [[*value[:i], long, *value[i + 1 :]] for i in range(len(value)) for long in with_long_text(value[i])]
    if isinstance(value, dict):
        return [{**value, key: long} for key, inner in value.items() for long in with_long_text(inner, key)]
    return []


BODIES: list[tuple[str, dict[str, Any]]] = [
    *((path, long) for path, body in GOOD.items() for long in with_long_text(body)),
    ("/v1/messages", {"messages": [FIRST, SAID], "max_tokens": 1}),
    ("/v1/messages", {"messages": [FIRST], "system": TEXT, "max_tokens": 1}),
    ("/v1/messages", {"messages": [FIRST, USE, RESULT], "max_tokens": 1}),
    ("/v1/messages", {"messages": [USER], "truncate": True, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [CALLS, {**USER, "role": "tool", "tool_call_id": "c"}]}),
    ("/v1/chat/completions", {"messages": [USER], "truncate": True, "max_tokens": 1}),
    ("/v1/completions", {"prompt": TEXT, "truncate": True, "max_tokens": 1}),
    ("/v1/responses", {"input": [USER], "truncation": "auto"}),
    ("/v1/responses", {"input": "a", "instructions": TEXT}),
    ("/v1/decisions", {**GOOD["/v1/decisions"], "input": [USER]}),
    ("/v1/trace", {"input": TEXT, "points": ["hook_embed"], "truncate": True}),
    ("/v1/trace", {"input": [USER], "points": ["hook_embed"]}),
    ("/v1/trace", {"input": "a", "completion": TEXT, "points": ["hook_embed"]}),
    ("/tokenize", {"messages": [USER]}),
    ("/api/chat", {"messages": [USER]}),
    ("/api/generate", {"prompt": TEXT, "system": TEXT}),
]


def kind_of(path: str) -> str:
    """Return the models that have the route."""
    return "masked" if path == SPARSE else "classifier" if path in (*SCORINGS, *CLASSIFICATIONS) else "decoder"


KINDS = {
    kind: [*bodies]
    for kind, bodies in groupby(sorted(BODIES, key=lambda each: kind_of(each[0])), lambda each: kind_of(each[0]))
}


class Lines:
    """Counts how often each line of Lightwell runs in the thread of the event loop."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __enter__(self) -> "Lines":
        self._before = sys.gettrace()
        sys.settrace(self._frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _frame(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(CODE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.found[f"{frame.f_code.co_filename}:{frame.f_lineno}"] += 1
        return self._line


@pytest.mark.parametrize("kind", KINDS)
async def test_no_text_is_walked_by_its_characters(kind: str, tmp_path: Path) -> None:
    async with at_path(tmp_path, KINDS[kind][0][0]) as at:
        for path, body in KINDS[kind]:
            with Lines() as lines:
                answer = await at.post(path, body)
            assert answer.status_code in (200, 400)
            (line, times), *_ = lines.found.most_common(1)
            assert times < len(TEXT) // 10, (path, line)


def named_tool(name: str, *tools: str) -> dict[str, Any]:
    """Return a chat that must call a tool, with the tools that it has."""
    return {
        "messages": [FIRST],
        "tools": [{"type": "function", "function": {"name": each}} for each in tools],
        "tool_choice": {"type": "function", "function": {"name": name}},
    }


TOOL = {"name": "t", "input_schema": {"type": "object"}}
OUTPUT = {"type": "function_call_output", "call_id": TEXT, "output": "a"}
CHOICE = {"type": "choice", "instructions": "a", "choices": [{"value": TEXT}, {"value": TEXT}]}
REPEATED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", named_tool(TEXT, "t"), "there is no tool 'a b a"),
    ("/v1/chat/completions", {"messages": [{"role": TEXT, "content": "a"}]}, "got 'a b a"),
    ("/v1/chat/completions", {"messages": [{**CALLS, "role": TEXT}]}, "of the role 'a b a"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": TEXT, "content": "a"}], "continue_final_message": True},
        "its role is 'a b a",
    ),
    (
        "/v1/responses",
        {
            "input": "a",
            "tools": [{"type": "function", "name": "t"}],
            "tool_choice": {"type": "function", "name": TEXT},
        },
        "there is no tool 'a b a",
    ),
    (
        "/v1/messages",
        {"messages": [FIRST], "max_tokens": 1, "tools": [TOOL], "tool_choice": {"type": "tool", "name": TEXT}},
        "there is no tool 'a b a",
    ),
    ("/v1/decisions", {**GOOD["/v1/decisions"], "input": [OUTPUT]}, "the output of 'a b a"),
    ("/v1/decisions", {"input": "a", "questions": [CHOICE]}, "the value 'a b a"),
    ("/v1/systemone", {"state": "a", "questions": {TEXT: {"type": "choice", "criteria": {"x": None}}}}, ""),
]


async def test_no_error_repeats_a_long_value(plain: Site) -> None:
    for path, body, problem in REPEATED:
        answer = await plain.post(path, body)
        assert answer.status_code == 400
        assert problem in answer.json()["error"]["message"]
        assert len(answer.content) < (1000 if problem else 20_000)
