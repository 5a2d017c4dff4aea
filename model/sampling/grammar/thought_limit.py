"""Counts the tokens of a thought, and closes it at a limit. It knows no grammar. Standard library only."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimit:
    """The limit of the thoughts with which a text may begin."""

    max_tokens: int
    """Tokens after which a thought is closed, those of the prompt not counted."""
    is_open: bool
    """Whether the prompt has opened a thought."""
    opening: str
    """The tag that opens a thought, after white space."""
    closing: str
    """The tag that closes it."""
    other_end: str
    """Another text that ends a thought, and after which there is none, or ""."""


class ThoughtCounter:
    """The place of one text in its thoughts."""

    def __init__(self, limit: ThoughtLimit, vocabulary: Any, prefix: str) -> None:
        """Count the tokens, of a vocabulary of `model.sampling.grammar.vocabulary`, that follow `prefix`."""
        self._vocabulary = vocabulary
        self._opening, self._closing, self._other_end = (
            text.encode() for text in (limit.opening, limit.closing, limit.other_end)
        )
        self._num_left = limit.max_tokens
        self._is_open = limit.is_open
        self._is_over = False
        self._text = b""
        """The text since the last tag; of a thought its end only, in which a tag may have begun."""
        self._read(prefix.encode())

    def take(self, token_id: int) -> None:
        """Count a token."""
        self._num_left -= self._is_open
        self._read(self._vocabulary.decode_bytes([token_id]))

    def closing(self) -> list[int]:
        """Return the tokens that must close the thought now, none if it has not reached the limit."""
        if not self._is_open or self._num_left > 0:
            return []
        num_begun = next(n for n in range(len(self._closing) - 1, -1, -1) if self._text.endswith(self._closing[:n]))
        rest: list[int] = self._vocabulary.tokenize_bytes(self._closing[num_begun:])
        return rest

    def _read(self, new: bytes) -> None:
        self._text += new
        if self._is_open:
            if self._other_end and self._other_end in self._text:
                self._is_open, self._is_over = False, True
            elif self._closing in self._text:
                self._is_open, self._text = False, self._text.partition(self._closing)[2]
            else:
                self._text = self._text[-max(len(self._closing), len(self._other_end)) :]
        if not self._is_open and not self._is_over:
            self._text = self._text.lstrip()
            self._is_over = not self._text.startswith(self._opening[: len(self._text)])
            if self._text.startswith(self._opening):
                self._is_open, self._text = True, self._text[len(self._opening) :]
        if self._is_over:
            self._text = b""
