"""Limit of a thought's tokens, and its closing tag. Independent of grammars. Standard library only."""

from dataclasses import dataclass
from typing import Any

Pieces = tuple[str | int, ...]
"""A text with its special tokens as ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """The limit of the thoughts at the beginning of a text."""

    max_tokens: int
    """Tokens after which a thought is closed, without the prompt's tokens."""
    is_open: bool
    """True if the prompt ends inside a thought."""
    opening: str
    """The tag that opens a thought, after white space."""
    closing: Pieces
    """The tag that closes it."""
    other_end: str
    """Another text that ends all thoughts, or ""."""


class ThoughtCounter:
    """A counter of the thoughts of one text."""

    def __init__(self, limit: ThoughtLimit, table: Any, prefix: Pieces) -> None:
        """Count the tokens, of a table of `model.sampling.grammar.vocabulary`, that follow `prefix`."""
        self._table = table
        self._opening, self._other_end = limit.opening.encode(), limit.other_end.encode()
        self._closing_ids = ids_of(limit.closing, table)
        self._closing: bytes = table.decode_bytes(self._closing_ids)
        self._is_plain = all(isinstance(piece, str) for piece in limit.closing)
        self._num_left = limit.max_tokens
        self._is_open = limit.is_open
        self._is_over = False
        self._text = b""
        """The text since the last tag; within a thought, its last bytes, which may be the beginning of a tag."""
        self._read(table.decode_bytes(ids_of(prefix, table)))

    def take(self, token_id: int) -> None:
        """Count a token."""
        self._num_left -= self._is_open
        self._read(self._table.decode_bytes([token_id]))

    def closing(self) -> list[int]:
        """Return the tokens that must close the thought, [] below the limit. If they cannot come next, for example
        within a character, call it again after the next token.
        """
        if not self._is_open or self._num_left > 0:
            return []
        if not self._is_plain:
            return self._closing_ids
        num_begun = next(n for n in range(len(self._closing) - 1, -1, -1) if self._text.endswith(self._closing[:n]))
        rest: list[int] = self._table.tokenize_bytes(self._closing[num_begun:])
        return rest

    def _read(self, new: bytes) -> None:
        self._text += new
        while not self._is_over and self._passes_tag():
            pass
        if self._is_over:
            self._text = b""

    def _passes_tag(self) -> bool:
        """Consume the tag that opens or closes a thought. Returns False if there is none."""
        if self._is_open:
            if self._other_end and self._other_end in self._text:
                self._is_open, self._is_over = False, True
            elif self._closing in self._text:
                self._is_open, self._text = False, self._text.partition(self._closing)[2]
            else:
                self._text = self._text[-max(len(self._closing), len(self._other_end)) :]
            return not self._is_open
        self._text = self._text.lstrip()
        self._is_over = not self._text.startswith(self._opening[: len(self._text)])
        if self._text.startswith(self._opening):
            self._is_open, self._text = True, self._text[len(self._opening) :]
        return self._is_open


def ids_of(pieces: Pieces, table: Any) -> list[int]:
    """Return the token ids of a text that follows another text."""
    return [i for piece in pieces for i in ([piece] if isinstance(piece, int) else table.tokenize_str(piece))]
