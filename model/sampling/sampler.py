"""Chooses the next token of each sequence from its row of logits, and reports log-probabilities.

It knows one row of logits and one `SamplerRow` per sequence, but not what a sequence, a batch or a request is.

A row's answer is a function of that row alone, bit for bit: every step below is either a torch kernel that treats the
last dimension row by row (softmax, topk), an operation that rounds each element by itself (+, -, *, /), or a sum of
integers, whose order cannot matter. A draw is an inverse CDF over probabilities held as integers in units of 2**-60;
its random number comes from a counter-based generator keyed by (seed, position), so there is no generator state.

The order is vLLM's: banned ids -> logit_bias -> repetition, presence and frequency penalties -> temperature -> min_p,
top_k -> top_p -> draw. Tokens are kept or dropped by value, so of tokens with equal probability all are kept or none:
top_k and top_p may keep more than the k, or the nucleus, when there are ties at the edge (as top_k in `transformers`).

Axes: R rows, V vocabulary, N blocks of the vocabulary, B tokens of one block, K largest tokens.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from itertools import repeat
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.kernels.choice import AUTO, KernelConfig
from model.layers.fixed_shapes import aligned_rows
from model.sampling.logprobs import TokenLogprob, logprob_rows, prompt_logprobs
from model.sampling.row_search import BLOCK, argmax, pick, take, top

__all__ = [
    "SampledToken",
    "Sampler",
    "SamplerRow",
    "SamplingOptions",
    "TokenLogprob",
    "logprob_rows",
    "prompt_logprobs",
    "random_unit",
]

GREEDY_BELOW = 1e-5
"""The temperature below which choices are greedy (vLLM's bound): dividing by smaller ones would overflow float32."""

_PROBABILITY_UNIT_BITS = 60
"""Bits of probabilities, which become multiples of 2**-60: exact from 2**-36 up in float32, and a row's sum fits in
int64.
"""

_RADIX_BITS = 11
"""Bits distinguished at once in the search for the edge of a nucleus: three rounds for float32."""

_NUM_GROUPS = (1 << _RADIX_BITS) + 2
"""The groups of one round, and the tokens below and above all of them."""

_CPU_CHUNK_ELEMENTS = 1 << 19
"""Elements of one working buffer: 2 MB in float32, which stays in a core's cache."""

_GPU_CHUNK_ELEMENTS = 1 << 22
"""The same on a GPU: enough to fill it, under 100 MB for all buffers."""


class SamplingOptions(Protocol):
    """What the sampler reads of a request's sampling parameters. Values were validated when the request came in."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def seed(self) -> int: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def stopping_ids(self) -> Collection[int]: ...
    @property
    def logprobs(self) -> int | None: ...


class SamplerRow(NamedTuple):
    """The facts about the sequence that a row of logits belongs to. It is a named tuple, as it is made for every
    token.
    """

    params: SamplingOptions
    position: int
    """The position that the new token will have; with the seed, the key of its random number."""
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()


class SampledToken(NamedTuple):
    """The chosen token; logprob is None, rank 0 and top empty when `params.logprobs` is None."""

    token_id: int
    logprob: float | None = None
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses tokens for a network of `vocab_size` tokens whose logits are on `device`.

    Rows are processed a few at a time in buffers kept from call to call: they stay in cache, and memory is not returned
    to the kernel and faulted in again at each step, which cost ten times the arithmetic. It is not thread-safe.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", kernels: KernelConfig = AUTO) -> None:
        self._kernels = kernels
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        elements = _CPU_CHUNK_ELEMENTS if self.device.type == "cpu" else _GPU_CHUNK_ELEMENTS
        self._max_rows = max(1, elements // max(vocab_size, _NUM_GROUPS))
        self._buffers: dict[torch.dtype, _Buffers] = {}

    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> list[SampledToken]:
        """Choose one token for each row of `logits` [R, V] (any float dtype; left unchanged), in order.

        Raises ValueError if the shape is not (len(rows), vocab_size).
        """
        if logits.shape != (len(rows), self.vocab_size):
            raise ValueError(f"logits have shape {tuple(logits.shape)}; expected {(len(rows), self.vocab_size)}")
        groups: dict[_Way, list[int]] = {}
        for r, row in enumerate(rows):
            groups.setdefault(_way(row), []).append(r)
        parts: list[Tensor] = []
        for way, members in groups.items():
            if way is _Way.ARGMAX:
                parts.append(argmax(take(logits, members), self._kernels))
                continue
            for start in range(0, len(members), self._max_rows):
                chunk = members[start : start + self._max_rows]
                parts.append(self._choose(way, take(logits, chunk), [rows[r] for r in chunk]))
        token_ids = [0] * len(rows)
        order = [r for members in groups.values() for r in members]
        for r, token_id in zip(order, torch.cat(parts).tolist() if parts else (), strict=True):
            # negative: no usable distribution (every logit -inf, or a NaN); a valid id all the same
            token_ids[r] = token_id if token_id >= 0 else int(argmax(logits[r : r + 1], self._kernels).item())
        return _with_logprobs(logits, rows, token_ids)

    def _choose(self, way: "_Way", logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
        """Return the token ids [R] of rows that all need the same steps (`way`), or -1 if there is no distribution to
        draw from.
        """
        buffers = self._edited(logits, rows)
        if way is _Way.EDIT_ARGMAX:
            return argmax(buffers.scores, self._kernels)
        _fill_weights(buffers, [row.params for row in rows])
        return pick(buffers.weights, [random_unit(row.params.seed, row.position) for row in rows])

    def distribution(self, logits: Tensor, row: SamplerRow) -> Tensor:
        """Return the probability [V], in float64, with which `sample` chooses each token from one row of raw `logits`
        [V].

        A greedy row has one certain token. The result is all zeros when there is no usable distribution.
        """
        buffers = self._edited(logits.unsqueeze(0), [row])
        if _way(row) in {_Way.ARGMAX, _Way.EDIT_ARGMAX}:
            return torch.nn.functional.one_hot(argmax(buffers.scores, self._kernels), self.vocab_size)[0].double()
        _fill_weights(buffers, [row.params])
        weights = buffers.weights[0, : self.vocab_size].clamp_min(0)  # a NaN became the least integer
        return weights / weights.sum().clamp_min(1).double()

    def _edited(self, logits: Tensor, rows: Sequence[SamplerRow]) -> "_Buffers":
        """Return buffers whose scores are the logits [R, V] after bans, biases and penalties."""
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        if dtype not in self._buffers:
            self._buffers[dtype] = _Buffers.empty(self._max_rows, self.vocab_size, dtype, self.device)
        buffers = self._buffers[dtype].first(len(rows))
        buffers.scores.copy_(logits)
        _edit(buffers.scores, rows)
        return buffers


class _Way(Enum):
    """The steps that a row needs to choose its token."""

    ARGMAX = auto()
    EDIT_ARGMAX = auto()
    DRAW = auto()
    DRAW_NUCLEUS = auto()


def _way(row: SamplerRow) -> _Way:
    params = row.params
    if params.temperature >= GREEDY_BELOW:
        return _Way.DRAW_NUCLEUS if params.top_p < 1.0 else _Way.DRAW
    return _Way.EDIT_ARGMAX if _has_edits(row) else _Way.ARGMAX


def _has_edits(row: SamplerRow) -> bool:
    """Return whether anything but temperature and the filters changes this row's scores."""
    params = row.params
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or len(row.output_token_ids) < params.min_tokens
    )


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Buffers to work on R rows."""

    scores: Tensor
    """[R, V]"""
    probabilities: Tensor
    """[R, V]"""
    weights: Tensor
    """[R, V padded to whole blocks]: probabilities as integers, the padding zero."""
    groups: Tensor
    """[R, V]: the group that a token falls in during the search for the edge of a nucleus."""
    masses: Tensor
    """[R, groups]: the weight of each group."""

    @classmethod
    def empty(cls, rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> "_Buffers":
        return cls(
            scores=torch.empty(rows, vocab_size, dtype=dtype, device=device),
            probabilities=torch.empty(rows, vocab_size, dtype=dtype, device=device),
            weights=torch.empty(rows, -(-vocab_size // BLOCK) * BLOCK, dtype=torch.long, device=device),
            groups=torch.empty(rows, vocab_size, dtype=torch.long, device=device),
            masses=torch.empty(rows, _NUM_GROUPS, dtype=torch.long, device=device),
        )

    def first(self, rows: int) -> "_Buffers":
        """Return the first rows of the same memory."""
        return _Buffers(*(getattr(self, field.name)[:rows] for field in fields(self)))


def random_unit(seed: int, position: int) -> float:
    """Return a uniform number in [0, 1), a multiple of 2**-53, that depends on (seed, position) alone.

    It is the first word of Philox2x64-10, key = low 64 bits of the seed, counter = (position, next 64 bits of the
    seed). Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return (philox2x64(position, seed >> 64, seed)[0] >> 11) * 2.0**-53


