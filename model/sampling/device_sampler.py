"""Sampler on the device: chooses the next token of all rows in a fixed number of operations.

Nothing is uploaded, read back or waited for, and shapes depend only on the arguments' shapes, so a CUDA graph can
contain it. From the same logits on the same device it chooses the same tokens as `model.sampling.sampler.Sampler`,
which describes the steps, and reports the same log-probabilities. In a row with a NaN they are undefined.

Rows are processed in chunks, to limit memory and to stay in the device's cache: the working tensors of a chunk take up
to 32 bytes for each of _CHUNK_ELEMENTS logits of up to 32 bits.

Axes: R rows, V vocabulary, K alternatives.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.layers.fixed_shapes import aligned_rows
from lightwell.model.sampling.device_rows import Kind, PackedRows, packed_size
from lightwell.model.sampling.device_search import SUMS_PER_ROW, draw, edge_key, key_value, ordered_keys, ordered_top
from lightwell.model.sampling.filters import PROBABILITY_UNIT_BITS
from lightwell.model.sampling.row_search import BLOCK

_CHUNK_ELEMENTS = 1 << 22
"""Logits processed at once: 16 MB in float32."""
_CHUNKS_OF_KERNELS = 8
"""Chunks that kernels draw from at once: they take 8 bytes for each logit, and no other memory."""


class DeviceSampler:
    """Chooses tokens for a network of `vocab_size` tokens. It keeps no state."""

    def __init__(self, vocab_size: int) -> None:
        """Set the size. Raises ValueError if there is no token to choose."""
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
        self.vocab_size = vocab_size
        self._rows_at_once = max(1, _CHUNK_ELEMENTS // max(vocab_size, SUMS_PER_ROW))

    def sample(
        self, kind: Kind, logits: Tensor, packed: Tensor, *, edited: Tensor | None = None, logprobs: int | None = None
    ) -> Tensor:
        """Return the chosen tokens [R, result_width] int64, for `unpack`.

        Args:
            kind: the operations, at least the ones that `Kind.of` returns.
            logits: [R, V] of any float type, the network's output; left unchanged.
            packed: [packed_size] int64, which `pack` wrote.
            edited: the logits [R, V] after their edits, in the type that `score_type` names.
            logprobs: K, at least the rows' largest; a K over V becomes V. None computes no log-probabilities.

        Raises ValueError for a wrong shape.
        """
        if logits.shape[1:] != (self.vocab_size,) or packed.shape != (packed_size(len(logits)),):
            raise ValueError(
                f"logits have shape {tuple(logits.shape)} and packed rows {tuple(packed.shape)}; expected "
                f"{(len(logits), self.vocab_size)} and {(packed_size(len(logits)),)}"
            )
        best = _largest(logits)
        scores, found = (logits, best) if edited is None else (edited, _largest(edited))
        ids = found[:, :1]
        if kind and _has_kernels(logits):
            chosen = self._drawn_by_kernels(logits, scores, found, best, packed)
            ids = chosen[:, :1]
        elif kind or edited is not None:
            if kind:
                ids = self._drawn(kind, scores, ids, best[:, :1], PackedRows(packed))
            chosen = torch.cat([ids, logits.gather(1, ids).double().view(torch.int64)], 1)
        else:
            chosen = best
        if logprobs is None:
            return chosen
        k = min(logprobs, self.vocab_size)
        return torch.cat(
            [chosen, _joined([logprob_columns(logits[each], ids[each], k) for each in self._chunks(len(ids))])], 1
        )

    def _chunks(self, num_rows: int, size: int = 1) -> Iterator[slice]:
        step = size * self._rows_at_once
        return (slice(start, start + step) for start in range(0, num_rows, step))

    def _drawn_by_kernels(self, logits: Tensor, scores: Tensor, best: Tensor, valid: Tensor, packed: Tensor) -> Tensor:
        """Return the tokens and their logits [R, 2]: as `_drawn`, in three launches for each chunk."""
        from lightwell.model.sampling.draw_kernels import drawn, scaled

        lines = packed.view(-1, len(logits))
        parts = []
        for each in self._chunks(len(logits), _CHUNKS_OF_KERNELS):
            probabilities = torch.softmax(scaled(scores[each], lines[:, each]), -1)
            parts.append(drawn(probabilities, lines[:, each], logits[each], best[each], valid[each]))
        return _joined(parts)

    def _drawn(self, kind: Kind, logits: Tensor, best: Tensor, valid: Tensor, rows: PackedRows) -> Tensor:
        """Return the drawn ids [R, 1]: `best` in greedy rows, and `valid` in rows without a distribution."""
        scales = rows.scales.to(score_type(logits))
        parts = []
        for each in self._chunks(len(logits)):
            weights = _weights(kind, logits[each], scales[:, each], rows.top_k[each], rows.top_p[each])
            ids, total = draw(weights, rows.uniform[each])
            parts.append(torch.where(total > 0, ids, valid[each]))
            del weights  # before the next ones are made
        return torch.where(rows.uniform < 0, best, _joined(parts))


def _has_kernels(logits: Tensor) -> bool:
    return logits.is_cuda and logits.dtype != torch.float64


def _largest(logits: Tensor) -> Tensor:
    """Return the id and the value, as float64 bits, of the largest of each row of logits [R, V]: [R, 2] int64. The id
    is the lowest among equals, and the first NaN's if there is one.
    """
    if _has_kernels(logits):
        from lightwell.model.kernels.cuda.row_max import row_max  # a CPU has no need of Triton

        return row_max(logits)
    best = logits.max(-1, keepdim=True)
    return torch.cat([best.indices, best.values.double().view(torch.int64)], 1)


def _weights(kind: Kind, logits: Tensor, scales: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the weights of `filters.fill_weights`: logits [R, V] -> int64 [R, V filled up].

    scales are temperature and min_p [2, R, 1] in the type of the scores.
    """
    temperature, min_p = scales
    scores = logits / temperature
    if Kind.TOP_K in kind:
        _mask_top_k(scores, top_k)
    probabilities = torch.softmax(aligned_rows(scores), -1)[:, : logits.shape[1]]
    del scores  # no longer needed, but large
    floor = probabilities.amax(-1, keepdim=True).mul_(min_p)
    probabilities.masked_fill_(probabilities < floor, 0.0)
    weights = filled_up((probabilities * 2.0**PROBABILITY_UNIT_BITS).long(), 0)
    if Kind.TOP_P in kind:
        _mask_top_p(weights, probabilities, top_p)
    return weights


