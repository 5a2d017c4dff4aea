"""A network and a step of several sequences, for the decoder's kernel."""

import itertools
import math
import random
import secrets
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lightwell.model.kernels.attention import AttentionItems, VisibleKeys
from lightwell.model.kernels.decoder import Decoder, DecoderLayer, DecoderRows, LayerCaches, Product
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.products import DOT, WIDEN, BlockedWeight
from tests.model.kernels.draw_grouped import draw_grouped

Kind = Literal["float32", "narrow", "bfloat16", "dot", "int8 float32", "int8 bfloat16", "mixed"]

EPS = 1e-5

POSITIONS = 400


@dataclass
class World:
    """A network and a step of several sequences."""

    kind: Kind
    seed: int = field(default_factory=lambda: secrets.randbits(32))

    def __post_init__(self) -> None:
        print(self)
        rng = self.rng = random.Random(self.seed)
        torch.manual_seed(self.seed)
        low = self.kind in ("bfloat16", "dot", "int8 bfloat16") or (self.kind == "mixed" and rng.random() < 0.5)
        self.dtype = torch.bfloat16 if low else torch.float32
        self.num_key_heads, self.group = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
        self.num_heads, self.dim = self.num_key_heads * self.group, rng.choice([8, 16, 20, 32, 64])
        self.width, self.inside = rng.choice([40, 64, 77, 130, 200, 333]), rng.choice([24, 64, 100, 231])
        self.norm_dtype = rng.choice([self.dtype, torch.float32])
        self.softcap, self.residual_scale = rng.choice([None, 2.0]), rng.choice([1.0, 0.22])
        self.windows = [math.inf, *rng.sample([1, 7, 40], rng.choice([0, 1, 2]))]
        self.head_norm = rng.choice([None, "head", "full"])
        self.layers = [self._layer() for _ in range(rng.randint(1, 3))]
        self.final_norm = self._norm(self.width) if rng.random() < 0.8 else None
        self._draw_rows()
        self.x = torch.randn(self.num_rows, self.width).to(self.dtype)

    def _norm(self, width: int) -> Tensor:
        return (1 + torch.randn(width) / 3).to(self.norm_dtype)

    def _product(self, inputs: int, outputs: int) -> Product:
        weight = torch.randn(outputs, inputs) / inputs**0.5
        bias = torch.randn(outputs).to(self.dtype) if self.rng.random() < 0.5 else None
        kinds = ["bfloat16", "dot", "int8"] if self.dtype == torch.bfloat16 else ["float32", "narrow", "int8"]
        kinds += ["grouped"] if inputs % 16 == 0 else []
        kind = self.rng.choice(kinds) if self.kind == "mixed" else self.kind
        if kind == "grouped":
            grouped = draw_grouped(outputs, inputs, self.rng)
            arithmetic, rounds = self.rng.choice([DOT, WIDEN]), self.rng.random() < 0.3
            return Product(GroupedWeight([grouped], self.dtype, arithmetic, int8_activations=rounds), bias)
        if kind.startswith("int8"):
            scales = weight.abs().amax(1) / 127
            values = (weight / scales[:, None]).round().to(torch.int8)
            rounds = self.rng.random() < 0.3
            return Product(Int8BlockedWeight(values, scales, self.dtype, int8_activations=rounds), bias)
        dtype = torch.float32 if kind == "float32" else torch.bfloat16
        return Product(BlockedWeight(weight.to(dtype), DOT if kind == "dot" else WIDEN, self.dtype), bias)

    def _layer(self) -> DecoderLayer:
        heads, key_heads, dim = self.num_heads, self.num_key_heads, self.dim
        cos, sin = torch.randn(2, POSITIONS, self.rng.choice([dim, dim // 4 * 2]))
        return DecoderLayer(
            qkv=self._product(self.width, (heads + 2 * key_heads) * dim),
            out=self._product(heads * dim, self.width),
            gate_up=self._product(self.width, 2 * self.inside),
            down=self._product(self.inside, self.width),
            before_attention=self._norm(self.width),
            before_mlp=self._norm(self.width),
            q_norm={None: None, "head": self._norm(dim), "full": self._norm(heads * dim)}[self.head_norm],
            k_norm={None: None, "head": self._norm(dim), "full": self._norm(key_heads * dim)}[self.head_norm],
            rotary_tables=(cos, sin) if self.rng.random() < 0.8 else None,
            key_range=self.rng.randrange(len(self.windows)),
        )

    def _draw_rows(self) -> None:
        rng, size = self.rng, self.rng.choice([3, 8, 16, 32])
        self.size, self.num_rows = size, rng.choice([1, 1, 2, 5, 8, 16, 33, rng.randint(1, 33)])
        counts: list[int] = []
        while sum(counts) < self.num_rows:
            counts.append(min(rng.choice([1, 1, 1, rng.randint(2, 20)]), self.num_rows - sum(counts)))
        self.counts, self.starts = counts, [rng.choice([0, rng.randint(1, 90)]) for _ in counts]
        lengths = [start + count for start, count in zip(self.starts, counts, strict=True)]
        needed = [-(-length // size) for length in lengths]
        self.num_blocks = sum(needed) + 3
        blocks = rng.sample(range(self.num_blocks), sum(needed))
        tables = [[blocks.pop() for _ in range(count)] for count in needed]
        self.tables = np.zeros((len(counts), max(map(len, tables))), np.int32)
        for n, table in enumerate(tables):
            self.tables[n, : len(table)] = table
        self.owners = np.repeat(np.arange(len(counts)), counts)
        self.positions = np.concatenate([np.arange(s, n) for s, n in zip(self.starts, lengths, strict=True)])
        self.slots = self.tables[self.owners, self.positions // size].astype(np.int64) * size + self.positions % size
        self.key_ranges = [
            VisibleKeys(
                self.tables,
                self.positions,
                np.maximum(self.positions - (window - 1), 0).astype(np.int64),
                self.positions + 1,
                size,
            )
            for window in self.windows
        ]
        items, first = [], 0
        for sequence, count in enumerate(counts):
            for row in range(first, first + count, 8):
                num = min(8, first + count - row)
                heads = 1 if num > 1 else rng.choice([1, self.num_key_heads])
                items += [(sequence, row, num, head, heads) for head in range(0, self.num_key_heads, heads)]
            first += count
        rng.shuffle(items)
        self.items = AttentionItems(np.array(items, np.int32))
        alone = np.repeat(np.array(counts) == 1, counts)
        self.rows = DecoderRows(self.key_ranges, self.items, self.slots, alone, self.num_key_heads)
        shape = (self.num_blocks, self.num_key_heads)
        self.caches = []
        for _ in self.layers:
            keys = torch.full((*shape, self.dim, size), math.nan, dtype=self.dtype)
            values = torch.full((*shape, size, self.dim), math.nan, dtype=self.dtype)
            for own, start in zip(self.tables, self.starts, strict=True):
                positions = np.arange(start)
                at, places = own[positions // size], positions % size
                keys[at, :, :, places] = torch.randn(start, *keys.shape[1:3]).to(self.dtype)
                values[at, :, places] = torch.randn(start, *keys.shape[1:3]).to(self.dtype)
            self.caches.append((keys, values))

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.dim)

    def copied_caches(self) -> list[tuple[Tensor, Tensor]]:
        return [(keys.clone(), values.clone()) for keys, values in self.caches]

    def decoder(self) -> Decoder:
        return Decoder(
            self.layers,
            self.final_norm,
            dtype=self.dtype,
            num_heads=self.num_heads,
            num_key_heads=self.num_key_heads,
            head_dim=self.dim,
            eps=EPS,
            scale=self.scale,
            softcap=self.softcap,
            residual_scale=self.residual_scale,
        )

    def run(self, pieces: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        """Return the residual stream, the result, the queries of each layer, and all caches."""
        x, caches, decoder = self.x.clone(), self.copied_caches(), self.decoder()
        queries = {n: torch.zeros(self.num_rows, self.num_heads, self.dim) for n in range(len(self.layers))}
        out, bounds = x, (0, *pieces, len(self.layers))
        for first, end in itertools.pairwise(bounds):
            out = decoder.run(x, self.rows, LayerCaches(caches), first_layer=first, end_layer=end, queries=queries)
        return x, out, *queries.values(), *(each for cache in caches for each in cache)