def philox2x64(counter_low: int, counter_high: int, key: int) -> tuple[int, int]:
    """Return Philox2x64-10: a 128-bit counter mixed under a 64-bit key, as two 64-bit words; arguments are cut to 64
    bits.
    """
    mask = 0xFFFFFFFFFFFFFFFF
    low, high, key = counter_low & mask, counter_high & mask, key & mask
    for _ in range(10):
        product = 0xD2B74407B1CE6E93 * low
        low, high = (product >> 64) ^ key ^ high, product & mask
        key = (key + 0x9E3779B97F4A7C15) & mask
    return low, high


def _with_logprobs(logits: Tensor, rows: Sequence[SamplerRow], token_ids: Sequence[int]) -> list[SampledToken]:
    """Return the chosen tokens, with the log-probabilities that were asked for."""
    tokens = [SampledToken(token_id) for token_id in token_ids]
    asked = [r for r, row in enumerate(rows) if row.params.logprobs is not None]
    if asked:
        ks = [rows[r].params.logprobs or 0 for r in asked]
        entries = logprob_rows(take(logits, asked), [token_ids[r] for r in asked], ks)
        for r, entry in zip(asked, entries, strict=True):
            tokens[r] = SampledToken(entry.token_id, entry.logprob, entry.rank, entry.top)
    return tokens


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """Return per-row numbers as [R, 1] in the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


class _Cells:
    """Cells (row, token id) of the scores, each with a number: one kind of edit, applied to all rows at once."""

    def __init__(self) -> None:
        self.ids = array("q")
        self.values: list[float] = []
        self.rows: list[int] = []
        self.lengths: list[int] = []

    def add(self, row: int, ids: Collection[int], values: Iterable[float]) -> None:
        """Add one row's cells; a cell may be named twice, with the same number."""
        self.rows.append(row)
        self.lengths.append(len(ids))
        self.ids.extend(ids)
        self.values.extend(values)

    def apply(self, scores: Tensor, edit: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Compute scores[cell] = edit(scores[cell], number), in place."""
        if not self.ids:
            return
        rows = torch.tensor(self.rows).repeat_interleave(torch.tensor(self.lengths))
        cells = (rows * scores.shape[1] + torch.frombuffer(self.ids, dtype=torch.long)).to(scores.device)
        values = torch.tensor(self.values, dtype=scores.dtype, device=scores.device)
        flat = scores.view(-1)
        flat.scatter_(0, cells, edit(flat[cells], values))


def _edit(scores: Tensor, rows: Sequence[SamplerRow]) -> None:
    """Apply bans, biases and penalties, in place on scores [R, V]."""
    biases, repetitions, counted = _Cells(), _Cells(), _Cells()
    for r, row in enumerate(rows):
        if not _has_edits(row):
            continue
        params = row.params
        bias = dict(params.logit_bias)
        if len(row.output_token_ids) < params.min_tokens:
            bias.update((i, -math.inf) for i in params.stopping_ids if i < scores.shape[1])
        biases.add(r, bias, bias.values())
        if params.repetition_penalty != 1.0:
            for ids in (row.prompt_token_ids, row.output_token_ids):
                repetitions.add(r, ids, repeat(params.repetition_penalty, len(ids)))
        if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            counts = Counter(row.output_token_ids)
            penalties = [params.frequency_penalty * n + params.presence_penalty for n in counts.values()]
            counted.add(r, counts, penalties)
    biases.apply(scores, torch.add)
    # Keskar et al., "CTRL", arXiv 1909.05858, with the sign rule of transformers
    repetitions.apply(scores, lambda old, penalty: torch.where(old < 0, old * penalty, old / penalty))
    counted.apply(scores, torch.sub)


def _mask_top_k(scores: Tensor, ks: Sequence[int]) -> None:
    """Write -inf, in place, for every score [R, V] below its row's k-th largest. A k of 0, or of V and more, keeps
    all.
    """
    limited = [r for r, k in enumerate(ks) if 0 < k < scores.shape[1]]
    if not limited:
        return
    ordered = top(take(scores, limited), max(ks[r] for r in limited))[0]  # R K
    edges = torch.full((len(ks), 1), -math.inf, dtype=scores.dtype, device=scores.device)
    kth = torch.tensor([ks[r] - 1 for r in limited], device=scores.device).unsqueeze(1)
    edges[torch.tensor(limited, device=scores.device)] = ordered.gather(1, kth)
    scores.masked_fill_(scores < edges, -math.inf)


def _fill_weights(buffers: _Buffers, params: Sequence[SamplingOptions]) -> None:
    """Turn edited scores into the weights to draw from: temperature, filters, softmax. This overwrites every buffer."""
    scores, probabilities = buffers.scores, buffers.probabilities
    if any(p.temperature != 1.0 for p in params):
        scores.div_(_column([p.temperature for p in params], scores))
    _mask_top_k(scores, [p.top_k for p in params])
    aligned = aligned_rows(scores)
    if aligned is scores:
        torch.softmax(scores, -1, out=probabilities)
    else:
        probabilities.copy_(torch.softmax(aligned, -1)[:, : scores.shape[1]])
    if any(p.min_p for p in params):
        floor = _column([p.min_p for p in params], scores) * probabilities.amax(-1, keepdim=True)
        probabilities.masked_fill_(probabilities < floor, 0.0)
    _to_integers(buffers)
    if any(p.top_p < 1.0 for p in params):
        edge = _nucleus_edge(buffers, [p.top_p for p in params])
        probabilities.masked_fill_(probabilities < edge, 0.0)
        _to_integers(buffers)


def _to_integers(buffers: _Buffers) -> None:
    """Write the probabilities into the weights as whole multiples of 2**-60, rounded down; the scores are scratch."""
    torch.mul(buffers.probabilities, 2.0**_PROBABILITY_UNIT_BITS, out=buffers.scores)
    vocab_size = buffers.scores.shape[1]
    buffers.weights[:, :vocab_size].copy_(buffers.scores)
    buffers.weights[:, vocab_size:].zero_()


def _nucleus_edge(buffers: _Buffers, top_ps: Sequence[float]) -> Tensor:
    """Return the smallest probability [R, 1] in each row's nucleus: the likeliest tokens that together hold top_p of
    the mass.

    A token belongs to it while the mass of the strictly likelier ones is under top_p of all; at least one does. Instead
    of sorting, it is a radix descent: the bits of a float >= 0 order as it does, so sums of weight per group of leading
    bits say which group holds the edge, then which group inside that one. The scores are scratch. Source: Holtzman et
    al., "The curious case of neural text degeneration", arXiv 1904.09751.
    """
    dtype = buffers.probabilities.dtype
    integer = torch.int64 if dtype == torch.float64 else torch.int32
    bits, shifted = buffers.probabilities.view(integer), buffers.scores.view(integer)
    weights = buffers.weights[:, : bits.shape[1]]
    total = weights.sum(-1, keepdim=True)
    share = torch.tensor(top_ps, dtype=torch.float64, device=weights.device).unsqueeze(1)
    kept = (share * total.double()).ceil().long().clamp_min(1).minimum(total)
    dropped = total - kept  # R 1: mass that may go, from the least likely up
    edge = torch.zeros(len(top_ps), 1, dtype=integer, device=weights.device)  # its leading bits, as far as known
    for shift in range((bits.itemsize * 8 - 1) // _RADIX_BITS * _RADIX_BITS, -1, -_RADIX_BITS):
        # Group 0 is everything below the known leading bits, the last group everything above.
        torch.bitwise_right_shift(bits, shift, out=shifted)
        buffers.groups.copy_(shifted.sub_(edge << _RADIX_BITS).clamp_(-1, 1 << _RADIX_BITS).add_(1))
        cumulated = buffers.masses.zero_().scatter_add_(1, buffers.groups, weights).cumsum_(-1)
        group = torch.searchsorted(cumulated, dropped, right=True).clamp_max(_NUM_GROUPS - 1)
        edge = (edge << _RADIX_BITS) + (group - 1).to(integer)
    return edge.view(dtype)
