"""Contributions of each token, through each head, to the residual stream and to a logit; numpy only.

Attention at query i adds sum_h sum_j A[h, i, j] v[j] W_O^h + b_O to the stream (Elhage et al. 2021, "A mathematical
framework for transformer circuits"). A[h, i, j] >= 0 is a number, so the length of each term and its product with a
direction u factor: A ||v W_O^h|| and A (v W_O^h u). Only `value_vectors` builds an array of shape [query, key, head,
d_model]; with the two small matrices below no other array has width d_model:

    gram    [D, D]  M M^T                        readout [D, T]  M u_t

where M = W_O^h, or, where the attention's output goes through a norm before it is added (sandwich and output norms), M
= W_O^h diag(gamma), centred over d_model first when that norm is a LayerNorm; the norm's divisor depends only on the
query and is applied here. Where heads have gates, v is multiplied by the query's gate. A factor of all additions
(residual_scale) is part of M. u_t is the direction of a token's logit: with the scale of the final norm kept constant,

    logit_t = (stream . u_t) / sigma + bias_t,   u_t = gamma_final * W_U[:, t], less its mean for a LayerNorm,

so that the parts of the stream (embedding, every head, b_O, every mlp) and bias_t sum to the logit (direct logit
attribution: Wang et al. 2022, arXiv:2211.00593; TransformerLens's `logit_attrs`). A soft cap comes after this logit.

The worker answers them from the weights: WeightsTask "head_readout", options part ("decoder" | "encoder" | "cross"),
pairs ((layer, head), ...) and targets (token ids, may be empty), gives

    gram [pair, D, D]             and with targets, in a model that has a head:
    readout [pair, D, target]     M u_t
    direction [d_model, target]   u_t, with logit_scale, and embed_out where the head is narrower than the stream
    bias [target]                 beta_final . W_U[:, t] logit_scale + b_U[t]
    attn_bias [layer, target]     b_O of each layer (through M's centring and gamma) . u_t; 0 where there is none
    cross_bias [layer, target]    the same of cross attention, where there is some

A norm after each sum (post-norm stacks) is linear too, for a constant scale s: gamma C(x) / s + beta, read in
direction u, is x read in direction C(gamma u), over s, and beta . u. So each sublayer has a direction of its own and is
divided by the scales of all later norms. Readout and biases above then use these directions, and there are

    sum_directions [layer, sublayer, d_model, target]   of attention, cross attention where there is some, and mlp
    norm_biases [layer, sublayer, target]               beta . u of the norm after each sum

Where the stream is multiplied by a number after each block, sum_directions has u_t times the numbers of this and all
later blocks, and norm_biases 0. Heads that are smaller than the largest are padded with zeros in gram and readout.
WeightsTask "head_output", options part, layer, head, gives w_o [D, d_model] and, if they exist, b_o [d_model] and
position_bias (by distance, see `head_readout.head_output`). WeightsTask "added_outputs", options part and pairs, gives
m [pair, D, d_model], the M above, and, if there is a b_O, bias [layer, d_model], transformed like M, for each layer of
the pairs in their order.

Numbers that overflowed in the network are inf or NaN here too, without a warning.

Axes: Q queries, K keys, D numbers of a head, T targets.
"""

import numpy as np

from lightwell.model.analysis.arrays import Float64, Floats

_overflows = np.errstate(invalid="ignore", over="ignore")


@_overflows
def value_lengths(values: Floats, gram: Floats) -> Float64:
    """Return ||v W_O^h|| of each key [K], from values [K, D] and M M^T [D, D] of one head."""
    v = values.astype(np.float64)
    squares = np.einsum("kd,de,ke->k", v, gram.astype(np.float64), v, optimize=True)
    lengths: Float64 = np.sqrt(np.maximum(squares, 0.0))  # rounding can leave a hair below zero
    return lengths


@_overflows
def opened(gate: Floats) -> Float64:
    """Return the factor of each number that passes a gate: the sigmoid."""
    share: Float64 = 1 / (1 + np.exp(-gate.astype(np.float64)))
    return share


@_overflows
def value_norms(
    pattern: Floats, values: Floats, gram: Floats, divisor: Floats | None = None, share: Floats | None = None
) -> Float64:
    """Return A[i, j] ||v_j W_O^h|| of one head, [Q, K]: how far key j moves query i (Kobayashi et al. 2020).

    Source: arXiv:2004.10102, section 3.

    Args:
        pattern: [Q, K], rows sum to 1.
        values: [K, D].
        gram: [D, D], see the module.
        divisor: [Q], the scale by which a norm of the attention's output divided each query.
        share: [Q, D], factor of a value from each query's gate, or None without gates.
    """
    if share is None:
        lengths = value_lengths(values, gram)
    else:
        lengths = np.stack([value_lengths(values * each, gram) for each in share])
    moved: Float64 = pattern.astype(np.float64) * lengths
    return moved if divisor is None else moved / divisor[:, None]


@_overflows
def value_vectors(
    pattern: Floats,
    values: Floats,
    m: Floats,
    divisor: Floats | None = None,
    share: Floats | None = None,
    *,
    sum_keys: bool = False,
) -> Float64:
    """Return A[i, j] v_j M of one head, [Q, K, d_model]: the addition of key j to query i's stream; [Q, d_model] with
    `sum_keys`, for which no larger array is built.

    Args:
        pattern: [Q, K].
        values: [K, D].
        m: [D, d_model], see the module.
        divisor: [Q], as in `value_norms`.
        share: [Q, D], as in `value_norms`.
        sum_keys: whether the sum over the keys is wanted.
    """
    weights = pattern.astype(np.float64) if divisor is None else pattern / divisor.astype(np.float64)[:, None]
    wide, matrix = values.astype(np.float64), m.astype(np.float64)
    if sum_keys:
        mixed = weights @ wide
        summed: Float64 = (mixed if share is None else mixed * share) @ matrix
        return summed
    written = wide @ matrix if share is None else (wide * share[:, None]) @ matrix  # [K, d], or [Q, K, d]
    vectors: Float64 = weights[..., None] * written
    return vectors


@_overflows
def value_attributions(
    pattern: Floats, values: Floats, readout: Floats, divisor: Floats, share: Floats | None = None
) -> Float64:
    """Return A[i, j] (v_j W_O^h . u) / divisor_i of one head, [Q, K]: the contribution of key j to query i's logit.

    Args:
        pattern: [Q, K].
        values: [K, D].
        readout: [D], M u of one target, or the difference of two; [D, Q] for a target of each query's own.
        divisor: [Q], the scale of the final norm, times the scale of a norm of the attention's output.
        share: as in `value_norms`.
    """
    wide = readout.astype(np.float64)
    rows = wide.T if share is None else share * wide.T
    return pattern.astype(np.float64) * (rows @ values.astype(np.float64).T) / divisor.astype(np.float64)[:, None]


@_overflows
def head_attributions(mixed: Floats, readout: Floats, divisor: Floats) -> Float64:
    """Return the contributions of heads to the logit, [Q, heads], from z [Q, heads, D], M u [heads, D], divisor [Q]."""
    added = np.einsum("qhd,hd->qh", mixed.astype(np.float64), readout.astype(np.float64))
    attributed: Float64 = added / divisor.astype(np.float64)[:, None]
    return attributed


@_overflows
def stream_attributions(vectors: Floats, direction: Floats, sigma: Floats) -> Float64:
    """Return the contributions [Q] to the logit of stream vectors [Q, d]: vectors . u [d] / sigma [Q]."""
    return (vectors.astype(np.float64) @ direction.astype(np.float64)) / sigma.astype(np.float64)
