"""Sampler: chooses the next token of each sequence from its row of logits, and reports log-probabilities.

It reads one row of logits and one `SamplerRow` per sequence. Independent of batches and requests.

A row's result depends only on that row, bit for bit: every step is a torch kernel that processes the last dimension
row by row (softmax, topk), an operation that rounds each element separately (+, -, *, /), or a sum of integers, which
is exact in any order. A draw is an inverse CDF over probabilities stored as integers in units of 2**-60. Its random
number comes from a counter-based generator with the key (seed, position), so there is no generator state.

Order: edits of the logits (`model.sampling.logit_edits`) -> temperature and filters (`model.sampling.filters`) -> draw.
A token that the row's grammar forbids is drawn again among the allowed ones, with another random number. The result
has the distribution of the allowed tokens, except for those that a filter dropped, and the mask of the whole
vocabulary is seldom computed.

Axes: R rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.sampling.distribution import GREEDY_BELOW
from lightwell.model.sampling.filters import NUM_GROUPS, Buffers, FilterOptions, fill_weights
from lightwell.model.sampling.logit_edits import EditOptions, LogitEdits
from lightwell.model.sampling.logprobs import logprob_rows
from lightwell.model.sampling.philox import random_uniform
from lightwell.model.sampling.row_search import argmax, pick, take

_CPU_CHUNK_ELEMENTS = 1 << 19
"""Elements of one working buffer: 2 MB in float32, which stays in a core's cache."""

_GPU_CHUNK_ELEMENTS = 1 << 22
"""The same on a GPU: enough to fill it, under 100 MB for all buffers."""


class SamplingOptions(FilterOptions, EditOptions, Protocol):
    """The sampling parameters that the sampler reads. The values are valid."""

    @property
    def seed(self) -> int: ...
    @property
    def logprobs(self) -> int | None: ...
    @property
    def logprob_token_ids(self) -> tuple[int, ...]: ...


class TokenFilter(Protocol):
    """A filter of the tokens that may be chosen next."""

    def allows(self, token_id: int) -> bool:
        """Return whether this token may be chosen."""
        ...

    def forbidden(self) -> NDArray[np.bool_]:
        """Return whether each token is forbidden, [V]."""
        ...


class SamplerRow(NamedTuple):
    """The sequence of a row of logits. It is a named tuple, which is fast to create, since there is one per token."""

    params: SamplingOptions
    position: int
    """The position of the new token; with the seed, the key of its random number."""
    token_ids: Sequence[int] = ()
    """The prompt and the generated tokens. It is read only during the call, so no copy is needed."""
    num_prompt_tokens: int = 0
    grammar: "TokenFilter | None" = None
    """The filter of the new token, or None if any token may be chosen. No other parameter overrides it."""
    forbidden: NDArray[np.bool_] | None = None
    """Whether each token is forbidden, [V], or None if none is."""
    attempt: int = 0
    """Number of earlier draws of the token: each draw has its own random number."""


class SampledToken(NamedTuple):
    """The chosen token; logprob is None, rank 0 and top empty when `params.logprobs` is None."""

    token_id: int
    logprob: float | None = None
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


class _Strategy(Enum):
    """The method of choosing a row's token."""

    GREEDY = auto()
    """The largest raw logit."""
    GREEDY_EDITED = auto()
    """The largest logit after edits."""
    RANDOM = auto()
    RANDOM_TOP_P = auto()
    """As RANDOM, in a group of its own: other rows need no search for a nucleus."""

    @classmethod
    def of(cls, row: SamplerRow) -> "_Strategy":
        if row.params.temperature >= GREEDY_BELOW:
            return cls.RANDOM_TOP_P if row.params.top_p < 1.0 else cls.RANDOM
        if row.forbidden is not None:
            return cls.GREEDY_EDITED
        num_generated = len(row.token_ids) - row.num_prompt_tokens
        return cls.GREEDY_EDITED if row.params.edits_logits(num_generated) else cls.GREEDY


