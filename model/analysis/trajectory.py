"""Trajectory of a position's vector through the layers: its length and its direction; numpy only.

Axes: L + 1 states (the embedding, then the residual stream after each block), P positions, O other positions, d
numbers.
"""

from dataclasses import dataclass

import numpy as np

from lightwell.model.analysis.arrays import Float64, Floats


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Lengths and cosines of the states. Cosines of zero vectors and overflowed numbers are NaN."""

    norms: Float64
    """[P, L + 1]"""
    steps: Float64
    """[P, L + 1]: the length of the difference from the state before; 0 for the first."""
    cosine_to_start: Float64
    """[P, L + 1]"""
    cosine_to_previous: Float64
    """[P, L + 1]; 1 for the first state."""
    cosine_to_others: Float64
    """[P, L + 1, O]: to the other positions at the same state."""


@np.errstate(invalid="ignore")  # 0 / 0 and inf - inf are NaN
def trajectory(states: Floats, others: Floats) -> Trajectory:
    """Measure states [L + 1, P, d], and compare them with other positions' [L + 1, O, d]."""
    x, y = states.astype(np.float64), others.astype(np.float64)
    before = np.concatenate([x[:1], x[:-1]])
    norms = np.linalg.norm(x, axis=-1)
    # One matrix product for each state: the elementwise products would be d times as large as the answer.
    between = (x @ y.swapaxes(1, 2)) / (norms[:, :, None] * np.linalg.norm(y, axis=-1)[:, None])
    return Trajectory(
        norms=norms.T,
        steps=np.linalg.norm(x - before, axis=-1).T,
        cosine_to_start=_cosine(x, x[:1]).T,
        cosine_to_previous=_cosine(x, before).T,
        cosine_to_others=between.transpose(1, 0, 2),
    )


def _cosine(a: Float64, b: Float64) -> Float64:
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine: Float64 = (a * b).sum(-1) / lengths
    return cosine
