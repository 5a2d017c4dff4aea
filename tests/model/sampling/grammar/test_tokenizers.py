"""Texts under grammars with every kind of tokenizer: each text that ends satisfies its schema, pattern or grammar.

The text is decoded as an answer is. `jsonschema` and `re` judge it, not the library that follows the grammar.
"""

import json
import random
import re
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, normalizers, pre_tokenizers

from lightwell.model.sampling.grammar.constraint import Kind, grammar_text
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.matcher import GrammarMatcher
from lightwell.model.sampling.grammar.vocabulary import Vocabulary, make_vocabulary
from lightwell.model.tokenization.detokenizer import Detokenizer
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.checkpoint import test_gguf_tokenizer as gguf_files
from tests.model.sampling.grammar.schemas import SCHEMAS, Validator
from tests.model.sampling.grammar.tags import admits, structural_tags
from tests.model.tokenization import tokenizer_folders as folders
from tests.support.examples import examples

SPM = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LETTERS = string.printable[:95] + "é"
"""The characters of the vocabularies without bytes."""
WORDS = ("the", "city", "name", "true", "false", '{"', '":', '",')
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def unigram(*, byte_fallback: bool = False) -> Fast:
    marked = [*(letter.replace(" ", SPACE) for letter in LETTERS), *WORDS, *(SPACE + word for word in WORDS)]
    spelt = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    pieces = [*SPM.values(), *spelt, *dict.fromkeys(marked)]
    tokenizer = Fast(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], 2, byte_fallback))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    if byte_fallback:
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(list(SPM.values()))
    return tokenizer


def word_piece() -> Fast:
    special = ["[UNK]", "[SEP]"]
    letters = [letter for letter in LETTERS if letter != " "]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *WORDS, *(f"##{word}" for word in WORDS)]
    tokenizer = Fast(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    return tokenizer


def made(make: Callable[[], Fast], **config: Any) -> Callable[[Path], Path]:
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    return lambda root: folders.write(root, make(), tokenizer_config=fields)


SHAPES = {each.name: each.write for each in [*folders.byte_levels(), *folders.byte_fallbacks()]}
KINDS: dict[str, Callable[[Path], Path]] = {
    "byte level": SHAPES["byte level, late tokens"],
    "byte level, prefix space": SHAPES["byte level, GPT-2 class, prefix space"],
    "byte level, GGUF": lambda root: gguf_files.byte_level(root / "a.gguf", "llama", "llama-bpe"),
    "Llama 2, tokenizer.json": made(folders.llama2_like, **SPM),
    "Llama 2, legacy class": SHAPES["byte fallback, Llama class"],
    "Mistral": SHAPES["byte fallback, Mistral"],
    "Phi-3": SHAPES["byte fallback, Phi-3"],
    "Llama class, no prefix": SHAPES["byte fallback, Llama class, not legacy, no prefix"],
    "Gemma": SHAPES["byte fallback, Gemma class"],
    "Llama 2, GGUF": lambda root: gguf_files.pieces(root / "a.gguf", "phi3"),
    "no prefix, GGUF": lambda root: gguf_files.pieces(root / "a.gguf", "gemma2", add_space_prefix=False),
    "Unigram": made(unigram, clean_up_tokenization_spaces=True, **SPM),
    "Unigram, byte fallback": made(lambda: unigram(byte_fallback=True), **SPM),
    "WordPiece": made(word_piece, eos_token="[SEP]", unk_token="[UNK]", clean_up_tokenization_spaces=True),
}
TEXTS = st.text(st.sampled_from(LETTERS), min_size=1, max_size=12)
MORE_TEXTS = TEXTS | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
SPECIAL = st.sampled_from(["a</s>b", "<s>", "[SEP]", "<0x41>", "▁x", "\x02x", " in", "  ", "🐺", "é", "茨姫"])
PATTERNS = st.sampled_from(["[a-c]{2,5}", "(yes|no), [0-9]+ times?\\.", " ?x [é a]+", "[^a]b", r'\{"name": "[^"]*"\}'])
TAG_TEXTS = st.sampled_from(["<a>", "</a>", "(the", "x]", "=é", "n't", '"', "}<"])
GBNF = st.sampled_from(
    [
        ('root ::= "yes, " ("a" | "b") "."', r"yes, [ab]\."),
        ('root ::= " "? item+\nitem ::= [a-c] " the city" | "é"', "(?s: ?([a-c] the city|é)+)"),
        ('root ::= "(" (root | " n\'t x")? ")"', r"\(+( n't x)?\)+"),
    ]
)


@cache
def vocabulary(folder: Path) -> tuple[Tokenizer, Vocabulary]:
    tokenizer = gguf_files.ours(folder) if folder.suffix == ".gguf" else Tokenizer.from_folder(folder)
    return tokenizer, make_vocabulary(tokenizer, tokenizer.vocab_size + 3)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        built = KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))
        vocabulary(built)
    return built


