"""How many tokens of prompts the next step may have beside running streams: what keeps gaps in the streams short.

What a prompt's token costs depends on the model, the machine and how far into its text it stands, so it is measured:
of a step with prompts, what it took beyond the steps of decodes before it. One prompt gets as many tokens as take about
as long as the streams' own step. So while it is read, however long, the streams run at half their speed, and it takes
twice as long as if it had the machine for itself. How much more several get is `tokens_beside`.

Knows seconds and tokens. No clock, no queue, no tensor; answers do not depend on how prompts are cut into steps.
Standard library only.
"""

from collections import deque
from math import isfinite
from statistics import median

_STRETCH = 1.0
"""What one prompt may add to a step, in steps of decodes alone."""
_SEVERAL = 1.75
"""How much more several prompts may add: a step is then just under three times as long as one of decodes alone."""
_LEAST_TOKENS = 16
"""So many may always run; of fewer, a step's time says little about what a token costs."""
_REMEMBERED = 9


def tokens_beside(num_decodes: int, num_prompts: int, tokens: int) -> int:
    """Most tokens of so many prompts in a step in which so many streams, at least one, get theirs.

    Of a step with both, the prompts behind it wait for the streams' part, and the streams for the prompts'. So where
    more prompts wait than streams run, they go first: their part grows with their square, and a wave of them that finds
    few streams is read at once. Else no stream waits long, however many prompts come: requests that began together end
    together, and the next wave would stop all streams that are left until it is read.

    tokens: what one prompt may have, `PromptBudget.tokens`.
    """
    if num_prompts > num_decodes:
        return tokens * 2 * num_prompts**2 // num_decodes
    return int(_SEVERAL * tokens) if num_prompts > 1 else tokens


class PromptBudget:
    """Ask it for `tokens` before each step; tell it afterwards, with `note`, what a step without looks took."""

    def __init__(self) -> None:
        self._decodes: deque[float] = deque(maxlen=_REMEMBERED)
        """Seconds of the latest steps in which each stream got its token and nothing else ran."""
        self._cost: float | None = None
        """Seconds of a prompt's token, lately."""

    @property
    def tokens(self) -> int | None:
        """Most tokens of one prompt in a step that streams wait for; None while nothing is known to reckon with."""
        if self._cost is None or not self._decodes:
            return None
        return max(_LEAST_TOKENS, int(_STRETCH * median(self._decodes) / self._cost))

    def check_integrity(self) -> None:
        """Raises AssertionError, with the figures, when prompts could be let in without bound or never again."""
        if not all(isfinite(seconds) and seconds >= 0 for seconds in [*self._decodes, self._cost or 0.0]):
            raise AssertionError(
                f"the budget of prompts makes no sense: {self._cost} s a token, steps of {list(self._decodes)}"
            )

    def note(self, seconds: float, num_decodes: int, num_prompt_tokens: int) -> None:
        """Book a step of streams, prompts or both."""
        if not num_prompt_tokens:
            self._decodes.append(seconds)
        if num_prompt_tokens < _LEAST_TOKENS:
            return
        own = median(self._decodes) if num_decodes and self._decodes else 0.0
        cost = max((seconds - own) / num_prompt_tokens, 1e-9)
        # One step that the machine itself held up says little; of few tokens each costs less than of many.
        self._cost = cost if self._cost is None else min(2 * self._cost, max(self._cost / 1.5, cost))
