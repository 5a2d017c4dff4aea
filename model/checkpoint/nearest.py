"""Suggests the nearest of the names that exist for one that does not."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'name'?" with up to three names, nearest first, or nothing if no name is near."""
    near = difflib.get_close_matches(word, list(names), 3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
