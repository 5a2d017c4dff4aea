"""Every step of one query of one attention head, from q and the keys to the output; numpy only.

Order: products, their sum, scale, soft cap, position bias, mask, softmax, weighted values, their sum, W_O (Vaswani et
al. 2017, arXiv:1706.03762, equation 1; cap: Gemma Team 2024, arXiv:2408.00118; bias: Raffel et al. 2020,
arXiv:1910.10683). Each step is computed again in float64 from the network's numbers before it, and compared with the
network's numbers after it: where an intervention changes a step, only that step differs. A score of -inf is not the
same as a mask: temperature 0 sets the scores of all visible keys but one to -inf.

Axes: K keys, D numbers of a head, d_model.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightwell.model.analysis.arrays import Float64, Floats


@dataclass(frozen=True, slots=True)
class Observed:
    """The network's own numbers. q and keys are after norm and rotation."""

    q: Floats
    """[D]"""
    keys: Floats
    """[K, D]"""
    values: Floats
    """[K, D]"""
    scores: Floats
    """[K], -inf where masked, and where an intervention set -inf."""
    pattern: Floats
    """[K]"""
    z: Floats
    """[D]"""
    result: Floats
    """[d_model], z W_O; with a gate, z is multiplied by its sigmoid."""
    gate: Floats | None = None
    """[D], or None if the attention has no gates."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The numbers of each step."""

    products: Float64
    """[K, D]: q and k, number by number."""
    dots: Float64
    """[K]: their sums."""
    scaled: Float64
    """[K]: times the scale."""
    capped: Float64
    """[K]: cap tanh(scaled / cap); as scaled where there is no cap."""
    position_bias: Float64
    """[K]: bias by distance, 0 where masked."""
    visible: npt.NDArray[np.bool_]
    """[K]"""
    scores: Float64
    """[K]: capped + bias, -inf where masked."""
    exponentials: Float64
    """[K]: exp(score - the largest), of the network's scores."""
    weights: Float64
    """[K]: exponentials over their sum."""
    weighted_values: Float64
    """[K, D]: by the network's pattern."""
    z: Float64
    """[D]: their sum."""
    output: Float64
    """[d_model]: the network's z, gated where there is a gate, times W_O."""
    largest_score: float
    """The largest of the network's scores, the sink among them."""
    sink_exponential: float
    """exp(sink - the largest), 0 where there is no sink."""
    sum_of_exponentials: float
    """The sum over the keys, and the sink's."""


@np.errstate(invalid="ignore", over="ignore")  # overflows of the network are shown as inf or NaN
def explain(
    observed: Observed,
    visible: npt.NDArray[np.bool_],
    w_o: Floats,
    scale: float,
    softcap: float | None,
    position_bias: Floats | None,
    sink: float | None = None,
) -> Steps:
    """Compute the steps from `observed`.

    Args:
        visible: [K], the keys that the mask lets the query attend to.
        w_o: [D, d_model], W_O of the head.
        scale: factor of the dots.
        softcap: the soft cap, or None if there is none.
        position_bias: [K], bias by distance, or None.
        sink: a score without a key, which takes a share of the weight, or None.
    """
    q, keys, values = (x.astype(np.float64) for x in (observed.q, observed.keys, observed.values))
    products = keys * q
    dots = products.sum(-1)
    scaled = dots * scale
    capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
    bias = np.zeros_like(capped) if position_bias is None else np.where(visible, position_bias, 0.0)
    scores = np.where(visible, capped + bias, -np.inf)
    went_on = observed.scores.astype(np.float64)
    largest = went_on.max() if sink is None else np.maximum(went_on.max(), sink)
    exponentials = np.exp(went_on - largest)
    of_sink = 0.0 if sink is None else float(np.exp(sink - largest))
    total = exponentials.sum() + of_sink
    weighted = observed.pattern.astype(np.float64)[:, None] * values
    z = observed.z.astype(np.float64)
    gated = z if observed.gate is None else z / (1 + np.exp(-observed.gate.astype(np.float64)))
    return Steps(
        products=products,
        dots=dots,
        scaled=scaled,
        capped=capped,
        position_bias=bias,
        visible=visible,
        scores=scores,
        exponentials=exponentials,
        weights=exponentials / total,
        weighted_values=weighted,
        z=weighted.sum(0),
        output=gated @ w_o.astype(np.float64),
        largest_score=float(largest),
        sink_exponential=of_sink,
        sum_of_exponentials=float(total),
    )


def differences(steps: Steps, observed: Observed) -> dict[str, float]:
    """Return the largest distance between a step here and the network's own number, for the four that it has.

    It is infinite where only one of them is infinite, NaN where one is NaN or both are infinite.
    """
    seen = steps.visible
    return {
        "scores": _furthest(steps.scores[seen], observed.scores[seen]),
        "pattern": _furthest(steps.weights, observed.pattern),
        "z": _furthest(steps.z, observed.z),
        "result": _furthest(steps.output, observed.result),
    }


def _furthest(ours: Float64, theirs: Floats) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.abs(ours - theirs).max(initial=0.0))
