"""Correlations of the numbers h_i = w_i . x of one point over a text, and their mutual information if they were normal.

Two jointly normal numbers with correlation rho share -1/2 ln(1 - rho^2) nats (Cover and Thomas 2006, "Elements of
information theory", example 8.5.1). Numbers of a network are not normal: for these it is a scale of rho, not their
mutual information. Numpy only.

Axes: N samples (positions), M units.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightwell.model.analysis.arrays import Float64, Floats, Ints

BINS = 200
"""Bins of the histogram over [-1, 1], each 0.01 wide."""
_BLOCK = 512
_SMALLEST_REST = 1e-15
"""The smallest 1 - rho^2, which rounding would make 0: the information of a pair is at most 17.3 nats."""


@dataclass(frozen=True, slots=True)
class Correlations:
    """The correlations of all pairs of units that vary."""

    num_samples: int
    constant_units: tuple[int, ...]
    """Units with one value at all positions, which are in no pair."""
    num_pairs: int
    mean: float
    """The mean correlation; NaN where there is no pair, as are the other means."""
    mean_square: float
    """The mean square of the correlations; for independent samples it is 1 / (N - 1)."""
    mean_information: float
    """The mean `gaussian_information`, in nats."""
    histogram: Ints
    """[BINS] pairs by their correlation."""
    strongest: Ints
    """[k, 2] pairs of units, the largest |rho| first."""
    strongest_correlations: Float64
    """[k] the correlations of these pairs."""


def gaussian_information(correlation: Floats) -> Float64:
    """Return -1/2 ln(1 - rho^2), in nats."""
    rest = np.maximum(1.0 - np.square(correlation.astype(np.float64)), _SMALLEST_REST)
    return -0.5 * np.log(rest)


def independent_information(num_samples: int) -> float:
    """Return the mean of `gaussian_information` over N > 2 samples of independent normal numbers: about 1 / (2 (N -
    2)), the first order of rho^2's Beta(1/2, (N - 2)/2) distribution.
    """
    return 1.0 / (2.0 * (num_samples - 2))


def correlations(samples: Floats, num_strongest: int, check: Callable[[], None] = lambda: None) -> Correlations:
    """Return Pearson's correlation of every pair of units, computed a block of pairs at a time.

    Args:
        samples: [N, M], N > 2.
        num_strongest: how many pairs are named.
        check: called before each block; an exception that it raises ends the computation.
    """
    centred = samples.astype(np.float64)
    centred -= centred.mean(0)
    lengths = np.sqrt(np.square(centred).sum(0))
    # Subtracting the mean of a constant leaves a rounding error of about 1e-16 of its size.
    varies = lengths > 1e-12 * np.sqrt(len(samples)) * np.abs(samples).max(0, initial=0.0)
    units = np.flatnonzero(varies)
    scaled = centred[:, units] / lengths[units]
    histogram = np.zeros(BINS, np.int64)
    total = squares = information = 0.0
    best: Float64 = np.empty(0)
    pairs: Ints = np.empty((0, 2), np.int64)
    for i in range(0, len(units), _BLOCK):
        for j in range(i, len(units), _BLOCK):
            check()
            rho = np.clip(scaled[:, i : i + _BLOCK].T @ scaled[:, j : j + _BLOCK], -1.0, 1.0)
            upper = np.flatnonzero(np.triu(np.ones(rho.shape, bool), 1)) if i == j else None
            values = rho.ravel() if upper is None else rho.ravel()[upper]
            histogram += np.histogram(values, BINS, (-1.0, 1.0))[0]
            total += float(values.sum())
            squares += float(np.square(values).sum())
            information += float(gaussian_information(values).sum())
            # Only pairs above the weakest kept pair are sorted: most blocks have few of them.
            weakest = -1.0 if len(best) < num_strongest else np.abs(best).min(initial=1.0)
            stronger = np.flatnonzero(np.abs(values) > weakest)
            first, second = np.divmod(stronger if upper is None else upper[stronger], rho.shape[1])
            best = np.concatenate([best, values[stronger]])
            pairs = np.concatenate([pairs, np.stack([units[i + first], units[j + second]], 1)])
            kept = np.argsort(-np.abs(best), kind="stable")[:num_strongest]
            best, pairs = best[kept], pairs[kept]
    num_pairs = len(units) * (len(units) - 1) // 2
    divisor = num_pairs or np.nan
    return Correlations(
        num_samples=len(samples),
        constant_units=tuple(np.flatnonzero(~varies).tolist()),
        num_pairs=num_pairs,
        mean=total / divisor,
        mean_square=squares / divisor,
        mean_information=information / divisor,
        histogram=histogram,
        strongest=pairs,
        strongest_correlations=best,
    )
