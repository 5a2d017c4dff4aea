"""Statistics of singular values, eigenvalues and cosines, and their values for random matrices; without torch."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lightwell.model.analysis.arrays import Floats

Complexes = npt.NDArray[np.complexfloating[Any, Any]]
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The quantiles of the cosines in an answer."""


def effective_rank(singular_values: Floats) -> float:
    """Return exp of the entropy of the singular values scaled to sum to 1; 0 for a matrix of zeros.

    Source: Roy and Vetterli 2007, "The effective rank: a measure of effective dimensionality", EUSIPCO.
    """
    values = singular_values[singular_values > 0].astype(np.float64)
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def stable_rank(singular_values: Floats) -> float:
    """Return ||W||_F^2 / ||W||_2^2; 0 for a matrix of zeros (Rudelson and Vershynin 2007, arXiv:math/0503442)."""
    squares = singular_values.astype(np.float64) ** 2
    largest = squares.max(initial=0.0)
    return float(squares.sum() / largest) if largest else 0.0


def positivity(eigenvalues: Complexes) -> float:
    """Return sum(Re) / sum(|.|) of the eigenvalues: 1 where all are positive, which marks a copying head, -1 where all
    are negative; 0 for a matrix of zeros (Elhage et al. 2021, "A mathematical framework for transformer circuits").
    """
    size = float(np.abs(eigenvalues).sum())
    return float(eigenvalues.real.sum()) / size if size else 0.0


def random_cosine_std(dimension: int) -> float:
    """Return the standard deviation of the cosine of two random directions, 1 / sqrt(d) (exact: the mean square of one
    coordinate of a unit vector is 1/d); the mean is 0.
    """
    return 1.0 / math.sqrt(dimension)


def random_largest_cosine(num_pairs: int, dimension: int) -> float:
    """Return the approximate largest |cosine| among `num_pairs` random pairs: sqrt(2 ln(pairs) / d), at most 1.

    It is the expected maximum of normal numbers of standard deviation 1/sqrt(d), to first order.
    """
    return min(1.0, math.sqrt(2.0 * math.log(max(num_pairs, 1)) / dimension))


def welch_bound(num_vectors: int, dimension: int) -> float | None:
    """Return sqrt((n - d) / (d (n - 1))), a lower bound of the largest |cosine| among n unit vectors in d dimensions.
    None for n <= d, where all can be orthogonal.

    Source: Welch 1974, "Lower bounds on the maximum cross correlation of signals", IEEE Trans. Inf. Theory 20(3).
    """
    if num_vectors <= dimension:
        return None
    return math.sqrt((num_vectors - dimension) / (dimension * (num_vectors - 1)))
