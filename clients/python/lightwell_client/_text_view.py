"""Shows generated text in a notebook and as a plot: its tokens by their probabilities, and their attention rows."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

from lightwell_client._exceptions import MissingDependency
from lightwell_client._notebook import NotebookView, coloured, maps, num_maps, page
from lightwell_client._plots import bars

Tokens = list[tuple[str, float]]
"""Tokens and their probabilities."""


class TextView(NotebookView):
    """An answer with texts as choices."""

    __slots__ = ()

    def _texts(self) -> Sequence[tuple[str, Any]]:
        """Return each choice as its text and the choice."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return the notebook view: each text, its tokens on the colour of their probability if there are
        log-probabilities (the bluer, the less likely), the reasons, and the attention rows as heat maps.
        """
        tables, told, count = [], [], 0
        for text, choice in self._texts():
            tokens = [(token, f"{token!r}: {p:.4g}", p - 1) for token, p in _probabilities(choice)]
            tables.append(f"<p>choice {choice.index}, finish_reason {html.escape(str(choice.finish_reason))}</p>")
            tables.append(
                coloured(tokens) if tokens else f"<pre style='white-space:pre-wrap'>{html.escape(text)}</pre>"
            )
            tables += [each._repr_html_() for each in getattr(choice, "reasons", None) or ()]
            if choice.attention is not None:
                told.append((f"choice {choice.index}, attention", choice.attention))
        try:
            count = sum(num_maps(attention.array, attention.axes) for _, attention in told)
        except MissingDependency:  # the texts need no numpy
            told = []
        return page(type(self).__name__, tables, _pictures(told), count)

    def plot(self, choice: int = 0, ax: Any = None) -> Any:
        """Draw the probability of each token of a choice as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: the answer has no log-probabilities, or no such choice.
        """
        found = [each for _, each in self._texts() if each.index == choice]
        if not found:
            raise ValueError(f"choice is {choice}; this answer has {[each.index for _, each in self._texts()]}")
        tokens = _probabilities(found[0])
        if not tokens:
            raise ValueError("plot() draws the tokens' probabilities: ask with logprobs=1, or logprobs=True in a chat")
        return bars(tokens, label="probability", title=f"tokens of choice {choice}", ax=ax)


def _probabilities(choice: Any) -> Tokens:
    """Return the tokens of a choice with their probabilities; none if it has no log-probabilities."""
    if (told := choice.logprobs) is None:
        return []
    if hasattr(told, "token_logprobs"):
        pairs = zip(told.tokens, told.token_logprobs, strict=True)
        return [(token, math.exp(logprob)) for token, logprob in pairs if logprob is not None]
    return [(each.token, math.exp(each.logprob)) for each in told.content or ()]


def _pictures(told: Sequence[tuple[str, Any]]) -> Iterator[str]:
    for title, attention in told:
        numbers = {"layer": attention.layers, "head": attention.heads, "query": attention.query_positions}

        def names(axis: str, length: int, numbers: dict[str, Any] = numbers) -> list[str]:
            own = numbers.get(axis)
            return [str(number) for number in (own if own and len(own) == length else range(length))]

        yield from maps(title, attention.array, attention.axes, names)