def written(folder: Path, grammar: str, seed: int, longest: int = 400) -> str | None:
    """Return a text by chance among the tokens that may follow, or None if it did not end soon enough."""
    tokenizer, tokens = vocabulary(folder)
    matcher, chance, ids = GrammarMatcher.compile(grammar, tokens), random.Random(seed), []
    closing = {
        i for i in range(tokenizer.vocab_size) if (tokenizer.token_bytes(i) or (0,))[:1] in [(34,), (93,), (125,)]
    }
    while not matcher.is_complete:
        assert matcher.error is None, (ids, matcher.error)
        if len(ids) > longest:
            return None
        allowed = matcher.forced[:1] or np.flatnonzero(~matcher.forbidden()).tolist()
        ends = [i for i in allowed if i in tokenizer.eos_token_ids or i in closing]
        ids.append(chance.choice(ends if ends and chance.random() < 0.4 else allowed))
        matcher.accept(ids[-1])
    stream = Detokenizer(tokenizer, [], exact=True)
    return "".join([*(stream.push(token_id) for token_id in ids), stream.flush()])


drawn = settings(max_examples=examples(400) // 8, deadline=None, suppress_health_check=list(HealthCheck))


@drawn
@given(SCHEMAS, st.integers(0, 2**32))
def test_json_satisfies_its_schema(folder: Path, schema: Any, seed: int) -> None:
    try:
        grammar = grammar_text("json", schema)
    except GrammarError:
        return
    if not vocabulary(folder)[1].spells_bytes and "\\u" in grammar.replace("\\u00e9", ""):
        return
    text = written(folder, grammar, seed)
    if text is not None:
        Validator(schema).validate(json.loads(text))


@drawn
@given(st.data(), st.integers(0, 2**32))
def test_texts_are_choices_and_match_their_patterns(folder: Path, data: st.DataObject, seed: int) -> None:
    tokenizer, tokens = vocabulary(folder)
    texts = MORE_TEXTS | SPECIAL if tokens.spells_bytes else TEXTS
    if "##a" in tokenizer.token_strings(range(tokenizer.vocab_size)):  # it has no token for a space
        texts = texts.filter(lambda text: not re.search(r" ([ .,?!']|$)", text))
    choices = data.draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    assert written(folder, grammar_text("choice", choices), seed) in choices
    (pattern, (gbnf, read)) = data.draw(st.tuples(PATTERNS, GBNF))
    cases: list[tuple[Kind, str, str]] = [("regex", pattern, pattern), ("gbnf", gbnf, read)]
    for kind, value, expected in cases:
        text = written(folder, grammar_text(kind, value), seed)
        assert text is None or re.fullmatch(expected, text), text


@drawn
@given(st.data(), st.integers(0, 2**32))
def test_texts_keep_to_their_structural_tags(folder: Path, data: st.DataObject, seed: int) -> None:
    spells_bytes = vocabulary(folder)[1].spells_bytes
    tag = data.draw(structural_tags(TAG_TEXTS | SPECIAL if spells_bytes else TAG_TEXTS))
    try:
        grammar = grammar_text("structural_tag", tag)
    except GrammarError:
        return
    if not spells_bytes and "\\u" in grammar.replace("\\u00e9", ""):
        return
    text = written(folder, grammar, seed)
    assert text is None or admits(tag, text), text


def test_any_object_is_json(folder: Path) -> None:
    texts = [written(folder, grammar_text("json_object", None), seed) for seed in range(8)]
    ended = [json.loads(text) for text in texts if text is not None]
    assert ended
    assert all(isinstance(value, dict) for value in ended)


@drawn
@given(MORE_TEXTS | SPECIAL)
def test_a_forced_text_becomes_tokens_of_exactly_its_bytes(folder: Path, text: str) -> None:
    tokenizer, tokens = vocabulary(folder)
    if tokens.spells_bytes:
        ids = tokens.table.tokenize_str(text)
        assert b"".join(bytes(tokenizer.token_bytes(i) or ()) for i in ids) == text.encode()


@pytest.mark.parametrize("folder", ["Llama 2, tokenizer.json", "Mistral", "Llama 2, GGUF"], indirect=True)
def test_a_forced_text_becomes_the_tokens_that_it_has_inside_a_text(folder: Path) -> None:
    tokenizer, tokens = vocabulary(folder)
    for text in ("sun lights the", " the year", "the"):
        ids = tokenizer.encode(f"1{text}").ids
        found = tokens.table.tokenize_str(text)
        assert found == ids[-len(found) :]
        assert len(found) < max(len(text), 4)


def test_a_very_long_token_does_not_keep_grammars_from_working(tmp_path: Path) -> None:
    tokenizer = folders.llama2_like()
    tokenizer.add_tokens(["x" * 1500])
    folder = folders.write(tmp_path, tokenizer, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **SPM})
    assert written(folder, grammar_text("choice", ["x" * 1600]), 1, 1600) == "x" * 1600
