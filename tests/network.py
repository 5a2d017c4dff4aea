"""Runs the fast network on one sequence in process and gathers every named point, chunk by chunk, for tests to compare.

It imports only model/: no engine, no server. Axes are described in `model.hooks.points`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionTap, Hooks, Read, RowSink
from lightwell.model.hooks.point_names import full_name, points_of, sizes, stack_config, stacks, why_absent
from lightwell.model.hooks.points import Point, Stack, reads_encoder
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer

CPU = torch.device("cpu")
BLOCK_SIZE = 8
NUM_BLOCKS = 60
WHOLE = 1_000_000
MAPS = {"attn.hook_attn_scores": "scores", "attn.hook_pattern": "pattern"}
"""Points that the network returns through attention taps, and their kind."""


def look_at_everything(
    model: Transformer, token_ids: Sequence[int], encoder_token_ids: Sequence[int] = (), *, chunk: int = WHOLE
) -> dict[str, torch.Tensor]:
    """Return every point of a pass, by full name; the decoder reads `chunk` tokens a step.

    The cache's blocks are scattered, so that an answer cannot be right by their order.
    """
    return _Looked(model, list(token_ids), list(encoder_token_ids), chunk).points


def logits_alone(
    model: Transformer, token_ids: Sequence[int], encoder_token_ids: Sequence[int] = (), *, chunk: int = WHOLE
) -> torch.Tensor:
    """Return the logits, or the hidden states of an encoder without a head, with no captures."""
    return _Looked(model, list(token_ids), list(encoder_token_ids), chunk, looking=False).output


@dataclass(frozen=True)
class _Sequence:
    """Where one sequence's keys are in the cache."""

    table: list[int]
    cross_table: list[int]