class Sampler:
    """A sampler for a network of `vocab_size` tokens with logits on `device`. It is not thread-safe.

    Rows are processed in chunks, in buffers that are kept between calls: they stay in cache, and memory is not returned
    to the kernel and faulted in again at each step, which cost ten times the arithmetic.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", kernels: KernelConfig = AUTO) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._kernels = kernels
        elements = _CPU_CHUNK_ELEMENTS if self.device.type == "cpu" else _GPU_CHUNK_ELEMENTS
        self._max_rows = max(1, elements // max(vocab_size, NUM_GROUPS))
        self._buffers: dict[torch.dtype, Buffers] = {}

    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> list[SampledToken]:
        """Choose one token for each row of `logits` [R, V] (any float dtype; left unchanged), in order.

        Raises ValueError if the shape is not (len(rows), vocab_size).
        """
        if logits.shape != (len(rows), self.vocab_size):
            raise ValueError(f"logits have shape {tuple(logits.shape)}; expected {(len(rows), self.vocab_size)}")
        token_ids = self._token_ids(logits, rows)
        again: list[int] = []
        narrowed: list[SamplerRow] = []
        for r, row in enumerate(rows):
            if row.grammar is None or row.grammar.allows(token_ids[r]):
                continue
            narrow = row._replace(forbidden=row.grammar.forbidden(), attempt=row.attempt + 1)
            if _Strategy.of(row) is _Strategy.GREEDY:  # without buffers, it takes a tenth of the time
                token_ids[r] = self._largest(logits[r], narrow)
            else:
                again.append(r)
                narrowed.append(narrow)
        for r, token_id in zip(again, self._token_ids(take(logits, again), narrowed) if again else (), strict=True):
            token_ids[r] = token_id
        return _with_logprobs(logits, rows, token_ids)

    def _token_ids(self, logits: Tensor, rows: Sequence[SamplerRow]) -> list[int]:
        """Choose the token of each row of logits [R, V], without its grammar."""
        groups: dict[_Strategy, list[int]] = {}
        for r, row in enumerate(rows):
            groups.setdefault(_Strategy.of(row), []).append(r)
        parts: list[Tensor] = []
        for strategy, members in groups.items():
            if strategy is _Strategy.GREEDY:
                parts.append(argmax(take(logits, members), self._kernels))
                continue
            for start in range(0, len(members), self._max_rows):
                chunk = members[start : start + self._max_rows]
                parts.append(self._choose(strategy, take(logits, chunk), [rows[r] for r in chunk]))
        token_ids = [0] * len(rows)
        order = [r for members in groups.values() for r in members]
        for r, token_id in zip(order, torch.cat(parts).tolist() if parts else (), strict=True):
            # A negative id: there is no distribution (every logit is -inf, or one is NaN). A forbidden id: other edits
            # forbid the rest, as `min_tokens` does with the end of the text.
            forbidden = rows[r].forbidden
            is_usable = token_id >= 0 and (forbidden is None or not forbidden[token_id])
            token_ids[r] = token_id if is_usable else self._largest(logits[r], rows[r])
        return token_ids

    def _choose(self, strategy: _Strategy, logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
        """Choose the token ids [R] of rows with one strategy; -1 for a row without a distribution."""
        buffers = self._edited(logits, rows)
        if strategy is _Strategy.GREEDY_EDITED:
            return argmax(buffers.scores)
        fill_weights(buffers, [row.params for row in rows])
        # A request's seed has 64 bits, so the higher bits are free for the attempt.
        seeds = [row.params.seed + (row.attempt << 64) for row in rows]
        return pick(buffers.weights, [random_uniform(s, row.position) for s, row in zip(seeds, rows, strict=True)])

    def _edited(self, logits: Tensor, rows: Sequence[SamplerRow]) -> Buffers:
        """Return buffers with the logits [R, V] after their edits as scores."""
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        if dtype not in self._buffers:
            self._buffers[dtype] = Buffers.empty(self._max_rows, self.vocab_size, dtype, self.device)
        buffers = self._buffers[dtype].first(len(rows))
        buffers.scores.copy_(logits)
        edits = LogitEdits(self.vocab_size)
        for r, row in enumerate(rows):
            edits.add(r, row.params, row.token_ids, row.num_prompt_tokens)
        edits.apply(buffers.scores)
        self._forbid(buffers.scores, rows)
        return buffers

    def _forbid(self, scores: Tensor, rows: Sequence[SamplerRow]) -> None:
        """Set the scores [R, V] of forbidden tokens to minus infinity."""
        masked = [r for r, row in enumerate(rows) if row.forbidden is not None]
        if not masked:
            return
        masks = np.stack([row.forbidden for row in rows if row.forbidden is not None])
        forbidden = torch.from_numpy(masks).to(self.device)
        if len(masked) == len(rows):
            scores.masked_fill_(forbidden, -math.inf)
        else:
            scores[masked] = scores[masked].masked_fill_(forbidden, -math.inf)

    def _largest(self, logits: Tensor, row: SamplerRow) -> int:
        """Return the token with the largest logit of [V] that is not forbidden."""
        if row.forbidden is not None:
            logits = logits.masked_fill(torch.from_numpy(row.forbidden).to(self.device), -math.inf)
        return int(argmax(logits.unsqueeze(0), self._kernels).item())


def _with_logprobs(logits: Tensor, rows: Sequence[SamplerRow], token_ids: Sequence[int]) -> list[SampledToken]:
    """Return the chosen tokens, with the requested log-probabilities."""
    tokens = [SampledToken(token_id) for token_id in token_ids]
    asked = [r for r, row in enumerate(rows) if row.params.logprobs is not None]
    if asked:
        wanted = [rows[r].params.logprob_token_ids or rows[r].params.logprobs or 0 for r in asked]
        entries = logprob_rows(take(logits, asked), [token_ids[r] for r in asked], wanted)
        for r, entry in zip(asked, entries, strict=True):
            tokens[r] = SampledToken(entry.token_id, entry.logprob, entry.rank, entry.top)
    return tokens
