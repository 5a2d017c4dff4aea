"""With tools and a required form of the text, an answer has only calls or a text of that form, in every syntax."""

from pathlib import Path
from typing import Any

import pytest

from model.sampling.grammar.json_schema import json_schema_grammar
from model.sampling.grammar.matcher import GrammarMatcher
from model.sampling.grammar.vocabulary import make_vocabulary
from model.tokenization.chat_formats.call_syntax import ID, CallSyntax, Tool
from model.tokenization.chat_formats.grammar import Answers, answer_grammar
from model.tokenization.chat_template import ChatTemplate
from model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization.chat_formats.conftest import spelled, with_grammars
from tests.model.tokenization.chat_formats.test_parser import SYNTAXES
from tests.server.serving import write_tokenizer
from tests.support.templates import published_templates


def object_of(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


FORMS = {
    '{"legs": 4}': object_of(legs={"type": "integer"}),
    '{"name": "Bo", "legs": 4}': object_of(name={"type": "string"}, legs={"type": "integer"}),
    '{"name": 4}': object_of(name={"type": "integer"}),
}
CITY = object_of(city={"type": "string"})
CALLS = [("look", '{"city": "Bern"}')]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def answers_of(tokenizer: Tokenizer, syntax: CallSyntax, form: dict[str, Any], texts: list[str]) -> list[bool]:
    """Return which texts are answers."""
    body = json_schema_grammar(form)
    grammar = answer_grammar(Answers(syntax=syntax, tools=[with_grammars(Tool("look", CITY), syntax, {})], body=body))
    table = make_vocabulary(tokenizer, tokenizer.vocab_size)
    found = []
    for text in texts:
        matcher = GrammarMatcher.compile(grammar, table).begun(table, (text,), None)
        found.append(matcher.error is None and matcher.matcher.is_accepting())
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
def test_an_answer_is_calls_or_of_the_form(tokenizer: Tokenizer, syntax: CallSyntax, form: str) -> None:
    texts = [form, spelled(syntax, CALLS), "Sure.", f"Sure: {form}", f"{form}{spelled(syntax, CALLS)}"]
    assert answers_of(tokenizer, syntax, FORMS[form], texts) == [True, True, False, False, False]


@pytest.mark.nightly
@pytest.mark.parametrize("path", published_templates(), ids=lambda path: path.stem)
def test_of_a_published_template_too(tokenizer: Tokenizer, path: Path) -> None:
    syntax = ChatTemplate(path.read_text(encoding="utf-8"), tokenizer).tool_use.syntax
    for form, schema in FORMS.items():
        texts = [form, spelled(syntax, CALLS).replace(ID, "0"), "Sure."]
        assert answers_of(tokenizer, syntax, schema, texts) == [True, True, False], form
