"""Repetitions in one text: the earlier place that its end repeats, and the tokens that followed there.

The index has a constant cost per token. Each new token is compared with the one that the place predicts, also when no
step checks a draft: so the accuracy of the predictions is known before the first draft costs anything.
"""

from collections.abc import Sequence

_LENGTH = 3
"""Tokens that must agree with an earlier place."""
_LONGEST = 16
"""Most agreeing tokens that are counted when a place is found."""
_MOST_INDEXED = 1 << 15
"""Most tokens of a prompt, and of a predicted text, that are indexed."""
_BOUNDS = (5, 9)
"""Numbers of agreeing tokens that separate the classes of accuracy."""
_FIRST_ACCURACY = (0.05, 0.3, 0.7)
"""Expected accuracy of each class, which counts as much as `_PRIOR` predictions."""
_PRIOR = 2.0
_DECAY = 0.95
"""Weight of older predictions, after each one."""

Key = tuple[int, ...]


class Repetitions:
    """The predictions of one text, from its own tokens and from a predicted text."""

    def __init__(self, token_ids: Sequence[int], prediction: Sequence[int] = ()) -> None:
        """Index a text so far. prediction: the tokens that its continuation may repeat."""
        prediction = prediction[:_MOST_INDEXED]
        self._history = [*prediction, *token_ids]
        self._num_predicted = len(prediction)
        first = max(self._num_predicted, len(self._history) - _MOST_INDEXED)
        self._places: dict[Key, int] = {}
        """The place after the latest occurrence of each n-gram; the prediction has precedence over the prompt."""
        self._index(first, len(self._history) - 1)
        self._index(0, self._num_predicted)
        self._hits = [_PRIOR * accuracy for accuracy in _FIRST_ACCURACY]
        self._tries = [_PRIOR] * len(_FIRST_ACCURACY)
        self._place: int | None = 0
        """The place of the expected next token, or None."""
        self._matched = _LONGEST
        """Agreeing tokens before it."""
        if not prediction:
            self._find()

    def take(self, token_ids: Sequence[int]) -> None:
        """Read the tokens of the text that are new since the last call. token_ids: the whole text."""
        for token in token_ids[len(self._history) - self._num_predicted :]:
            is_hit = self._place is not None and self._history[self._place] == token
            if self._place is not None:
                group = self._group
                self._hits[group] = _DECAY * self._hits[group] + is_hit
                self._tries[group] = _DECAY * self._tries[group] + 1
            self._index(len(self._history) - _LENGTH, len(self._history))
            self._history.append(token)
            if is_hit and self._place is not None:
                self._place += 1
                self._matched += 1
            else:
                self._find()

    @property
    def accuracy(self) -> float:
        """Return the probability that the next prediction is right, as far as is known; 0 without a prediction."""
        return 0.0 if self._place is None else self._hits[self._group] / self._tries[self._group]

    def predict(self, num_tokens: int) -> list[int]:
        """Return the next tokens, [] without a prediction. A place near the end repeats the predicted tokens."""
        found: list[int] = []
        if self._place is not None:
            period = len(self._history) - self._place
            for i in range(num_tokens):
                found.append(self._history[self._place + i] if i < period else found[i - period])
        return found

    @property
    def _group(self) -> int:
        return sum(self._matched >= bound for bound in _BOUNDS)

    def _index(self, first: int, end: int) -> None:
        """Index the n-grams within the places [first, end)."""
        first = max(0, first)
        grams = zip(*[self._history[first + i : end] for i in range(_LENGTH)], strict=False)
        self._places.update(zip(grams, range(first + _LENGTH, end + 1), strict=False))

    def _find(self) -> None:
        """Find the latest place that agrees with the end of the text."""
        history = self._history
        self._place = place = self._places.get(tuple(history[-_LENGTH:]))
        if place is not None:
            most = min(_LONGEST, place)
            self._matched = next((n for n in range(_LENGTH, most) if history[-1 - n] != history[place - 1 - n]), most)
