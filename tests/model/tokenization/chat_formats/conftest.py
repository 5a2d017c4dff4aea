"""Tokenizers for the tests of chat formats."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from model.checkpoint.folder import PACKAGED
from model.sampling.grammar.bare_arguments import bare_arguments_grammar, value_grammars
from model.tokenization.chat_formats.call_syntax import CallSyntax, Tool
from model.tokenization.tokenizer import Tokenizer
from tests.server.serving import write_tokenizer

SPECIAL = (
    "<|eos|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>", "<|channel|>", "<|message|>",
    "<|end|>", "<|start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call_start|>", "<|tool_call_end|>",
)  # fmt: skip
"""The first ends a text."""


def with_grammars(tool: Tool, syntax: CallSyntax, special_ids: Mapping[str, int]) -> Tool:
    """Return a tool with the grammars that the server writes of its schema."""
    if syntax.bare is not None:
        own = bare_arguments_grammar(tool.parameters, syntax.bare, special_ids.get(syntax.bare.quote))
        return replace(tool, grammar=own)
    if syntax.pairs is None:
        return tool
    texts = [name for name in tool.parameters.get("properties", ()) if "string" in tool.kinds(name)]
    texts = [] if syntax.pairs.is_python else texts
    return replace(tool, value_grammars=value_grammars(tool.parameters, texts, is_lenient=True))


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
