"""How many tokens of prompts the next step may have beside running streams: what keeps gaps in the streams short.

What a prompt's token costs depends on the model, the machine and how far into its text it stands, so it is measured:
of a step with prompts, what it took beyond the steps of decodes before it. One prompt gets as many tokens as take about
as long as the streams' own step. So while it is read, however long, the streams run at half their speed, and it takes
twice as long as if it had the machine for itself. How much more several get is in `PromptBudget.tokens`.

Knows seconds and tokens. No clock, no queue, no tensor; answers do not depend on how prompts are cut into steps.
Standard library only.
"""

from collections import deque
from collections.abc import Callable
from math import isfinite
from statistics import median

PromptBound = Callable[[int, int], int | None]
"""Most tokens of prompts in a step, by its numbers of decodes and of prompts; None is no bound."""

_STRETCH = 1.0
"""What one prompt may add to a step, in steps of decodes alone."""
_SEVERAL = 1.75
"""How much more several prompts may add: a step is then just under three times as long as one of decodes alone."""
_NEARLY_AS_MANY = 0.75
"""So many prompts for each stream go first: to go on with few streams meanwhile costs a percent or two."""
_LEAST_TOKENS = 16
"""So many may always run; of fewer, a step's time says little about what a token costs."""
_REMEMBERED = 9


class PromptBudget:
    """Ask it for `tokens` before each step; tell it afterwards, with `note`, what a step without looks took."""

    def __init__(self) -> None:
        self._decodes: dict[int, deque[float]] = {}
        """By the number of streams, seconds of the latest steps in which each got its token and nothing else ran. While
        prompts come without pause there are no such steps, and those of other numbers would mislead.
        """
        self._cost: float | None = None
        """Seconds of a prompt's token, lately."""

    def tokens(self, num_decodes: int, num_prompts: int) -> int | None:
        """Most tokens of so many prompts in a step in which so many streams, at least one, get theirs; None while
        nothing is known to reckon with.

        Of a step with both, the prompts behind it wait for the streams' part, and the streams for the prompts'. So
        where nearly as many prompts wait as streams run, they go first: their part grows with their square, and a wave
        of them is read at once. Else no stream waits long, however many prompts come: requests that began together end
        together, and the next wave would stop all streams that are left until it is read.
        """
        own = self._own(num_decodes)
        if self._cost is None or own is None:
            return None
        tokens = max(_LEAST_TOKENS, int(_STRETCH * own / self._cost))
        if num_prompts > _NEARLY_AS_MANY * num_decodes:
            return tokens * 2 * num_prompts**2 // num_decodes
        return int(_SEVERAL * tokens) if num_prompts > 1 else tokens

    def check_integrity(self) -> None:
        """Raises AssertionError, with the figures, when prompts could be let in without bound or never again."""
        known = [seconds for steps in self._decodes.values() for seconds in steps]
        if not all(isfinite(seconds) and seconds >= 0 for seconds in [*known, self._cost or 0.0]):
            raise AssertionError(f"the budget of prompts makes no sense: {self._cost} s a token, steps of {known}")

    def note(self, seconds: float, num_decodes: int, num_prompt_tokens: int) -> None:
        """Book a step of streams, prompts or both."""
        if num_decodes and not num_prompt_tokens:
            self._decodes.setdefault(num_decodes, deque(maxlen=_REMEMBERED)).append(seconds)
        if num_prompt_tokens < _LEAST_TOKENS:
            return
        own = self._own(num_decodes) if num_decodes else None
        cost = max((seconds - (own or 0.0)) / num_prompt_tokens, 1e-9)
        # One step that the machine itself held up says little; of few tokens each costs less than of many.
        self._cost = cost if self._cost is None else min(2 * self._cost, max(self._cost / 1.5, cost))

    def _own(self, num_decodes: int) -> float | None:
        """Seconds of a step of so many streams alone: that of the number nearest to it, half of which is taken to grow
        with the streams. None where no such step was seen.
        """
        if not self._decodes:
            return None
        nearest = min(self._decodes, key=lambda known: abs(known - num_decodes))
        return median(self._decodes[nearest]) * (1 + num_decodes / nearest) / 2
