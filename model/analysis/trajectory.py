"""Measures how a position's vector moves through the layers: its length and its direction. It knows arrays; no model,
no torch.

Axes: L + 1 states (the embedding, then the residual stream after each block), P positions, O other positions, d
numbers.
"""

from dataclasses import dataclass

import numpy as np

from model.analysis.arrays import Float64, Floats


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Lengths and cosines of the states. A cosine of a vector of length 0 is NaN, and so is what overflowed."""

    norms: Float64
    """[P, L + 1]"""
    steps: Float64
    """[P, L + 1]: the length of the difference from the state before; 0 for the first."""
    cosine_to_start: Float64
    """[P, L + 1]"""
    cosine_to_previous: Float64
    """[P, L + 1]; that of the first state is 1."""
    cosine_to_others: Float64
    """[P, L + 1, O]: to the other positions at the same state."""


@np.errstate(invalid="ignore")  # 0 / 0 and inf - inf are NaN, and said to be
def trajectory(states: Floats, others: Floats) -> Trajectory:
    """Measure states [L + 1, P, d], and compare them with other positions' [L + 1, O, d]."""
    x, y = states.astype(np.float64), others.astype(np.float64)
    before = np.concatenate([x[:1], x[:-1]])
    norms = np.linalg.norm(x, axis=-1)
    # A product of matrices for each state: all pairs number by number would be d times as large as the answer.
    between = (x @ y.swapaxes(1, 2)) / (norms[:, :, None] * np.linalg.norm(y, axis=-1)[:, None])
    return Trajectory(
        norms=norms.T,
        steps=np.linalg.norm(x - before, axis=-1).T,
        cosine_to_start=_cosine(x, x[:1]).T,
        cosine_to_previous=_cosine(x, before).T,
        cosine_to_others=between.transpose(1, 0, 2),
    )


def _cosine(a: Float64, b: Float64) -> Float64:
    """Return the cosine along the last axis."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine: Float64 = (a * b).sum(-1) / lengths
    return cosine
