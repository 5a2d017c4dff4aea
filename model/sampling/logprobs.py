"""Log-probabilities of given tokens under the model's own distribution, with the likeliest alternatives.

They are computed from raw logits, without temperature, penalties or other parameters of a request.

Axes: R rows, V vocabulary, K alternatives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.layers.fixed_shapes import aligned_rows
from lightwell.model.sampling.row_search import ordered_top_ids

_CHUNK_ELEMENTS = 1 << 19
"""Elements of log-softmax held at once: 2 MB in float32, which stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token under the model's own distribution: log-softmax of the raw logits, natural logarithm."""

    token_id: int
    logprob: float
    rank: int
    """1 + the number of tokens with a strictly larger logit."""
    top: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, log-probability) of the most likely tokens, best first, the lowest id first among equals; or of
    the requested tokens, in that order.
    """


Wanted = int | tuple[int, ...]
"""The tokens that are reported in addition to the chosen one: a number of the likeliest, or their ids."""


def logprob_rows(logits: Tensor, token_ids: Sequence[int], ks: Sequence[Wanted]) -> list[TokenLogprob]:
    """Return the log-probability of `token_ids[r]` in each row of raw `logits` [R, V], with the `ks[r]` best
    alternatives, or with the tokens `ks[r]`.

    The result is float32 (float64 if the logits are); a k over V gives V alternatives. Rows are processed in chunks, so
    that a long prompt never needs a second [R, V]. Raises ValueError if the lengths differ.
    """
    if not logits.shape[0] == len(token_ids) == len(ks):
        raise ValueError(f"{logits.shape[0]} rows of logits, {len(token_ids)} token_ids, {len(ks)} ks; expected equal")
    step = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    entries: list[TokenLogprob] = []
    for start in range(0, len(token_ids), step):
        part = slice(start, start + step)
        entries += _logprob_chunk(logits[part], token_ids[part], ks[part])
    return entries


def prompt_logprobs(logits: Tensor, next_ids: Sequence[int], k: int) -> list[TokenLogprob]:
    """Return the log-probability of the token after each position: row i of `logits` [n, V] for `next_ids[i]`."""
    return logprob_rows(logits, next_ids, [k] * len(next_ids))


def _logprob_chunk(logits: Tensor, token_ids: Sequence[int], ks: Sequence[Wanted]) -> list[TokenLogprob]:
    scores = logits if logits.dtype == torch.float64 else logits.float()  # R V
    ids = torch.tensor(token_ids, device=scores.device).unsqueeze(1)  # R 1
    ranks = ((scores > scores.gather(1, ids)).sum(-1) + 1).tolist()
    logprobs = aligned_rows(scores).log_softmax(-1)[:, : scores.shape[1]]  # R V
    chosen = logprobs.gather(1, ids).squeeze(1).tolist()
    most = min(max([k for k in ks if isinstance(k, int)], default=0), scores.shape[1])
    top_ids = ordered_top_ids(scores, most) if most else ids[:, :0]  # R K
    tops = [
        tuple(zip(row_ids[:k], row_logprobs[:k], strict=True))
        if isinstance(k, int)
        else tuple(zip(k, logprobs[r, list(k)].tolist(), strict=True))
        for r, (k, row_ids, row_logprobs) in enumerate(
            zip(ks, top_ids.tolist(), logprobs.gather(1, top_ids).tolist(), strict=True)
        )
    ]
    return [TokenLogprob(*entry) for entry in zip(token_ids, chosen, ranks, tops, strict=True)]
