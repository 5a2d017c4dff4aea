"""Speculation: drafts of the next tokens of a text, which one step computes and checks together.

A step draws a token at each row of a chunk with drafts. A draw is a function of the row's logits, the seed and the
position, and a row's bits don't depend on the other rows; so a draft that equals the draw of the row before it is
exactly the token that a step of its own would have drawn. The drafts after the first wrong one are dropped.

The number of drafts follows the accuracy of the text's repetitions and the measured cost of a row. The n-th draft is
worth its row if the probability that all of the first n are right exceeds the row's cost, as a share of the time of
one token in a step without drafts.
"""

from lightwell.server.engine.grammar import Grammar
from lightwell.server.engine.repetitions import Repetitions
from lightwell.server.engine.sequence import Draft, Sequence

FIXED = 4
"""Drafts of a chunk if their number does not follow the cost."""
_MOST = 12
"""Most drafts of a chunk."""
_FIRST_COST = 0.15
"""Cost of a row before the first measurement, as a share of the time of a step for one text."""
_MARGIN = 1.25
"""Least ratio of a draft's value to its cost."""
_LEAST_VALUE = 0.15
_DECAY = 0.9
"""Weight of older measurements, after each one."""
_FORGETTING = 0.995
"""Factor on the cost after each draft that it prevents: otherwise a wrong measurement would last."""


class Speculation:
    """The drafts of all texts of an engine."""

    def __init__(self, mode: str = "off") -> None:
        self.mode = mode
        """As in `EngineConfig.speculation`."""
        self._decode_seconds: dict[int, float] = {}
        """Seconds of a step without drafts, by its number of texts."""
        self._seconds, self._rows = 0.0, 0.0
        """Recent seconds of additional rows, and their number."""

    def may_draft(self, num_texts: int) -> bool:
        """Return whether a step with `num_texts` texts may have drafts."""
        if self.mode == "auto":
            return num_texts in self._decode_seconds or self._least_value(num_texts) <= 1
        return self.mode != "off"

    def drafts(self, seq: Sequence, room: int, num_texts: int) -> tuple[Draft, ...]:
        """Return the drafts of a text, at most `room`, in a step with `num_texts` texts. The grammar allows them, and
        none of them ends the text.
        """
        params = seq.sampling_params
        if self.mode == "off" or params is None or not params.speculation:
            return ()
        room = min(room, params.max_tokens - (seq.num_tokens - seq.num_prompt_tokens) - 1)
        if room <= 0:
            return ()
        found: list[Draft] = []
        grammar: Grammar | None = seq.grammar
        for token_id in self._predicted(seq, num_texts)[:room]:
            if token_id in seq.stopping_ids:
                break
            if grammar is not None:
                if not grammar.allows(token_id):
                    break
                grammar = grammar.copy()
                grammar.accept(token_id)
                if grammar.error is not None or grammar.is_complete:
                    break
            found.append(Draft(token_id, grammar))
        return tuple(found)

    def _predicted(self, seq: Sequence, num_texts: int) -> list[int]:
        """Return the next tokens that are worth their rows."""
        if self.mode == "draft":
            found, seq.predicted = seq.predicted, []
            return found
        if seq.repetitions is None:
            seq.repetitions = Repetitions(seq.token_ids[: seq.num_prompt_tokens], seq.prediction)
        seq.repetitions.take(seq.token_ids)
        count = FIXED if self.mode == "ngram" else self._count(seq.repetitions.accuracy, num_texts)
        return seq.repetitions.predict(count)

    def note(self, seconds: float, num_texts: int, num_rows: int, decode_seconds: float | None) -> None:
        """Report a step of `num_texts` texts with `num_rows` additional rows. decode_seconds: the time of such a step
        without these rows, or None if it is not known.
        """
        if decode_seconds is None:
            return
        self._decode_seconds[num_texts] = decode_seconds
        extra = min(max(seconds - decode_seconds, 0.0), num_rows * decode_seconds)
        self._seconds, self._rows = _DECAY * self._seconds + extra, _DECAY * self._rows + num_rows

    def _count(self, accuracy: float, num_texts: int) -> int:
        """Return the number of drafts that are worth their rows."""
        if accuracy < _LEAST_VALUE:
            return 0
        least = self._least_value(num_texts)
        count, value = 0, accuracy
        while count < _MOST and value >= least:
            count, value = count + 1, value * accuracy
        if not count:
            self._seconds *= _FORGETTING
        return count

    def _least_value(self, num_texts: int) -> float:
        """Return the least value of a draft that is worth its row."""
        cost, own = _FIRST_COST * num_texts, self._decode_seconds.get(num_texts)
        if own is not None and self._rows:
            cost = num_texts * self._seconds / self._rows / max(own, 1e-9)
        return max(_LEAST_VALUE, _MARGIN * cost)
