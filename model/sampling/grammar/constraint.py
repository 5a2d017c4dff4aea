"""Grammar of an answer's form, of any kind, in llguidance's dialect of Lark."""

from collections.abc import Callable
from typing import Any, Literal

from lightwell.model.sampling.grammar.checking import TOO_MANY_OPTIONAL, check, has_too_many_optional
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.gbnf import gbnf_grammar
from lightwell.model.sampling.grammar.json_schema import json_object_grammar, json_schema_grammar
from lightwell.model.sampling.grammar.structural_tags import structural_tag_grammar
from lightwell.model.sampling.grammar.texts import choice_grammar, lark_or_ebnf_grammar, regex_grammar

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "gbnf", "structural_tag"]

_CHECKED_FROM = 20_000
"""Characters from which the grammar of a schema is checked. The parts of a shorter one are checked one by one, and
cannot exceed llguidance's limits together.
"""

_WRITERS: dict[Kind, Callable[[Any], str]] = {
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": lark_or_ebnf_grammar,
    "gbnf": gbnf_grammar,
    "structural_tag": structural_tag_grammar,
}


def grammar_text(kind: Kind, value: Any, whitespace_pattern: str | None = None) -> str:
    """Return the grammar of the texts that satisfy a value of this kind: a JSON schema, a pattern, texts ...

    Raises GrammarError, with the place in the value, if it is wrong or cannot be enforced. A hostile value takes up to
    two seconds.
    """
    if kind == "json":
        grammar = json_schema_grammar(value, whitespace_pattern=whitespace_pattern)
    elif kind == "json_object":
        grammar = json_object_grammar()
    else:
        grammar = _WRITERS[kind](value)
        if kind in ("grammar", "gbnf") and has_too_many_optional(grammar):
            raise GrammarError("", TOO_MANY_OPTIONAL)
    if kind not in ("json", "json_object") or len(grammar) >= _CHECKED_FROM:
        check(grammar)
    return grammar