def score_type(logits: Tensor) -> torch.dtype:
    """Return the type in which these logits are edited and filtered."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def filled_up(x: Tensor, value: float) -> Tensor:
    """Return x [R, V] padded with the value to a whole number of blocks; x itself if it has one."""
    missing = -x.shape[1] % BLOCK
    return F.pad(x, (0, missing), value=value) if missing else x


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mask_top_k(scores: Tensor, top_k: Tensor) -> None:
    """Set scores [R, V] below their row's k-th largest to -inf, in place. A k [R, 1] of V and more keeps all."""
    keys = ordered_keys(filled_up(scores, -torch.inf))
    dropped = (keys.shape[1] - top_k).clamp_min_(keys.shape[1] - scores.shape[1])
    edge = key_value(edge_key(keys, dropped), scores.dtype)
    scores.masked_fill_(scores < edge, -torch.inf)


def _mask_top_p(weights: Tensor, probabilities: Tensor, top_p: Tensor) -> None:
    """Set the weights of tokens outside their row's nucleus to 0, in place; see `filters._nucleus_edge`.

    weights are [R, V filled up], of probabilities [R, V]; top_p [R, 1] float64.
    """
    total = weights.sum(-1, keepdim=True)
    kept = (top_p * total).ceil_().long().clamp_min_(1).minimum(total)
    # The bits of numbers >= 0 order as they do.
    bits = filled_up(probabilities, 0.0).view(torch.int64 if probabilities.dtype == torch.float64 else torch.int32)
    weights.masked_fill_(bits < edge_key(bits, total - kept, weights), 0)


def logprob_columns(logits: Tensor, ids: Tensor, k: int) -> Tensor:
    """Return the columns of a result after the token and its logit: logits [R, V], ids [R, 1] -> [R, 2 + 2 K] int64.

    They are the token's log-probability, its rank, the ids of the K likeliest and their log-probabilities; see
    `model.sampling.logprobs`.
    """
    scores = logits.to(score_type(logits))
    logprobs = aligned_rows(scores).log_softmax(-1)
    rank = (scores > scores.gather(1, ids)).sum(-1, keepdim=True).add_(1)
    if not k:
        return torch.cat([logprobs.gather(1, ids).double().view(torch.int64), rank], 1)
    top = ordered_top(filled_up(scores, -torch.inf), k)
    found = logprobs.gather(1, torch.cat([ids, top], 1)).double().view(torch.int64)
    return torch.cat([found[:, :1], rank, top, found[:, 1:]], 1)
