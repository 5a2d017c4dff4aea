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

from lightwell.model.config import Activation, ClampedGate
from lightwell.model.kernels.attention import AttentionItems, VisibleKeys
from lightwell.model.kernels.decoder import Decoder, DecoderRows, LayerCaches
from lightwell.model.kernels.delta import StateCache
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.products import DOT, WIDEN, BlockedWeight
from lightwell.model.kernels.program.steps import (
    AddRows,
    AddToOthers,
    ApplyDelta,
    Attend,
    ChooseExperts,
    CombineExperts,
    Convolve,
    CorrectStreams,
    EnterHeads,
    EnterQueries,
    GateAside,
    GateHeads,
    GateRows,
    GateTokens,
    Heads,
    JoinRows,
    Multiply,
    MultiplyExperts,
    NormRows,
    NormWeights,
    PredictStreams,
    Product,
    Register,
    ScaleRows,
    Step,
    Tanh,
    WeighRows,
)
from tests.model.kernels.draw_grouped import draw_grouped

Kind = Literal["float32", "narrow", "bfloat16", "dot", "int8 float32", "int8 bfloat16", "mixed"]

EPS = 1e-5

POSITIONS = 400


@dataclass
class World:
    """A network and a step of several sequences."""

    kind: Kind
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    is_plain: bool = False
    """True for one stream and attention in every layer, without cross attention and inputs of tokens."""

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
        self.head_norm, self.num_chosen = rng.choice([None, "head", "full"]), rng.choice([1, 2, 3])
        self.num_layers, self.steps, self.first_steps = rng.randint(1, 4), list[Step](), list[int]()
        self.num_streams = 1 if self.is_plain else rng.choice([1, 1, 2, 4])
        self.token_width, self.has_cross = 24, not self.is_plain and rng.random() < 0.3
        self.delta_sizes = (key_heads := rng.choice([1, 3]), key_heads * rng.choice([1, 2]), 9, rng.choice([16, 70]))
        self.states: dict[int, tuple[int, ...]] = {}
        """The sizes of a state of each layer without attention."""
        for n in range(self.num_layers):
            self.first_steps.append(len(self.steps))
            if self.num_streams > 1:
                self._weigh_streams(self.num_streams**2)
                self.steps.append(PredictStreams(self.num_streams))
            self._add_layer(n)
            if not self.is_plain and rng.random() < 0.3:
                self._multiply(self.token_width, Register.STREAM, Register.WIDE)
                self.steps.append(GateTokens(n, "gelu_tanh"))
                self._finish("after", Register.MIXED, self.token_width)
            if self.num_streams > 1:
                self._weigh_streams(self.num_streams)
                self.steps += [CorrectStreams(self.num_streams), WeighRows(torch.randn(self.width).to(self.dtype))]
                self.steps += [AddToOthers(self.num_streams)]
        self.first_steps.append(len(self.steps))
        if rng.random() < 0.8:
            self.steps.append(NormRows(self._norm(self.width), Register.STREAM, Register.OUT))
        self._draw_rows()
        self.x = torch.randn(self.num_rows, self.width).to(self.dtype)
        self.of_tokens = torch.randn(self.num_rows, self.num_layers, self.token_width).to(self.dtype)
        self.others = torch.randn(self.num_streams - 1, self.num_rows, self.width).to(self.dtype)

    def _norm(self, width: int) -> NormWeights:
        weight = 1 + torch.randn(width) / 3
        if self.rng.random() < 0.3:
            bias = torch.randn(width).to(self.dtype) if self.rng.random() < 0.5 else None
            return NormWeights(weight.to(self.dtype), EPS, bias, is_centred=True)
        return NormWeights(weight.to(self.norm_dtype), EPS)

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

    def _weigh_streams(self, count: int) -> None:
        self.steps += [NormRows(self._norm(self.width), Register.STREAM, Register.NORMED)]
        self.steps += [ScaleRows(1 / self.width, Register.NORMED)]
        self._multiply(self.num_streams, Register.NORMED, Register.WIDE)
        self.steps += [Tanh()]
        self._multiply(count, Register.MIXED, Register.WIDE, self.num_streams)

    def _apply_recurrence(self, n: int, kind: str) -> None:
        """Add a short convolution or a delta net, of as many channels as fit."""
        source, kept = self._before(kind), self.rng.choice([1, 3])
        if self.rng.random() < 0.5:
            channels = self.width
            self._multiply(3 * channels, source, Register.WIDE)
            step: Step = Convolve(n, torch.randn(kept + 1, channels), torch.randn(channels))
        else:
            key_heads, heads, key_dim, value_dim = self.delta_sizes
            rest = torch.rand(heads), torch.rand(heads)
            channels, values = 2 * key_heads * key_dim + heads * value_dim, heads * value_dim
            self._multiply(channels + values + 2 * heads, source, Register.WIDE)
            norm = NormWeights(torch.ones(value_dim, dtype=self.dtype), EPS)
            step = ApplyDelta(n, self.delta_sizes, torch.randn(kept + 1, channels), None, *rest, norm)
            channels = values
        self.states[n] = step.state_sizes
        self.steps.append(step)
        self._finish(kind, Register.MIXED, channels)

    def _attend_across(self, n: int, kind: str) -> None:
        self._multiply(self.num_heads * self.dim, self._before(kind), Register.WIDE)
        at = n, len(self.windows)
        self.steps += [EnterQueries(*at, is_cross=True), Attend(*at, self.scale, is_cross=True, has_keys=False)]
        self._finish(kind, Register.MIXED, self.num_heads * self.dim)

    def _add_layer(self, n: int) -> None:
        heads, key_heads, dim, rng = self.num_heads, self.num_key_heads, self.dim, self.rng
        cos, sin = torch.randn(2, POSITIONS, rng.choice([dim, dim // 4 * 2]))
        norms = {None: (None, None), "head": (self._norm(dim), self._norm(dim))}
        norms["full"] = self._norm(heads * dim), self._norm(key_heads * dim)
        is_parallel, kind = rng.random() < 0.2, rng.choice(["before", "before", "after", "of sum"])
        if not self.is_plain and n < self.num_layers - 1 and rng.random() < 0.4:
            self._apply_recurrence(n, kind)
            self._feed_forward(kind, is_parallel=False)
            return
        key_range, is_gated = rng.randrange(len(self.windows)), rng.random() < 0.3
        self._multiply(((2 if is_gated else 1) * heads + 2 * key_heads) * dim, self._before(kind), Register.WIDE)
        self.steps += [
            EnterHeads(
                n,
                key_range,
                *norms[self.head_norm],
                self._norm(dim) if rng.random() < 0.2 else None,
                (cos, sin) if rng.random() < 0.8 else None,
                is_gated,
            ),
            Attend(
                n,
                key_range,
                self.scale,
                self.softcap,
                torch.randn(heads, 2 * POSITIONS - 1) if rng.random() < 0.2 else None,
                torch.randn(heads) if rng.random() < 0.2 else None,
                gated=is_gated,
            ),
            *[GateHeads(key_range)] * is_gated,
        ]
        if is_parallel:
            self._multiply(self.width, Register.MIXED, Register.ASIDE, heads * dim)
        else:
            self._finish(kind, Register.MIXED, heads * dim)
            if self.has_cross and rng.random() < 0.5:
                self._attend_across(n, kind)
        self._feed_forward(kind, is_parallel=is_parallel)

    def _feed_forward(self, kind: str, *, is_parallel: bool) -> None:
        rng = self.rng
        is_gated, activation = rng.random() < 0.7, rng.choice(["silu", "gelu", "gelu_tanh", "relu"])
        clamps = ClampedGate(limit=1.0, alpha=1.7) if rng.random() < 0.3 else None
        if kind == "before" and not is_parallel and rng.random() < 0.4:
            self._mix_experts(GateRows(activation, clamps, of_experts=True) if is_gated else None, activation)
            return
        outputs = 2 * self.inside if is_gated else self.inside
        self._multiply(outputs, self._before(kind), Register.WIDE, activation=None if is_gated else activation)
        self.steps += [GateRows(activation, clamps, deviations=rng.choice([None, 0.5]))] * is_gated
        source = Register.MIXED if is_gated else Register.WIDE
        if is_parallel:
            self._multiply(self.width, source, Register.NORMED, self.inside)
            self.steps.append(JoinRows())
        else:
            self._finish(kind, source, self.inside)
            self.steps += [ScaleRows(0.7)] * (rng.random() < 0.2)

    def _mix_experts(self, gate: GateRows | None, activation: Activation) -> None:
        source, inside, rng = self._before("before"), self.inside, self.rng
        has_shared = rng.random() < 0.5
        if has_shared:
            self._multiply(inside, source, Register.WIDE, activation=activation)
            self._multiply(self.width, Register.WIDE, Register.ASIDE, inside)
            self._multiply(1, source, Register.MIXED)
            self.steps.append(GateAside())
        count = rng.choice([3, 4, 7])
        self._multiply(count, source, Register.WIDE)
        ups = self._alike(count, self.width, inside if gate is None else 2 * inside)
        own = activation if gate is None else None
        self.steps += [
            ChooseExperts(count, self.num_chosen, rng.random() < 0.5, rng.choice([None, torch.rand(count)])),
            MultiplyExperts(ups, Register.GIVEN, Register.GIVEN_WIDE, own),
            *([] if gate is None else [gate]),
            MultiplyExperts(
                self._alike(count, inside, self.width),
                Register.GIVEN_WIDE if gate is None else Register.GIVEN_MIXED,
                Register.GIVEN,
            ),
            CombineExperts(adds_aside=has_shared),
            AddRows(self.residual_scale),
        ]

    def _alike(self, count: int, inputs: int, outputs: int) -> list[Product]:
        """Draw products of one form."""
        found = [self._product(inputs, outputs)]
        while len(found) < count:
            other = self._product(inputs, outputs)
            found += [other] * (other.weight.form == found[0].weight.form)
        return found

    def _before(self, kind: str) -> Register:
        if kind != "before":
            return Register.STREAM
        self.steps.append(NormRows(self._norm(self.width), Register.STREAM, Register.NORMED))
        return Register.NORMED

    def _finish(self, kind: str, source: Register, inputs: int) -> None:
        is_after = kind == "after"
        self._multiply(self.width, source, Register.NORMED, inputs, adds=None if is_after else self.residual_scale)
        if is_after:
            norm = NormRows(self._norm(self.width), Register.NORMED, Register.NORMED)
            self.steps += [norm, AddRows(self.residual_scale)]
        if kind == "of sum":
            self.steps.append(NormRows(self._norm(self.width), Register.STREAM, Register.STREAM))

    def _multiply(
        self,
        outputs: int,
        source: Register,
        target: Register,
        inputs: int | None = None,
        *,
        activation: Activation | None = None,
        adds: float | None = None,
    ) -> None:
        product = self._product(inputs or self.width, outputs)
        self.steps.append(Multiply(product, source, target, activation, adds))

    def _draw_rows(self) -> None:
        rng, size = self.rng, self.rng.choice([3, 8, 16, 32])
        self.size, self.num_rows = size, rng.choice([1, 1, 2, 5, 8, 16, 33, rng.randint(1, 33)])
        counts: list[int] = []
        while sum(counts) < self.num_rows:
            counts.append(min(rng.choice([1, 1, 1, rng.randint(2, 20)]), self.num_rows - sum(counts)))
        self.counts, self.starts = counts, [rng.choice([0, rng.randint(1, 90)]) for _ in counts]
        lengths = [start + count for start, count in zip(self.starts, counts, strict=True)]
        needed = [-(-length // size) for length in lengths]
        self.num_blocks = sum(needed) + 3 + self.has_cross
        blocks = rng.sample(range(self.num_blocks - self.has_cross), sum(needed))
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
        cross = None
        if self.has_cross:  # all keys of one block
            tables, all_rows = np.full_like(self.tables, self.num_blocks - 1), np.zeros(self.num_rows, np.int64)
            cross = VisibleKeys(tables, self.positions, all_rows, all_rows + size, size)
        bounds = itertools.pairwise(itertools.accumulate(counts, initial=0))
        states = rng.sample(range(2 * len(counts)), 2 * len(counts))
        spans = [
            (*rows, states[2 * n], states[2 * n + rng.choice([0, 1])], start == 0)
            for n, (rows, start) in enumerate(zip(bounds, self.starts, strict=True))
        ]
        self.rows = DecoderRows(
            self.key_ranges, {self.num_key_heads: self.items}, self.slots, alone, None, cross, spans
        )
        shape = (self.num_blocks, self.num_key_heads)
        self.caches: list[tuple[Tensor, Tensor] | StateCache] = []
        for n in range(self.num_layers):
            if n in self.states:
                kept, channels, *memory = self.states[n]
                inputs = torch.randn(len(states), kept, channels).to(self.dtype)
                self.caches.append(StateCache(inputs, torch.randn(len(states), *memory) if memory else None))
                continue
            keys = torch.full((*shape, self.dim, size), math.nan, dtype=self.dtype)
            values = torch.full((*shape, size, self.dim), math.nan, dtype=self.dtype)
            for own, start in zip(self.tables, self.starts, strict=True):
                positions = np.arange(start)
                at, places = own[positions // size], positions % size
                keys[at, :, :, places] = torch.randn(start, *keys.shape[1:3]).to(self.dtype)
                values[at, :, places] = torch.randn(start, *keys.shape[1:3]).to(self.dtype)
            if self.has_cross:
                keys[-1], values[-1] = torch.randn(keys.shape[1:]), torch.randn(values.shape[1:])
            self.caches.append((keys, values))

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.dim)

    def copied_caches(self) -> list[tuple[Tensor, Tensor] | StateCache]:
        return [
            StateCache(each.inputs.clone(), None if each.memory is None else each.memory.clone())
            if isinstance(each, StateCache)
            else (each[0].clone(), each[1].clone())
            for each in self.caches
        ]

    def decoder(self) -> Decoder:
        return Decoder(
            self.steps,
            dtype=self.dtype,
            width=self.width,
            heads=[Heads(self.num_heads, self.num_key_heads, self.dim)] * (len(self.windows) + self.has_cross),
        )

    def run(self, pieces: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        """Return the residual stream, the result, the queries of each layer, and all caches."""
        x, caches, decoder = self.x.clone(), self.copied_caches(), self.decoder()
        attending = [n for n in range(self.num_layers) if n not in self.states]
        queries = {n: torch.zeros(self.num_rows, self.num_heads, self.dim) for n in attending}
        others, out, bounds = (
            self.others.clone(),
            x,
            (0, *(self.first_steps[piece] for piece in pieces), len(self.steps)),
        )
        for first, end in itertools.pairwise(bounds):
            given = {"first": first, "end": end, "queries": queries, "of_tokens": self.of_tokens, "others": others}
            out = decoder.run(x, self.rows, LayerCaches(caches), **given)
        memory = [
            part
            for each in caches
            for part in ((each.inputs, each.memory) if isinstance(each, StateCache) else each)
            if part is not None
        ]
        return x, out, others, *queries.values(), *memory
