"""Fits the line nearest to measured steps: the least relative errors, no coefficient below 0. It knows no engine."""

import statistics
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.simulation.step_times import StepTimes

Floats = npt.NDArray[np.float64]
_ROUNDS = 30
_LEAST_ERROR = 0.01
FIELDS = ("base", "per_prompt_token", "per_sequence", "per_context_key")


class Step(NamedTuple):
    """One step: what it computed, and its seconds."""

    prompt_tokens: int
    sequences: int
    context_keys: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """Step times and how far they are from the steps that they were fitted to."""

    times: StepTimes
    steps: list[Step]

    @property
    def errors(self) -> list[float]:
        """Return the relative error of each step."""
        return [abs(self.times.seconds(*step[:3]) / step.seconds - 1) for step in self.steps]

    @property
    def total_error(self) -> float:
        """Return the relative error of all steps together."""
        return sum(self.times.seconds(*step[:3]) for step in self.steps) / sum(step.seconds for step in self.steps) - 1

    @property
    def error(self) -> str:
        errors = self.errors
        tenths = statistics.quantiles(errors, n=10)
        return (
            f"a step is off by {100 * statistics.median(errors):.0f} % (p50) and {100 * tenths[8]:.0f} % (p90), "
            f"all {len(errors)} together by {100 * self.total_error:+.1f} %"
        )

    def capacity(self, prompt_tokens: int, output_tokens: int, sequences: int) -> float:
        """Return the requests a second of such lengths that one engine answers with `sequences` at once."""
        keys = round(sequences * (prompt_tokens + output_tokens / 2))
        own = self.times.per_prompt_token * prompt_tokens
        return 1 / (own + output_tokens * self.times.seconds(0, sequences, keys) / sequences)


def fit_steps(steps: list[Step]) -> Fit:
    """Return the line nearest to these steps, each error counted as a share of its step. Raises ValueError for fewer
    than 8.
    """
    if len(steps) < 8:
        raise ValueError(f"{len(steps)} steps; at least 8 are needed")
    seconds = np.array([step.seconds for step in steps])
    columns = np.array([[1.0, *step[:3]] for step in steps]) / seconds[:, None]
    kept = list(range(len(FIELDS)))
    while True:  # a coefficient below 0 is what another one overdid: without it
        found = _least_errors(columns[:, kept])
        if found.min() >= 0 or len(kept) == 1:
            break
        kept.pop(int(found.argmin()))
    values = dict.fromkeys(FIELDS, 0.0) | {FIELDS[place]: max(0.0, float(found[i])) for i, place in enumerate(kept)}
    return Fit(StepTimes(**values), steps)


def _least_errors(columns: Floats) -> Floats:
    """Return the coefficients with which the rows come nearest to 1, by the sum of the errors and not of their
    squares: steps that the machine itself held up would pull those towards them.
    """
    weights = np.ones(len(columns))
    for _ in range(_ROUNDS):  # iteratively reweighted least squares
        found: Floats = np.asarray(np.linalg.lstsq(columns * weights[:, None], weights, rcond=None)[0], np.float64)
        weights = 1 / np.sqrt(np.maximum(np.abs(columns @ found - 1), _LEAST_ERROR))
    return found
