"""Sequences with cached keys, for the attention kernels, and the formulas in float64."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import torch

from lightwell.model.kernels import attention
from lightwell.model.kernels.attention import AttentionItems, PatternOutput, VisibleKeys

SENTINEL = 7.0


@dataclass
class World:
    """Sequences with all keys cached, some rows of each sequence, and the keys that each row sees."""

    dtype: torch.dtype
    group: int = field(default_factory=lambda: random.randint(1, 8))
    dim: int = field(default_factory=lambda: random.choice([8, 20, 33, 48, 64, 80, 96, 128]))
    block_size: int = field(default_factory=lambda: random.choice([3, 8, 16, 32, 40]))
    causal: bool = field(default_factory=lambda: random.random() < 0.7)
    num_sequences: int = 4
    num_key_heads: int = field(default_factory=lambda: random.choice([1, 2, 3]))
    window: float = field(default_factory=lambda: random.choice([math.inf, 1, random.randint(2, 40)]))
    lengths: list[int] = field(default_factory=list)
    """Keys of each sequence; drawn if empty."""
    may_be_blind: bool = True
    """Whether a sequence may see no keys."""

    def __post_init__(self) -> None:
        self.num_heads, window = self.num_key_heads * self.group, self.window
        if not self.lengths:
            self.lengths = [random.choice([1, random.randint(2, 90)]) for _ in range(self.num_sequences)]
        starts = [random.choice([0, n - 1, random.randrange(n)]) for n in self.lengths]
        self.owners = np.repeat(np.arange(self.num_sequences), np.subtract(self.lengths, starts))
        positions = np.concatenate(list(map(np.arange, starts, self.lengths)))
        self.first = np.maximum(positions - (window - 1), 0).astype(np.int64)
        ends = np.array(self.lengths)[self.owners]
        self.last = positions + 1 if self.causal else np.minimum(ends, positions + window).astype(np.int64)
        if not self.causal and self.may_be_blind and random.random() < 0.3:  # a sequence without visible keys
            blind = self.owners == random.randrange(self.num_sequences)
            self.first[blind] = self.last[blind] = random.choice([0, 5]) if ends[blind].min() >= 5 else 0
        self.positions = positions
        counts = [-(-n // self.block_size) for n in self.lengths]
        free = random.sample(range(sum(counts) + 3), sum(counts))
        self.tables = np.zeros((self.num_sequences, max(counts)), np.int32)
        for table, count in zip(self.tables, counts, strict=True):
            table[:count] = [free.pop() for _ in range(count)]
        shape = (sum(counts) + 3, self.num_key_heads)
        self.keys = torch.full((*shape, self.dim, self.block_size), math.nan, dtype=self.dtype)
        self.values = torch.full((*shape, self.block_size, self.dim), math.nan, dtype=self.dtype)
        self.k = [torch.randn(n, self.num_key_heads, self.dim).to(self.dtype) for n in self.lengths]
        self.v = [torch.randn(n, self.num_key_heads, self.dim).to(self.dtype) for n in self.lengths]
        for sequence, length in enumerate(self.lengths):
            for position in range(length):
                self.put(sequence, position, self.k[sequence][position], self.v[sequence][position])
        self.q = torch.randn(len(positions), self.num_heads, self.dim) * 2
        reach = max(self.lengths) + random.choice([0, 5])
        self.rule = {
            "scale": random.choice([1.0, self.dim**-0.5]),
            "softcap": random.choice([None, random.uniform(1, 30)]),
            "bias": random.choice([None, torch.randn(self.num_heads, 2 * reach - 1)]),
            "sinks": random.choice([None, torch.randn(self.num_heads) * 5]),
        }

    def put(self, sequence: int, position: int, k: torch.Tensor | float, v: torch.Tensor | float) -> None:
        block, place = self.tables[sequence, position // self.block_size], position % self.block_size
        self.keys[block, :, :, place] = k
        self.values[block, :, place] = v

    @property
    def seen(self) -> VisibleKeys:
        return VisibleKeys(self.tables, self.positions, self.first, self.last, self.block_size)

    def rows_of(self, sequence: int) -> list[int]:
        return np.flatnonzero(self.owners == sequence).tolist()

    def items(self, most_rows: int = 8) -> np.ndarray:
        """Return tiles of at most `most_rows` rows: with one head if they have several rows, of one row with some or
        all heads.
        """
        items = []
        for sequence in range(self.num_sequences):
            rows = self.rows_of(sequence)
            for i in range(0, len(rows), most_rows):
                num = min(most_rows, len(rows) - i)
                heads = 1 if num > 1 else random.choice([1, self.num_key_heads])
                items += [(sequence, rows[i], num, head, heads) for head in range(0, self.num_key_heads, heads)]
        random.shuffle(items)
        return np.array(items, np.int32)

    def attend(self, items: np.ndarray | None = None, pattern_output: PatternOutput | None = None) -> torch.Tensor:
        out = torch.full(self.q.shape, SENTINEL, dtype=self.dtype)
        shared = AttentionItems(self.items() if items is None else items)
        attention.attend(
            self.q, self.keys, self.values, self.seen, shared, **self.rule, pattern_output=pattern_output, out=out
        )
        return out

    def rows(self, rows: list[int], heads: list[int], kind: str) -> torch.Tensor:
        sequence = int(self.owners[rows[0]])
        return attention.attention_rows(
            self.q, rows, heads, self.keys, self.seen, sequence, self.lengths[sequence], kind, **self.rule
        )

    def mix(self, pattern: torch.Tensor, heads: list[int], sequence: int) -> torch.Tensor:
        return attention.mix_rows(pattern, [h // self.group for h in heads], self.values, self.seen, sequence)

    def some_rows_and_heads(self, sequence: int) -> tuple[list[int], list[int]]:
        rows = self.rows_of(sequence)
        heads = random.sample(range(self.num_heads), random.randint(1, self.num_heads))
        return random.sample(rows, random.randint(1, len(rows))), heads

    def dots(self, sequence: int) -> torch.Tensor:
        """Return q.k, [rows, H, S] float64."""
        k = self.k[sequence].double().repeat_interleave(self.group, 1)
        return torch.einsum("qhd,khd->qhk", self.q[self.rows_of(sequence)].double(), k)

    def unseen(self, sequence: int) -> torch.Tensor:
        """Return which keys are masked, [rows, 1, S]."""
        rows, keys = self.rows_of(sequence), np.arange(self.lengths[sequence])
        return torch.from_numpy((keys < self.first[rows][:, None]) | (keys >= self.last[rows][:, None]))[:, None]

    def scores(self, sequence: int) -> torch.Tensor:
        """Return the scores by the formulas, [rows, H, S] float64."""
        cap, bias = self.rule["softcap"], self.rule["bias"]
        scores: torch.Tensor = self.dots(sequence) * self.rule["scale"]
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        if bias is not None:
            reach, positions = (bias.shape[1] + 1) // 2, self.positions[self.rows_of(sequence)]
            distances = np.arange(self.lengths[sequence]) - positions[:, None]
            scores = scores + bias.double()[:, distances + reach - 1].transpose(0, 1)
        return scores.masked_fill(self.unseen(sequence), -math.inf)

    def pattern(self, sequence: int) -> torch.Tensor:
        """Return the pattern, [rows, H, S] float64; 0 in rows without visible keys."""
        scores, sinks = self.scores(sequence), self.rule.get("sinks")
        sinks = torch.full((self.num_heads,), -math.inf) if sinks is None else sinks
        with_sinks = torch.cat((scores, sinks.double().view(1, -1, 1).expand(len(scores), -1, 1)), -1)
        return torch.nan_to_num(torch.softmax(with_sinks, -1)[..., :-1], 0.0)

    def mixed(self, sequence: int) -> torch.Tensor:
        """Return the mixed values, [rows, H, D] float64."""
        v = self.v[sequence].double().repeat_interleave(self.group, 1)
        return torch.einsum("qhk,khd->qhd", self.pattern(sequence), v)

    def everything(self) -> list[torch.Tensor]:
        """Return the results of all four kernels for the same inputs, which are the same in every call."""
        rows, heads = self.rows_of(1), list(range(self.num_heads))
        kinds: list[str] = ["pattern", "scores", "dots"]
        hooks = [self.rows(rows, heads, kind) for kind in kinds]
        pattern = attention.softmax_rows(hooks[1], self.rule["sinks"])
        return [self.attend(), *hooks, pattern, self.mix(hooks[0], heads, 1)]
