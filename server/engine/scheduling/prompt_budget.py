"""Decides how many prompt tokens the next step may have next to running streams, so that gaps in the streams stay
short.

The cost of a prompt token depends on the model, the machine and its position in its text, so it is measured: what a
step with prompts took in addition to the decode steps before it. One prompt gets as many tokens as take about as long
as the streams' own step, or a share of it. So while it is read, however long it is, the streams run at about half their
speed, and it takes twice as long as if it had the machine to itself. `PromptBudget.tokens` describes how much more
several prompts get. A few tokens may always run, whatever they cost: where a step with prompts has a cost of its own, a
budget that shrank with the cost of a token would raise this cost ever more.

It knows seconds and tokens, but no clock, no queue and no tensor; answers do not depend on how prompts are cut into
steps. Standard library only.
"""

from collections import deque
from collections.abc import Callable
from math import isfinite
from statistics import median
from typing import NamedTuple

PromptBound = Callable[[int, int], int]
"""Returns the most prompt tokens in a step, from its numbers of decodes and of prompts."""

_SEVERAL = 1.75
"""How much more several prompts may add: a step is then just under three times as long as one of decodes alone."""
_NEARLY_AS_MANY = 0.75
"""Prompts per stream from which prompts go first: continuing with few streams meanwhile costs a percent or two."""
_REMEMBERED = 9
_FEW_MORE = 1.25
"""How many times as many streams are a few more."""


class PromptLimits(NamedTuple):
    """What prompts may add to a step."""

    least_tokens: int
    """Prompt tokens that may always run; with fewer, a step's time says little about the cost of a token."""
    stretch: float
    """The time that one prompt may add to a step, in steps of decodes alone."""


ON_A_CPU = PromptLimits(least_tokens=16, stretch=1.0)
ON_A_CARD = PromptLimits(least_tokens=128, stretch=0.7)
"""There a hundred rows take about as long as one, and steps are so short that noise is a part of them: a step with a
prompt is to stay under twice the step without.
"""


def adapted(known: float | None, measured: float) -> float:
    """Return the seconds per token that are expected after a step: one that the machine itself delayed must not count
    in full.
    """
    return measured if known is None else min(2 * known, max(known / 1.5, measured))


class PromptBudget:
    """A budget to ask for `tokens` before each step; afterwards, report to it with `note` what a step without
    inspection requests took.
    """

    def __init__(self, limits: PromptLimits = ON_A_CPU) -> None:
        self._limits = limits
        self._decodes: dict[int, deque[float]] = {}
        """Seconds of the latest steps in which each stream got its token and nothing else ran, by the number of
        streams. While prompts come without pause there are no such steps, and those of other numbers would mislead.
        """
        self._cost: float | None = None
        """Recent seconds per prompt token."""

    def tokens(self, num_decodes: int, num_prompts: int) -> int | None:
        """Return the most tokens of so many prompts in a step in which so many streams, at least one, get theirs, or
        None while nothing is known to calculate with.

        In a step with both, the prompts wait for the streams' part, and the streams for the prompts'. So if nearly as
        many prompts wait as streams run, the prompts go first: their part grows with the square of their number, and a
        wave of them is read at once. Otherwise no stream waits long, however many prompts come: requests that began
        together end together, and the next wave would stop all remaining streams until it is read.
        """
        own = self._own(num_decodes)
        if self._cost is None or own is None:
            return None
        tokens = max(self._limits.least_tokens, int(self._limits.stretch * own / self._cost))
        if num_prompts > _NEARLY_AS_MANY * num_decodes:
            return tokens * 2 * num_prompts**2 // num_decodes
        return int(_SEVERAL * tokens) if num_prompts > 1 else tokens

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figures, if prompts could be admitted without limit or never again."""
        known = [seconds for steps in self._decodes.values() for seconds in steps]
        if not all(isfinite(seconds) and seconds >= 0 for seconds in [*known, self._cost or 0.0]):
            raise AssertionError(f"the budget of prompts makes no sense: {self._cost} s a token, steps of {known}")

    def note(self, seconds: float, num_decodes: int, num_prompt_tokens: int) -> None:
        """Account for a step of streams, prompts or both."""
        if num_decodes and not num_prompt_tokens:
            self._decodes.setdefault(num_decodes, deque(maxlen=_REMEMBERED)).append(seconds)
        if num_prompt_tokens < self._limits.least_tokens:
            return
        own = self._own(num_decodes) if num_decodes else None
        cost = max((seconds - (own or 0.0)) / num_prompt_tokens, 1e-9)
        # Of few tokens each costs less than of many.
        self._cost = adapted(self._cost, cost)

    def _own(self, num_decodes: int) -> float | None:
        """Return the seconds of a step of so many streams alone, from the nearest known number of streams; half of
        the time is assumed to grow with the streams. Returns None if no such step was seen.
        """
        if not self._decodes:
            return None
        nearest = min(self._decodes, key=lambda known: abs(known - num_decodes))
        own = median(self._decodes[nearest]) * (1 + num_decodes / nearest) / 2
        # A number that streams hardly ever have may be known from one slow step; a few more take no less time.
        more = [steps for known, steps in self._decodes.items() if num_decodes < known <= _FEW_MORE * num_decodes]
        return min([own, *map(median, more)])
