"""How much of the next step looks may have beside running text: what keeps their cost below a tenth of its time.

What a token of looks costs depends on the model, the layers asked for, the machine and its neighbours, so it is
measured: a step with looks takes longer than the steps of text alone around it, and the difference is their cost. Text
earns the looks a part of the seconds it runs; looks run when they have paid for what they took, at most in every
second step, and as many tokens at once as make a step a third longer: a product of many rows costs less a row than
many products of few.

Knows seconds and tokens. No clock, no queue, no tensor; answers do not depend on how looks are cut into steps. Standard
library only.
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median

SHARE = 0.08
"""Most of the time in which text runs that looks may take. What the API process does for them comes on top: on two
cores some 3 % of the streams' speed.
"""
_STRETCH = 1 / 3
"""How much longer than its neighbours a step with looks is meant to be: gaps in a stream stay near the usual."""
_MOST_CHARGED = 2.0
"""In plain steps. One step that the machine itself held up must not keep looks waiting for long."""
_FIRST_TOKENS = 2
_REMEMBERED = 9


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computed."""

    num_text_tokens: int
    """Of sequences that write text, or embed it."""
    num_capture_tokens: int
    only_decodes: bool
    """But for the looks, each sequence had one token: steps like it are much alike, others are not."""


class CaptureBudget:
    """Ask it for `tokens` before each step in which text runs; tell it afterwards, with `note`, what the step took."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: most tokens of looks in one step."""
        self._max_tokens = max_tokens
        self._size = float(min(_FIRST_TOKENS, max_tokens))
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        """Seconds of the latest steps in which each stream got its token and nothing else ran."""
        self._credit = 0.0
        """Seconds that looks may still take; below 0 they took more than was theirs."""
        self._just_captured = False

    @property
    def tokens(self) -> int:
        """Most tokens of looks in the next step; 0 while they wait."""
        return 0 if self._just_captured or self._credit < 0 else int(self._size)

    def state(self) -> dict[str, float]:
        """For a debug dump: most tokens of looks at once, and the seconds they may still take."""
        return {"tokens": int(self._size), "credit_seconds": round(self._credit, 6)}

    def check_integrity(self) -> None:
        """Raises AssertionError, with the figures, when looks could be let in without bound or never again."""
        is_bounded = 1 <= self._size <= self._max_tokens
        if not (is_bounded and isfinite(self._credit) and all(isfinite(s) and s >= 0 for s in self._plain)):
            figures = f"{self._size} of {self._max_tokens} tokens, credit {self._credit}, steps of {list(self._plain)}"
            raise AssertionError(f"the budget of looks makes no sense: {figures}")

    def note(self, seconds: float, work: StepWork) -> None:
        """Book a step in which text ran."""
        self._just_captured = work.num_capture_tokens > 0
        if work.only_decodes and not self._just_captured:
            self._plain.append(seconds)
        usual = median(self._plain) if self._plain else seconds
        cost = 0.0
        if self._just_captured:
            cost = self._cost(seconds, usual, work)
            if work.only_decodes and self._plain:
                self._resize(cost, usual, work.num_capture_tokens)
        earned = self._credit + SHARE * seconds - cost
        self._credit = min(earned, _STRETCH * usual)  # what was not used is not saved up for a rush

    def _cost(self, seconds: float, usual: float, work: StepWork) -> float:
        """Seconds that the looks of a step took. Below 0 where the step happened to be quick: errors even out."""
        if work.only_decodes and self._plain:
            cost = seconds - usual
        else:  # nothing to compare it with: the looks' part of its tokens
            cost = seconds * work.num_capture_tokens / (work.num_text_tokens + work.num_capture_tokens)
        return max(-_MOST_CHARGED * usual, min(cost, _MOST_CHARGED * usual))

    def _resize(self, cost: float, usual: float, num_tokens: int) -> None:
        """Go towards the size that costs what it should: at most twice or half the present one, and only where a look
        had as many tokens as it might have.
        """
        factor = min(2.0, max(0.5, _STRETCH * usual / max(cost, 1e-9)))
        if factor < 1 or num_tokens >= int(self._size):
            self._size = min(max(self._size * factor, 1.0), self._max_tokens)
