"""Makes the grammar of any constraint that a client may ask for."""

import json
from typing import Any

from llguidance import LLMatcher


class GrammarError(ValueError):
    path = ""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path, self.message = path, message


def grammar_text(kind: str, value: Any, whitespace_pattern: str | None = None) -> str:
    over: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if kind in ("json", "json_object"):
        text = LLMatcher.grammar_from_json_schema(
            json.dumps(value if kind == "json" else {"type": "object"}), overrides=over
        )
    elif kind == "regex":
        text = LLMatcher.grammar_from_regex(value)
    elif kind == "choice":
        text = LLMatcher.grammar_from_json_schema(json.dumps({"enum": value}))
    else:
        text = LLMatcher.grammar_from_lark(value)
    bad, told = LLMatcher.validate_grammar_with_warnings(text)
    if bad:
        raise GrammarError("", told[0])
    return text
