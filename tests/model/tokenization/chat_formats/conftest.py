"""Tokenizers for the tests of chat formats."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.sampling.grammar.bare_arguments import bare_arguments_grammar, value_grammars
from lightwell.model.tokenization.chat_formats.call_syntax import CallSyntax, Tool
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.server.serving import write_tokenizer

SPECIAL = (
    "<|eos|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>", "<|channel|>", "<|message|>",
    "<|end|>", "<|start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call_start|>", "<|tool_call_end|>",
)  # fmt: skip
"""The first ends a text."""


def spelled(syntax: CallSyntax, calls: Iterable[tuple[str, str]]) -> str:
    """Return the text of calls, each a name and its arguments as JSON, as a model writes it."""
    pairs, bare = syntax.pairs, syntax.bare
    if bare is None and (pairs is None or pairs.is_python):
        return syntax.written(calls)
    bodies = []
    for name, arguments in calls:
        values: dict[str, Any] = json.loads(arguments)
        written = [] if bare is None else [bare.written(values)]
        for key, value in values.items() if pairs is not None else ():
            end = pairs.name_ends[0 if isinstance(value, str) else -1]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            written.append(f"{pairs.before_name}{key}{end}{text}{pairs.after_value}")
        bodies.append(f"{name}{syntax.between}{''.join(written)}")
    assert syntax.next_call is not None
    return f"{syntax.opening}{syntax.next_call.join(bodies)}{syntax.closing}"


def with_grammars(tool: Tool, syntax: CallSyntax, special_ids: Mapping[str, int]) -> Tool:
    """Return a tool with the grammars that the server writes of its schema."""
    if syntax.bare is not None:
        own = bare_arguments_grammar(tool.parameters, syntax.bare, special_ids.get(syntax.bare.quote))
        return replace(tool, grammar=own)
    if syntax.pairs is None:
        return tool
    texts = [name for name in tool.parameters.get("properties", ()) if "string" in tool.kinds(name)]
    texts = [] if syntax.pairs.is_python else texts
    return replace(tool, value_grammars=value_grammars(tool.parameters, syntax.pairs, texts, is_lenient=True))


@pytest.fixture(scope="session")
def packaged() -> Tokenizer:
    return Tokenizer.from_folder(PACKAGED)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("special")
    write_tokenizer(path, SPECIAL)
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)
