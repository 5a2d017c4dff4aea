"""Decides how many tokens of inspection requests the next step may have next to running text, so that their cost stays
below a tenth of its time.

The cost of an inspection request's token depends on the model, the layers asked for, the machine and its neighbours, so
it is measured: a step with inspection requests takes longer than the steps of text alone around it, and the difference
is their cost. While text runs, it earns inspection requests a share of its seconds. They run when they have paid for
what they took, at most in every second step, and with as many tokens at once as make a step a third longer: a product
of many rows costs less per row than many products of few.

It knows seconds and tokens, but no clock, no queue and no tensor; answers do not depend on how inspection requests are
cut into steps. Standard library only.
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median

SHARE = 0.08
"""Most of the time in which text runs that inspection requests may take. What the API process does for them is
extra: on two cores some 3 % of the streams' speed.
"""
_STRETCH = 1 / 3
"""How much longer than its neighbours a step with inspection requests is meant to be: gaps in a stream stay close to
normal.
"""
_MOST_CHARGED = 2.0
"""Most cost charged for one step, in plain steps. One step that the machine itself delayed must not keep inspection
requests waiting for long.
"""
_FIRST_TOKENS = 2
_REMEMBERED = 9


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work that a step computed."""

    num_text_tokens: int
    """Tokens of sequences that generate text, or embed it."""
    num_capture_tokens: int
    only_decodes: bool
    """Whether each sequence, inspection requests aside, had one token: such steps are much alike, others are not."""


class CaptureBudget:
    """A budget to ask for `tokens` before each step in which text runs; afterwards, report to it with `note` what
    the step took.
    """

    def __init__(self, max_tokens: int) -> None:
        """Start a budget; `max_tokens` is the most tokens of inspection requests in one step."""
        self._max_tokens = max_tokens
        self._size = float(min(_FIRST_TOKENS, max_tokens))
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        """Seconds of the latest steps in which each stream got its token and nothing else ran."""
        self._credit = 0.0
        """Seconds that inspection requests may still take; below 0 they took more than their share."""
        self._just_captured = False

    @property
    def tokens(self) -> int:
        """Return the most tokens of inspection requests in the next step; 0 while they wait."""
        return 0 if self._just_captured or self._credit < 0 else int(self._size)

    def state(self) -> dict[str, float]:
        """Return, for a debug dump, the most tokens of inspection requests at once, and the seconds they may still
        take.
        """
        return {"tokens": int(self._size), "credit_seconds": round(self._credit, 6)}

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figures, if inspection requests could be admitted without limit or never
        again.
        """
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
        self._credit = min(earned, _STRETCH * usual)  # what was not used is not saved up for a rush

    def _cost(self, seconds: float, usual: float, work: StepWork) -> float:
        """Return the seconds that the inspection requests of a step took. Below 0 if the step happened to be quick:
        errors even out.
        """
        if work.only_decodes and self._plain:
            cost = seconds - usual
        else:  # nothing to compare it with: the inspections' part of its tokens
            cost = seconds * work.num_capture_tokens / (work.num_text_tokens + work.num_capture_tokens)
        return max(-_MOST_CHARGED * usual, min(cost, _MOST_CHARGED * usual))

    def _resize(self, cost: float, usual: float, num_tokens: int) -> None:
        """Move towards the size that costs what it should: at most twice or half the present one, and only if the
        step had as many tokens of inspection requests as it might have.
        """
        factor = min(2.0, max(0.5, _STRETCH * usual / max(cost, 1e-9)))
        if factor < 1 or num_tokens >= int(self._size):
            self._size = min(max(self._size * factor, 1.0), self._max_tokens)
