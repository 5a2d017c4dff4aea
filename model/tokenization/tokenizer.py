"""Tokenizer: converts text to token ids and back, with the same ids as `transformers.AutoTokenizer`.

Files are read in `tokenizer_files`, streams of tokens in `detokenizer`, chat templates in `chat_template`. Independent
of requests, torch and transformers. Only its caches change after loading, so any number of threads may use it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from lightwell.model.checkpoint.folder import is_failure
from lightwell.model.tokenization.tokenizer_files import TokenizerError, TokenizerFiles, read_tokenizer_files

__all__ = ["Encoding", "Tokenizer", "TokenizerError", "UnreadableText"]

CLEAN_UPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"""The replacements that `clean_up_tokenization_spaces` makes in decoded text, in this order."""

_DECODED_AT_ONCE = 4096
"""Largest number of ids decoded as a single list. `tokenizers` holds Python's lock while it decodes one list, a tenth
of a second for a million ids, but not while it decodes a batch of lists.
"""
_REMEMBERED_TOKENS = 1 << 15
"""Number of tokens with cached texts and bytes: most texts use the same few thousand tokens."""


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes keep their characters, the other 68 are U+0100 to U+0143, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_of_char()


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tokenised text."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    """Character span [begin, end) of each token in the input; (0, 0) for added special tokens."""


@dataclass(frozen=True, slots=True)
class PairEncoding:
    """A tokenised pair of texts."""

    ids: list[int]
    second_segment: int | None
    """Position of the first token of type 1, or None if all are of type 0, or the network takes no types."""


class UnreadableText(Exception):
    """The `tokenizers` library failed on a text or on ids, for example because a pattern takes too long."""


class Tokenizer:
    """A loaded tokenizer. Methods that read texts or ids raise `UnreadableText` if the library fails on them."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._raw = files.raw
        vocab = files.raw.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values(), default=-1) + 1
        """The highest token id plus one. The network's own vocabulary may be padded beyond it."""
        self.special_tokens: Mapping[str, str] = dict(files.special_tokens)
        """bos_token, eos_token, ... by name: variables of chat templates."""
        added = files.raw.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token_id for token_id, token in added.items() if token.special)
        """Ids left out of decoded text unless `skip_special_tokens` is false."""
        self.ids_of_special: Mapping[str, int] = {added[token_id].content: token_id for token_id in self.special_ids}
        """The ids of special tokens, by their texts."""
        self.bos_token_id: int | None = self._id_of("bos_token")
        self.mask_token_id: int | None = self._id_of("mask_token")
        """The token of a word to be filled in, or None if the tokenizer has none."""
        eos = self._id_of("eos_token")
        ids = (*files.generation_eos_ids, *(() if eos is None else (eos,)))
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))
        """End-of-text ids: from generation_config.json, then the tokenizer's own."""
        self.chat_template: str | None = files.chat_template
        self.cleans_up: bool = files.cleans_up
        self._gives_types = files.gives_types
        decoder = _decoder_types(files.raw)
        self.byte_level: bool = set(decoder) - {"Fuse"} == {"ByteLevel"}
        """Whether every token is a string of bytes, and a text is their concatenation in UTF-8."""
        self.byte_fallback: bool = "ByteFallback" in decoder
        """Whether characters outside the vocabulary are encoded as tokens <0x00> .. <0xFF>."""
        self._token_string = lru_cache(_REMEMBERED_TOKENS)(
            lambda token_id: self.decode_window([token_id], skip_special_tokens=False)
        )
        self.token_bytes = lru_cache(_REMEMBERED_TOKENS)(self._token_bytes)
        """A cached function for the UTF-8 bytes that a token adds inside a text; None for an id that has no token."""
        self.whole_text = lru_cache(_REMEMBERED_TOKENS)(self._whole_text)
        """A cached function for these bytes as text; None if a character begins or ends in another token."""

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Tokenizer":
        """Load a checkpoint folder's tokenizer.

        Raises `TokenizerError`, one line, if files are missing, broken or in a format that must be converted.
        """
        tokenizer = cls(read_tokenizer_files(Path(folder)))
        if tokenizer.vocab_size == 0:
            raise TokenizerError(f"the tokenizer of {folder} has an empty vocabulary: it cannot tokenize any text")
        return tokenizer

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._raw.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """Tokenise one text. Raises `ValueError` for a lone surrogate, which is not valid Unicode."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        """Tokenise many texts in parallel, each with the result of `encode`."""
        for text in texts:
            _check_text(text)
        encodings = _run(self._raw.encode_batch, list(texts), add_special_tokens=add_special_tokens)
        return [Encoding(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], max_length: int | None = None, *, keep_ends: bool = False
    ) -> list[PairEncoding]:
        """Tokenise pairs of texts in parallel, with the special tokens of a pair. In a pair of more than `max_length`
        tokens, the longer text is cut at its end; if that is not enough, both are cut to the same length (longest_first
        in transformers). With `keep_ends` they are cut at their beginning.

        Raises `ValueError` for a lone surrogate, and for a length without room for any text.
        """
        for pair in pairs:
            for text in pair:
                _check_text(text)
        encodings = _run(self._raw.encode_batch, list(pairs))
        return [self._cut_pair(each, max_length, keep_ends) for each in encodings]

    def _cut_pair(self, encoding: tokenizers.Encoding, max_length: int | None, keep_ends: bool) -> PairEncoding:
        ids, types = encoding.ids, encoding.type_ids
        if max_length is not None and len(ids) > max_length:
            texts = encoding.sequence_ids
            own = [[i for i, text in enumerate(texts) if text == each] for each in (0, 1)]
            room = max_length - (len(ids) - len(own[0]) - len(own[1]))
            if room < 1:
                raise ValueError(f"{max_length} tokens are too few for a pair of texts with its special tokens")
            lengths = _longest_first(len(own[0]), len(own[1]), room)
            cut: set[int] = set()
            for places, kept_length in zip(own, lengths, strict=True):
                cut.update(places[: len(places) - kept_length] if keep_ends else places[kept_length:])
            kept = [i for i in range(len(ids)) if i not in cut]
            ids, types = [ids[i] for i in kept], [types[i] for i in kept]
        return PairEncoding(ids, types.index(1) if self._gives_types and 1 in types else None)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids. Broken UTF-8 becomes U+FFFD. Raises `ValueError` for ids out of range."""
        self.check_ids(ids)
        text = self.decode_window(ids, skip_special_tokens)
        if self.cleans_up:
            for old, new in CLEAN_UPS:
                text = text.replace(old, new)
        return text

    def check_ids(self, ids: Iterable[int]) -> None:
        """Raise `ValueError`, naming the id and the range, unless every id is in [0, vocab_size)."""
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"token id {token_id} is out of range; 0 to {self.vocab_size - 1} are accepted")

    def decode_window(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return a part of a text for the detokenizer, without clean-up or checks; ids without a token are left out."""
        if len(ids) <= _DECODED_AT_ONCE:
            text: str = _run(self._raw.decode, list(ids), skip_special_tokens=skip_special_tokens)
        else:
            (text,) = _run(self._raw.decode_batch, [list(ids)], skip_special_tokens=skip_special_tokens)
        return text

    def token(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token, or None if the vocabulary has no such id."""
        return self._raw.id_to_token(token_id)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, decoded by itself and with special tokens.

        A token that is part of a character gives U+FFFD, and tokenizers that mark spaces before words drop the space of
        a first word: `token_bytes` returns the bytes that the token adds inside a text. Ids without a token give "".
        """
        return [self._token_string(token_id) for token_id in ids]

    def _token_bytes(self, token_id: int) -> tuple[int, ...] | None:
        token = self.token(token_id)
        if token is None:
            return None
        if self.byte_level and _BYTE_OF_CHAR.keys() >= set(token):
            return tuple(map(_BYTE_OF_CHAR.__getitem__, token))
        if self.byte_level or token_id in self.special_ids:  # an added token has plain characters
            return tuple(token.encode())
        if self.byte_fallback and (byte := fallback_byte(token)) is not None:
            return (byte,)
        # In the text of two such tokens, one is at the beginning of the text, and one inside it.
        twice = self.decode_window([token_id, token_id], skip_special_tokens=False)
        return tuple(twice.removeprefix(self._token_string(token_id)).encode())

    def _whole_text(self, token_id: int) -> str | None:
        try:
            return bytes(self.token_bytes(token_id) or ()).decode()
        except UnicodeDecodeError:
            return None


def _run(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of `tokenizers`, and replace its errors, which are for programmers, by UnreadableText."""
    try:
        return call(*args, **options)
    except BaseException as error:
        if not is_failure(error):
            raise
        raise UnreadableText("the model's tokenizer cannot encode it") from None


def fallback_byte(token: str) -> int | None:
    """Return the byte of a byte-fallback token such as <0x0A>, or None for any other token."""
    if len(token) != len("<0x00>") or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def _decoder_types(raw: tokenizers.Tokenizer) -> list[str]:
    """Return the names of the decoder's steps, in order."""
    if raw.decoder is None:
        return []
    state = json.loads(raw.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [str(step["type"]) for step in steps]


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the numbers of tokens that two texts keep of `first` and `second`, `room` in total. If both are cut, the
    longer text gets an odd token.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    kept = (shorter, room - shorter) if 2 * shorter <= room else (room // 2, room - room // 2)
    return kept if first <= second else kept[::-1]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(
            f"the text contains the lone surrogate U+{code:04X} at character {error.start}; send well-formed Unicode"
        ) from None
