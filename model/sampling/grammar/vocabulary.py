"""Table of a tokenizer's tokens as bytes, for grammars. It needs no torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from llguidance import LLTokenizer, TokenizerWrapper

from lightwell.model.tokenization.tokenizer import Tokenizer

_LONGEST = 1000
"""Bytes of the longest token that llguidance's table can hold; longer ones are never chosen under a grammar."""
_BEFORE = ("", "\x02")
"""Prefixes with which a forced text is tokenised. Tokenizers that mark spaces add a mark to the first word only, which
a text after another one lacks. No token joins U+0002 with the text after it.
"""


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens as grammars need them."""

    table: LLTokenizer
    spells_bytes: bool
    """True if every byte has a token. Otherwise a text cannot be split into tokens at every byte."""


@dataclass(eq=False)
class _Tokens:
    """A tokenizer with the attributes that llguidance reads."""

    tokenizer: Tokenizer
    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = field(default=True, init=False)
    table: LLTokenizer | None = field(default=None, init=False)
    """The table of these tokens."""

    def __post_init__(self) -> None:
        special = set(self.special_token_ids)
        self._texts = {i: token for i, token in enumerate(self.tokens) if i not in special}

    def __call__(self, text: str) -> list[int]:
        """Return ids of tokens that spell a text within another text: the tokenizer's choice, or else the longest."""
        wanted = text.encode()
        for before in _BEFORE:
            ids = self.tokenizer.encode(before + text, add_special_tokens=False).ids
            size, begin = 0, len(ids)
            while begin and size < len(wanted):
                begin -= 1
                size += len(self._texts.get(ids[begin], b""))
            if b"".join(self._texts.get(i, b"") for i in ids[begin:]) == wanted:
                return ids[begin:]
        assert self.table is not None, "llguidance tokenises texts of grammars only"
        return self.table.greedy_tokenize(text)


def spellings(folder: Path, vocab_size: int) -> list[tuple[int, ...] | None]:
    """Return the bytes of the first tokens of the model in `folder`; None for an id without a token."""
    tokenizer = Tokenizer.from_folder(folder)
    return [tokenizer.token_bytes(i) for i in range(vocab_size)]


def read_vocabulary(folder: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
    """Return the token table of the model in `folder` with `vocab_size` tokens. A text may end with the tokenizer's
    end-of-text tokens and with `eos_token_ids`.

    It takes some 10 us a token. Raises TokenizerError if there is no tokenizer, and ValueError if there is no
    end-of-text token.
    """
    return make_vocabulary(Tokenizer.from_folder(folder), vocab_size, eos_token_ids)


def make_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int] = ()) -> Vocabulary:
    """Return the table of a loaded tokenizer, as `read_vocabulary` does."""
    ends = [i for i in dict.fromkeys([*tokenizer.eos_token_ids, *eos_token_ids]) if i < vocab_size]
    if not ends:
        raise ValueError("the model has no end-of-text token, which a grammar needs to end the text")
    tokens = [bytes(tokenizer.token_bytes(i) or ()) for i in range(vocab_size)]
    tokens = [token if len(token) <= _LONGEST else b"" for token in tokens]
    special = sorted(i for i in {*tokenizer.special_ids, *ends} if i < vocab_size and tokens[i])
    wrapped = _Tokens(tokenizer, tokens, special, ends[0])
    wrapped.table = LLTokenizer(cast(TokenizerWrapper, wrapped), eos_token=ends)
    return Vocabulary(wrapped.table, {bytes([byte]) for byte in range(256)} <= set(tokens))
