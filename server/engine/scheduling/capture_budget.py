"""Capture budget: bounds the tokens of inspection requests in a step next to running text, to less than a tenth of its
time.

The cost of an inspection request's token depends on the model, the layers, the machine and its load, so it is measured:
the difference between a step with inspection requests and the steps of only text around it. While text runs, inspection
requests earn a share of its seconds as credit. They run while their credit is not negative, at most in every second
step, and with as many tokens at once as make a step a third longer: a product of many rows costs less per row than many
products of few rows. Answers do not depend on how inspection requests are divided into steps.
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median

SHARE = 0.08
"""Largest share of the time of running text for inspection requests. The API process's work for them is extra: on two
cores about 3 % of the streams' speed.
"""
_STRETCH = 1 / 3
"""Target for the extra time of a step with inspection requests, as a fraction of a plain step: gaps in a stream stay
close to normal.
"""
_MOST_CHARGED = 2.0
"""Most cost charged for one step, in plain steps, so that one step delayed by the machine does not stop inspection
requests for long.
"""
_FIRST_TOKENS = 2
_REMEMBERED = 9


@dataclass(frozen=True, slots=True)
class StepWork:
    """The tokens that a step computed."""

    num_text_tokens: int
    """Tokens of sequences that generate or embed text."""
    num_capture_tokens: int
    only_decodes: bool
    """Whether each sequence, except inspection requests, had one token: the times of such steps are similar."""


class CaptureBudget:
    """Read `tokens` before each step in which text runs, and report the step's time with `note`."""

    def __init__(self, max_tokens: int) -> None:
        """Start a budget; `max_tokens` is the most tokens of inspection requests in one step."""
        self._max_tokens = max_tokens
        self._size = float(min(_FIRST_TOKENS, max_tokens))
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        """Seconds of the latest steps of only decodes."""
        self._credit = 0.0
        """Seconds that inspection requests may take; below 0 they took more than their share."""
        self._just_captured = False

    @property
    def tokens(self) -> int:
        """Return the most tokens of inspection requests in the next step; 0 while they wait."""
        return 0 if self._just_captured or self._credit < 0 else int(self._size)

    def state(self) -> dict[str, float]:
        """Return the size in tokens and the credit in seconds, for a debug dump."""
        return {"tokens": int(self._size), "credit_seconds": round(self._credit, 6)}

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figures, if they would admit inspection requests without limit or never."""
        is_bounded = 1 <= self._size <= self._max_tokens
        if not (is_bounded and isfinite(self._credit) and all(isfinite(s) and s >= 0 for s in self._plain)):
            figures = f"{self._size} of {self._max_tokens} tokens, credit {self._credit}, steps of {list(self._plain)}"
            raise AssertionError(f"the budget of captured tokens makes no sense: {figures}")

    def note(self, seconds: float, work: StepWork) -> None:
        """Account for a step in which text ran."""
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
        self._credit = min(earned, _STRETCH * usual)  # unused credit is not saved

    def _cost(self, seconds: float, usual: float, work: StepWork) -> float:
        """Return the seconds of a step's inspection requests. It may be negative for a fast step: errors cancel out."""
        if work.only_decodes and self._plain:
            cost = seconds - usual
        else:  # no plain step to compare with: their share of the step's tokens
            cost = seconds * work.num_capture_tokens / (work.num_text_tokens + work.num_capture_tokens)
        return max(-_MOST_CHARGED * usual, min(cost, _MOST_CHARGED * usual))

    def _resize(self, cost: float, usual: float, num_tokens: int) -> None:
        """Change the size towards the target cost, at most to twice or half of it; up only after a full step."""
        factor = min(2.0, max(0.5, _STRETCH * usual / max(cost, 1e-9)))
        if factor < 1 or num_tokens >= int(self._size):
            self._size = min(max(self._size * factor, 1.0), self._max_tokens)
