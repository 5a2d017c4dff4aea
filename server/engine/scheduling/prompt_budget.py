"""Prompt budget: bounds the prompt tokens of a step next to running streams, so that gaps in the streams stay short.

The cost of a prompt token depends on the model, the machine and its position in its text, so it is measured: the extra
time of a step with prompts over the decode steps before it. One prompt gets as many tokens as take about the time of
the streams' own step, or a share of it. So during a prompt of any length, the streams run at about half their speed,
and the prompt takes twice as long as on an idle machine. `PromptBudget.tokens` describes the budget of several prompts.
A few tokens may always run: a step with prompts has a fixed cost, so a budget that shrank with the cost of a token
would raise this cost further. Answers do not depend on how prompts are divided into steps.
"""

from collections import deque
from collections.abc import Callable
from math import isfinite
from statistics import median
from typing import NamedTuple

PromptBound = Callable[[int, int], int]
"""Returns the most prompt tokens in a step, from its numbers of decodes and of prompts."""

_SEVERAL = 1.75
"""Factor on the budget of several prompts: a step is then just under three times as long as one of only decodes."""
_NEARLY_AS_MANY = 0.75
"""Prompts per stream above which prompts run first; the few streams meanwhile cost one or two percent."""
_REMEMBERED = 9
_FEW_MORE = 1.25
"""Largest ratio of numbers of streams that are compared with each other."""


class PromptLimits(NamedTuple):
    """Limits of the prompts in a step."""

    least_tokens: int
    """Prompt tokens that may always run; the time of a step with fewer is a poor measure of the cost of a token."""
    stretch: float
    """The time that one prompt may add to a step, in steps of only decodes."""
    background_seconds: float
    """Time of a step of batch rows. It is kept under 20 ms; on a GPU, of two steps that are started one after another.
    """


ON_A_CPU = PromptLimits(least_tokens=16, stretch=1.0, background_seconds=0.018)
ON_A_CARD = PromptLimits(least_tokens=128, stretch=0.7, background_seconds=0.009)
"""On a GPU a hundred rows take about as long as one, and the times of the short steps are noisy: a step with a prompt
should stay under twice the step without.
"""


def adapted(known: float | None, measured: float) -> float:
    """Return the expected seconds per token after a measurement. A large change counts only in part, since the machine
    may have delayed the step.
    """
    return measured if known is None else min(2 * known, max(known / 1.5, measured))


class PromptBudget:
    """Read `tokens` before each step, and report the time of a step without inspection requests with `note`."""

    def __init__(self, limits: PromptLimits = ON_A_CPU) -> None:
        self._limits = limits
        self._decodes: dict[int, deque[float]] = {}
        """Seconds of the latest steps of only decodes, by the number of streams: while prompts come without pause,
        there are no such steps, and steps of other numbers of streams would mislead.
        """
        self._cost: float | None = None
        """Recent seconds per prompt token."""

    def tokens(self, num_decodes: int, num_prompts: int) -> int | None:
        """Return the most tokens of `num_prompts` prompts in a step with `num_decodes` streams, at least one; None
        without measurements.

        In a step with both, prompts and streams wait for each other. If nearly as many prompts wait as streams run, the
        prompts run first: their budget grows with the square of their number, so a wave of prompts is computed at once.
        Otherwise no stream waits long for any number of prompts: requests that began together end together, and the
        next wave would stop all remaining streams.
        """
        own = self.decode_seconds(num_decodes)
        if self._cost is None or own is None:
            return None
        tokens = max(self._limits.least_tokens, int(self._limits.stretch * own / self._cost))
        if num_prompts > _NEARLY_AS_MANY * num_decodes:
            return tokens * 2 * num_prompts**2 // num_decodes
        return int(_SEVERAL * tokens) if num_prompts > 1 else tokens

    def check_integrity(self) -> None:
        """Raise AssertionError, with the figures, if they would admit prompts without limit or never."""
        known = [seconds for steps in self._decodes.values() for seconds in steps]
        if not all(isfinite(seconds) and seconds >= 0 for seconds in [*known, self._cost or 0.0]):
            raise AssertionError(f"the budget of prompts makes no sense: {self._cost} s a token, steps of {known}")

    def note(self, seconds: float, num_decodes: int, num_prompt_tokens: int) -> None:
        """Report a step of streams, prompts or both."""
        if num_decodes and not num_prompt_tokens:
            self._decodes.setdefault(num_decodes, deque(maxlen=_REMEMBERED)).append(seconds)
        if num_prompt_tokens < self._limits.least_tokens:
            return
        own = self.decode_seconds(num_decodes) if num_decodes else None
        cost = max((seconds - (own or 0.0)) / num_prompt_tokens, 1e-9)
        self._cost = adapted(self._cost, cost)

    def decode_seconds(self, num_decodes: int) -> float | None:
        """Return the seconds of a step of only `num_decodes` streams, estimated from the nearest known number of
        streams; half of the time is assumed to grow with the streams. None without measurements.
        """
        if not self._decodes:
            return None
        nearest = min(self._decodes, key=lambda known: abs(known - num_decodes))
        own = median(self._decodes[nearest]) * (1 + num_decodes / nearest) / 2
        # A rare number of streams may have only one slow measurement; a few more streams take no less time.
        more = [steps for known, steps in self._decodes.items() if num_decodes < known <= _FEW_MORE * num_decodes]
        return min([own, *map(median, more)])
