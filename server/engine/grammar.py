"""The grammar of one text, for the scheduler; `model.sampling.grammar.matcher` implements it."""

from collections.abc import Sequence
from typing import Protocol, Self


class Grammar(Protocol):
    """The grammar of a text, at the end of the text so far."""

    @property
    def is_complete(self) -> bool:
        """Return whether nothing may follow."""

    @property
    def error(self) -> str | None:
        """Return the reason why no continuation is possible, in one line, or None."""

    @property
    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next."""

    @property
    def ends_with_forced(self) -> bool:
        """Return whether the text is complete after the tokens that must come next."""

    def allows(self, token_id: int) -> bool:
        """Return whether this token may come next."""

    def accept(self, token_id: int) -> None:
        """Append a token to the text."""

    def copy(self) -> Self:
        """Return another grammar at the same place."""

    def take_forced(self, most: int) -> list[int]:
        """Append and return the tokens that must come next, at most `most`."""