class _Looked:
    def __init__(
        self, model: Transformer, token_ids: list[int], encoder_ids: list[int], chunk: int, *, looking: bool = True
    ) -> None:
        self.model, self.config, self.looking = model, model.config, looking
        self.lengths: dict[Stack, int] = {"decoder": len(token_ids), "encoder": len(encoder_ids)}
        self.places = {stack: list(_places(model.config, stack)) for stack in stacks(model.config)} if looking else {}
        self.points: dict[str, torch.Tensor] = {}
        if self.config.kind == "encoder":
            self.lengths["encoder"] = len(token_ids)
            self.output = self.encode(token_ids)
            if self.config.has_head:
                self.output = self.model.logits(self.output)
                if looking:
                    self.points["logits"] = self.output
            return
        blocks = torch.randperm(NUM_BLOCKS - 1, generator=torch.Generator().manual_seed(len(token_ids))).add(1).tolist()
        needed = -(-len(token_ids) // BLOCK_SIZE)
        where = _Sequence(blocks[:needed], blocks[needed : needed - (-len(encoder_ids) // BLOCK_SIZE)])
        cache = KVCache(model.cache_config, NUM_BLOCKS, BLOCK_SIZE, model.dtype, CPU)
        if self.config.encoder is not None:
            self.write_kv(self.encode(encoder_ids), cache, where)
        steps = range(0, len(token_ids), chunk)
        self.output = torch.cat([self.decode(token_ids[i : i + chunk], i, cache, where) for i in steps])

    def encode(self, ids: list[int]) -> torch.Tensor:
        own = stack_config(self.config, "encoder")
        hooks = self.hooks("encoder", 0, len(ids))
        return self.model.encode(Batch.unchunked([ids], BLOCK_SIZE, CPU, [own.num_layers]), hooks)

    def write_kv(self, hidden: torch.Tensor, cache: KVCache, where: _Sequence) -> None:
        positions = np.arange(len(hidden))
        slots = np.array(where.cross_table)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        hooks = None
        if self.looking:
            reads = [self.read("decoder", p, i, 0, len(hidden)) for p, i in self.places["decoder"] if reads_encoder(p)]
            hooks = Hooks(reads)
        self.model.write_cross_kv(hidden, cache, slots, hooks)

    def decode(self, ids: list[int], start: int, cache: KVCache, where: _Sequence) -> torch.Tensor:
        cross = {"cross_block_table": where.cross_table, "num_cross_keys": self.lengths["encoder"]}
        switch = self.model.rotary_switch or 0
        rotary_start = switch if self.lengths["decoder"] > switch else 0
        span = Span(ids, start, where.table, self.config.num_layers, **cross, rotary_start=rotary_start)
        hidden = self.model.forward(Batch([span], BLOCK_SIZE, CPU), cache, self.hooks("decoder", start, len(ids)))
        logits = self.model.logits(hidden)
        if self.looking:
            self.keep(full_name(self.config, "decoder", "logits", None), (self.lengths["decoder"],), start, logits)
        return logits

    def hooks(self, stack: Stack, start: int, rows: int) -> Hooks | None:
        if not self.looking:
            return None
        reads, taps = [], []
        for point, layer in self.places[stack]:
            if point.name.removeprefix("cross_") in MAPS:
                assert layer is not None
                taps.append(self.tap(stack, point, layer, start, rows))
            elif point.name != "logits" and not reads_encoder(point):
                reads.append(self.read(stack, point, layer, start, rows))
        return Hooks(reads, attention=taps)

    def read(self, stack: Stack, point: Point, layer: int | None, start: int, rows: int) -> Read:
        name = full_name(self.config, stack, point.name, layer)
        length = self.lengths["encoder" if reads_encoder(point) else stack]
        return Read(point.name, layer, range(rows), None, lambda x: self.keep(name, (length,), start, x))

    def tap(self, stack: Stack, point: Point, layer: int, start: int, rows: int) -> AttentionTap:
        own, short = stack_config(self.config, stack), point.name.removeprefix("cross_")
        name = full_name(self.config, stack, point.name, layer)
        shape = sizes(self.config, stack, point, self.lengths[stack], self.lengths["encoder"])
        unseen = float("-inf") if MAPS[short] == "scores" else 0.0

        def keep(_: int, first: int, found: torch.Tensor) -> None:
            if name not in self.points:
                self.points[name] = torch.full(shape, unseen, dtype=found.dtype)
            self.points[name][:, start + first : start + first + found.shape[1], : found.shape[2]] = found

        pairs = HeadPairs.of([(layer, head) for head in range(own.num_heads)], own.num_layers, own.num_heads)
        return AttentionTap(0, range(rows), pairs, MAPS[short], CallingSink(keep), cross=short != point.name)

    def keep(self, name: str, length: tuple[int, ...], start: int, found: torch.Tensor) -> None:
        if name not in self.points:
            self.points[name] = torch.full(length + found.shape[1:], float("nan"), dtype=found.dtype)
        self.points[name][start : start + len(found)] = found


class CallingSink(RowSink):
    """A sink that calls a function with the arguments of `take`."""

    def __init__(self, call: Callable[[int, int, torch.Tensor], None]) -> None:
        self._call = call

    def take(self, layer: int, first: int, rows: torch.Tensor) -> None:
        self._call(layer, first, rows)


def _places(config: ModelConfig, stack: Stack) -> Iterator[tuple[Point, int | None]]:
    """Yield every point of a stack, and each of its layers."""
    for point in points_of(config, stack):
        layers = range(stack_config(config, stack).num_layers) if point.in_block else (None,)
        for layer in layers:
            if why_absent(config, stack, point, layer) is None:
                yield point, layer


FLOAT32_BOUND = 2e-5
"""The largest error of any number in float32, relative to the largest absolute value of its tensor."""


def worst(
    ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], ending: str = "", *, relative: bool = False
) -> float:
    """Return the largest difference over all points with names that have this ending. Both must have the same points;
    -inf equals only -inf. `relative`: divide each difference by the largest absolute value of the expected tensor.
    """
    assert set(ours) == set(expected), set(ours) ^ set(expected)
    found = 0.0
    for name in sorted(ours):
        if name.endswith(ending):
            mine, other = ours[name].double(), expected[name].double()
            assert mine.shape == other.shape, name
            assert torch.equal(mine.isinf(), other.isinf()), name
            assert not mine.isnan().any(), name
            difference = float((mine - other).masked_fill(mine.isinf(), 0.0).abs().max())
            if relative:
                difference /= float(other.masked_fill(other.isinf(), 0.0).abs().max()) or 1.0
            found = max(found, difference)
    return found
