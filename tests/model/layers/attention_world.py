"""Random sequences in a paged cache, and their attention written out in float64."""

import math
import random
from dataclasses import dataclass, field

import torch

from lightwell.model.batch import Batch, KeyRange, Span
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import Attention, AttentionRule

CPU = torch.device("cpu")


@dataclass
class World:
    """Random sequences, the keys that each position sees, and an empty cache with room for all of them."""

    dtype: torch.dtype
    causal: bool = field(default_factory=lambda: random.random() < 0.5)
    num_sequences: int = 4

    def __post_init__(self) -> None:
        self.num_key_heads = random.choice([1, 2, 3])
        self.num_heads = self.num_key_heads * random.choice([1, 2, 3])
        self.dim = random.choice([4, 7, 16, 20, 48, 80])
        self.block_size = random.choice([1, 3, 8, 16, 32, 40])
        self.window = random.choice([None, 1, random.randint(2, 40)])
        lengths = [random.randint(1, 70) for _ in range(self.num_sequences)]
        shape = (self.num_heads + 2 * self.num_key_heads, self.dim)
        self.qkv = [torch.randn(n, *shape).mul(2).to(self.dtype) for n in lengths]
        blocks = [-(-n // self.block_size) for n in lengths]
        free = random.sample(range(sum(blocks) + 3), sum(blocks))
        self.tables = [[free.pop() for _ in range(count)] for count in blocks]
        self.reach = max(lengths) + random.choice([0, 5])
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.rule = AttentionRule(
            scale=random.choice([1.0, self.dim**-0.5]),
            softcap=random.choice([None, random.uniform(1, 30)]),
            bias=random.choice([None, torch.randn(self.num_heads, 2 * self.reach - 1, dtype=wide)]),
            sinks=random.choice([None, torch.randn(self.num_heads, dtype=wide) * 5]),
        )
        self.cache = self.empty_cache(sum(blocks) + 3)
        self.num_checks = 0

    def check(self) -> None:
        self.num_checks += 1

    def empty_cache(self, num_blocks: int) -> LayerCache:
        heads, size = self.num_key_heads, self.block_size
        return LayerCache(
            keys=torch.full((num_blocks, heads, self.dim, size), math.nan, dtype=self.dtype),
            values=torch.full((num_blocks, heads, size, self.dim), math.nan, dtype=self.dtype),
        )

    def step(self, attention: Attention, *pieces: tuple[int, int, int]) -> tuple[torch.Tensor, Batch, KeyRange]:
        """Write to the cache and attend rows start..stop of sequences: (sequence, start, stop) each. Return q too."""
        spans = [Span([0] * (stop - start), start, self.tables[s], 1) for s, start, stop in pieces]
        batch = Batch(spans, self.block_size, CPU, self.check)
        qkv = torch.cat([self.qkv[s][start:stop] for s, start, stop in pieces])
        return attention.write_kv(qkv, None, self.cache, batch), batch, batch.key_range(self.causal, self.window)

    def attend(self, attention: Attention, *pieces: tuple[int, int, int]) -> list[torch.Tensor]:
        """Return each piece's result, [rows, H, D]."""
        q, batch, key_range = self.step(attention, *pieces)
        out = attention.attend(q, self.cache, batch, key_range, self.rule)
        return [out[batch.first_rows[i] : batch.first_rows[i + 1]] for i in range(len(pieces))]

    def whole(self, *sequences: int) -> list[tuple[int, int, int]]:
        return [(s, 0, len(self.qkv[s])) for s in sequences]

    def parts(self, sequence: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q [n, H, D], and k and v [n, H, D] (one copy per query head), float64."""
        qkv, heads, key_heads = self.qkv[sequence].double(), self.num_heads, self.num_key_heads
        group = heads // key_heads
        k, v = qkv[:, heads : heads + key_heads], qkv[:, heads + key_heads :]
        return qkv[:, :heads], k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def scores_of(world: World, sequence: int) -> torch.Tensor:
    """Return the scores [H, n, n], computed by the formulas."""
    q, k, _ = world.parts(sequence)
    rule, positions = world.rule, torch.arange(len(q))
    scores = torch.einsum("qhd,khd->hqk", q, k) * rule.scale
    distances = positions - positions[:, None]  # from a query to a key
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.bias is not None:
        scores = scores + rule.bias[:, distances + world.reach - 1].double()
    unseen = (distances > 0) & world.causal
    if world.window is not None:
        unseen |= distances.abs() >= world.window
    return scores.masked_fill(unseen, -math.inf)


def pattern_of(scores: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Return the pattern of scores [H, n, S]; sinks [H]."""
    if sinks is None:
        return torch.softmax(scores, -1)
    with_sinks = torch.cat((scores, sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:2], 1)), -1)
    return torch.softmax(with_sinks, -1)[..., :-1]


def mixed(scores: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Mix values: scores [H, n, S], v [S, H, D], sinks [H] -> [n, H, D]."""
    return torch.einsum("hqk,khd->qhd", pattern_of(scores, sinks), v)
