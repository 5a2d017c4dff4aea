"""Makes the table of a tokenizer's tokens, as bytes, in which grammars look for what may follow. It needs no torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from llguidance import LLTokenizer, TokenizerWrapper

from model.tokenization.tokenizer import Tokenizer


@dataclass(eq=False)
class _Tokens:
    """A tokenizer as llguidance reads it: these are the names that it looks for."""

    tokenizer: Tokenizer
    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = field(default=True, init=False)

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of a text within another one."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def read_vocabulary(folder: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> Any:
    """Return the table of the tokens of the model in `folder`, whose network chooses among `vocab_size`. A text may end
    with the tokenizer's end-of-text tokens and with `eos_token_ids`.

    Making it takes some 10 us a token. Raises TokenizerError where there is no tokenizer, and ValueError where there is
    no end-of-text token.
    """
    return make_vocabulary(Tokenizer.from_folder(folder), vocab_size, eos_token_ids)


def make_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int] = ()) -> Any:
    """Return the table of a tokenizer that was read already, as `read_vocabulary` does."""
    ends = [i for i in dict.fromkeys([*tokenizer.eos_token_ids, *eos_token_ids]) if i < vocab_size]
    if not ends:
        raise ValueError("the model has no end-of-text token, so that no grammar could end a text")
    num_tokens = min(vocab_size, tokenizer.vocab_size)
    tokens = [bytes(tokenizer.token_bytes(i) or ()) for i in range(num_tokens)]
    special = [i for i in tokenizer.special_ids if i < num_tokens]
    for i in special:
        tokens[i] = (tokenizer.token(i) or "").encode()
    wrapped = _Tokens(tokenizer, tokens, sorted({*special, *[i for i in ends if i < num_tokens]}), ends[0])
    return LLTokenizer(cast(TokenizerWrapper, wrapped), n_vocab=vocab_size, eos_token=ends)
