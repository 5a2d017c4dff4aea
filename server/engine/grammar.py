"""Defines the grammar of one text as the engine sees it; `model.sampling.grammar.matcher` implements it.

Standard library only.
"""

from collections.abc import Sequence
from typing import Protocol


class Grammar(Protocol):
    """The grammar that a text keeps to, at the place that the text has reached."""

    @property
    def is_complete(self) -> bool:
        """Return whether nothing may follow."""

    @property
    def error(self) -> str | None:
        """Return why the text cannot be followed any further, in one line, or None if it can."""

    @property
    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next."""

    @property
    def ends_with_forced(self) -> bool:
        """Return whether the text is complete after the tokens that must come next."""

    def accept(self, token_id: int) -> None:
        """Go past the next token."""

    def take_forced(self, most: int) -> list[int]:
        """Go past at most so many of the tokens that must come next, and return them."""
