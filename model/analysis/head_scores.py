"""Scores of a head's kind: a few measures of its attention, averaged over the queries of a text; numpy only.

The engine reduces the rows (`HeadScoresTask`): for each (pair, query) the weight on the previous key, on itself, on the
first key, the entropy, the mean distance, the weight on the successors of earlier copies of the query's token, and the
weight at chosen offsets. Definitions: TransformerLens's Main_Demo and `head_detector`; induction (attention to the
successor of an earlier copy): Olsson et al. 2022, arXiv:2209.11895.

Axes: N pairs, Q queries.
"""

from collections.abc import Sequence

import numpy as np

from lightwell.model.analysis.arrays import Float64, Floats, Ints

MEASURES = ("previous_token", "self", "first_token", "entropy", "mean_distance", "induction")
"""The measures of an answer, in order."""
_PREVIOUS, _SELF, _FIRST, _ENTROPY, _DISTANCE, _INDUCTION, _OFFSETS = range(7)


def text_scores(rows: Floats, token_ids: Sequence[int]) -> Float64:
    """Return the measures [N, 6] over a text, from rows [N, Q, 6 or more].

    Previous token and first token are means over the queries that have another key before them; self, entropy (nats)
    and distance over all. Induction is the mean over queries whose token occurred before; it is NaN when none did.
    """
    x = rows.astype(np.float64)
    scores = _means(x)
    repeated = repeated_positions(token_ids)
    scores[:, _INDUCTION] = x[:, repeated, _INDUCTION].mean(-1) if repeated.size else np.nan
    return scores


def repeated_text_scores(rows: Floats, half: int) -> Float64:
    """Return the measures [N, 6] over random tokens of length `half` written twice; rows have the offset half - 1 last.

    Induction is TransformerLens's: the mean of the diagonal half - 1 keys back, over every query that has such a key.
    """
    x = rows.astype(np.float64)
    scores = _means(x)
    scores[:, _INDUCTION] = x[:, half - 1 :, _OFFSETS].mean(-1)
    return scores


def _means(x: Float64) -> Float64:
    scores: Float64 = np.empty((x.shape[0], len(MEASURES)))
    later = x[:, 1:] if x.shape[1] > 1 else np.full_like(x, np.nan)  # the first query can only look at itself
    for measure in (_PREVIOUS, _FIRST):
        scores[:, measure] = later[..., measure].mean(-1)
    for measure in (_SELF, _ENTROPY, _DISTANCE):
        scores[:, measure] = x[..., measure].mean(-1)
    return scores


def repeated_positions(token_ids: Sequence[int]) -> Ints:
    """Return the positions of tokens that occur at an earlier position too, ascending."""
    seen: set[int] = set()
    found = []
    for position, token_id in enumerate(token_ids):
        if token_id in seen:
            found.append(position)
        seen.add(token_id)
    return np.array(found, np.int64)


def repeated_random_tokens(
    choices: Sequence[int], half: int, count: int, seed: int, bos: int | None
) -> list[list[int]]:
    """Return `count` sequences of `half` ids drawn evenly from `choices`, each written twice, after `bos` if any."""
    generator = np.random.default_rng(seed)
    drawn = generator.choice(np.array(choices, np.int64), (count, half)).tolist()
    start = [] if bos is None else [bos]
    return [[*start, *row, *row] for row in drawn]
