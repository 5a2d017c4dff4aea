"""Values that are too long are refused before any work, and those at the limits take time linear in their length."""

import tracemalloc
from typing import Any

import pytest

from model.sampling.grammar.constraint import Kind, grammar_text
from model.sampling.grammar.errors import GrammarError

LONG = "z" * 2_000_000


@pytest.mark.parametrize(
    ("kind", "value", "whitespace"),
    [
        ("json", {}, LONG),
        ("json", {"type": "string", "pattern": LONG}, None),
        ("json", {"properties": {LONG: {}}}, None),
        ("json", {"enum": [LONG]}, None),
        ("regex", LONG, None),
        ("choice", [LONG, LONG], None),
        ("grammar", "start: " + LONG, None),
        ("gbnf", "root ::= " + LONG, None),
        ("structural_tag", {"structures": [{"begin": LONG, "schema": {}}], "triggers": ["a"]}, None),
    ],
)
def test_lengths_are_checked_before_any_work(kind: Kind, value: Any, whitespace: str | None) -> None:
    """The most memory is a copy of the value, in which its bytes are counted."""
    tracemalloc.start()
    try:
        with pytest.raises(GrammarError, match="at most"):
            grammar_text(kind, value, whitespace)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(LONG)
