"""Tokenizers for the tests of chat formats."""

from pathlib import Path

import pytest

from model.checkpoint.folder import PACKAGED
from model.tokenization.tokenizer import Tokenizer
from tests.server.serving import write_tokenizer

SPECIAL = (
    "<|eos|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>", "<|channel|>", "<|message|>",
    "<|end|>", "<|start|>", "<|tool_call>", "<tool_call|>", '<|"|>',
)  # fmt: skip
"""The first ends a text."""


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
