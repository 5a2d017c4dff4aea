"""Runs a few sequences, with captures and edits in some, through a network and gathers the captures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionChange, AttentionTap, Change, Hooks, Read
from lightwell.model.hooks.point_names import points_of, stack_config, why_absent
from lightwell.model.hooks.points import Point, Stack
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.lora import AdaptedRows, Adapter
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.network import CallingSink

CPU = torch.device("cpu")
BLOCK = 8
ROOM = 24
"""Blocks that each sequence has: the first half for its own positions, the second for the encoder's."""

Key = tuple[str, int | None]
"""A point's short name and its layer."""
Edit = Callable[[torch.Tensor], torch.Tensor]
ENCODER_ONLY = ("cross_attn.hook_k", "cross_attn.hook_v", "cross_attn.hook_rot_k")
MAPS = ("hook_attn_scores", "hook_pattern")


def load(
    folder: Path, dtype: torch.dtype = torch.float32, kernels: KernelConfig = AUTO, quantize: Quantization = "none"
) -> Transformer:
    config, context = read_config(folder), tiny.CONTEXT
    return load_model(folder, config, dtype, CPU, max_model_len=context, kernels=kernels, quantize=quantize)


def token_ids(count: int) -> list[int]:
    return torch.randint(5, tiny.VOCAB_SIZE - 20, (count,)).tolist()


def points(model: Transformer, stack: Stack) -> list[tuple[Point, int | None]]:
    """Return all points of the stack with one row per position: no maps, no logits, no points with encoder rows."""
    found: list[tuple[Point, int | None]] = []
    for point in points_of(model.config, stack):
        if point.name.endswith(MAPS) or point.name == "logits" or point.name in ENCODER_ONLY:
            continue
        layers = range(stack_config(model.config, stack).num_layers) if point.in_block else [None]
        found += [(point, i) for i in layers if why_absent(model.config, stack, point, i) is None]
    return found


@dataclass
class Seen:
    """The captures of one sequence."""

    points: dict[Key, torch.Tensor] = field(default_factory=dict)
    attention: dict[tuple[str, int, bool], torch.Tensor] = field(default_factory=dict)
    """Attention by kind, layer and whether it is cross attention: [H, rows, keys]."""
    pieces: list[torch.Tensor] = field(default_factory=list)

    @property
    def hidden(self) -> torch.Tensor:
        """Return the hidden states after the last layer, [positions, d]."""
        return torch.cat(self.pieces)


@dataclass
class Watched:
    """A sequence, with its captures and edits."""

    tokens: list[int]
    encoder_tokens: list[int] = field(default_factory=list)
    reads: Sequence[tuple[str, int | None]] = ()
    kinds: Sequence[str] = ()
    """Kinds of attention to return, of all heads and layers."""
    edits: dict[Key, Edit] = field(default_factory=dict)
    """Edits of all rows of the sequence, or of `rows`."""
    map_edits: dict[tuple[str, int, bool], Edit] = field(default_factory=dict)
    """Edits by kind (scores or pattern), layer and whether it is cross attention; of `heads`."""
    rows: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    adapter: Adapter | None = None


def run(model: Transformer, sequences: Sequence[Watched], *, chunk: int = 1000) -> list[Seen]:
    """Run them together: an encoder's rows at once, a decoder's in chunks that begin at the same position."""
    config, seen = model.config, [Seen() for _ in sequences]
    adapters = [each.adapter for each in sequences]
    if config.kind == "encoder":
        layers = [config.num_layers] * len(sequences)
        batch = Batch.unchunked([each.tokens for each in sequences], BLOCK, CPU, layers, adapters=adapters)
        hidden = model.encode(batch, _hooks(model, batch, sequences, seen, [0] * len(sequences)))
        for i, found in enumerate(seen):
            found.pieces.append(hidden[batch.first_rows[i] : batch.first_rows[i + 1]])
        return seen
    switch = model.rotary_switch or 10**6
    num_blocks, count = 1 + ROOM * len(sequences), len(sequences)
    cache = KVCache(model.cache_config, num_blocks, BLOCK, model.dtype, CPU, num_sequences=count)
    tables = [range(1 + ROOM * i, 1 + ROOM * (i + 1)) for i in range(len(sequences))]
    if config.encoder is not None:
        for each, table in zip(sequences, tables, strict=True):
            layers = [config.encoder.num_layers]
            alone = Batch.unchunked([each.encoder_tokens], BLOCK, CPU, layers, adapters=[each.adapter])
            slots = table[ROOM // 2] * BLOCK + np.arange(len(each.encoder_tokens))
            model.write_cross_kv(model.encode(alone), cache, slots, None, AdaptedRows.of(alone))
    for start in range(0, max(len(each.tokens) for each in sequences), chunk):
        alive = [i for i, each in enumerate(sequences) if len(each.tokens) > start]
        spans = [
            Span(
                sequences[i].tokens[start : start + chunk],
                start,
                tables[i],
                config.num_layers,
                tables[i][ROOM // 2 :],
                len(sequences[i].encoder_tokens),
                states=(1 + i, 1 + i),
                rotary_start=switch if len(sequences[i].tokens) > switch else 0,
                adapter=adapters[i],
            )
            for i in alive
        ]
        batch = Batch(spans, BLOCK, CPU)
        watched, found_by = [sequences[i] for i in alive], [seen[i] for i in alive]
        hidden = model.forward(batch, cache, _hooks(model, batch, watched, found_by, [start] * len(alive)))
        for at, found in enumerate(found_by):
            found.pieces.append(hidden[batch.first_rows[at] : batch.first_rows[at + 1]])
    return seen


def _hooks(
    model: Transformer, batch: Batch, sequences: Sequence[Watched], seen: Sequence[Seen], starts: Sequence[int]
) -> Hooks | None:
    reads: list[Read] = []
    changes: list[Change] = []
    taps: list[AttentionTap] = []
    map_changes: list[AttentionChange] = []
    for span, (each, found, start) in enumerate(zip(sequences, seen, starts, strict=True)):
        rows = range(batch.first_rows[span], batch.first_rows[span + 1])
        positions = range(start, start + len(rows))
        edited = [p for p in positions if each.rows is None or p in each.rows]
        edited_rows = [rows[0] + p - start for p in edited]
        for name, layer in each.reads:
            reads.append(Read(name, layer, rows, None, _append(found.points, (name, layer))))
        if edited:
            changes += [Change(name, layer, edited_rows, None, edit) for (name, layer), edit in each.edits.items()]
        num_layers, num_heads = model.config.num_layers, model.config.num_heads
        all_heads = list(range(num_heads))
        every_pair = [(layer, head) for layer in range(num_layers) for head in all_heads]
        pairs = HeadPairs.of(every_pair, num_layers, num_heads)
        for kind in each.kinds:
            for cross in (False, True)[: 1 + model.config.cross_attention]:
                taps.append(AttentionTap(span, rows, pairs, kind, CallingSink(_keep(found, kind, cross)), cross))
        for (kind, layer, cross), edit in each.map_edits.items():
            heads_of_edit = all_heads if each.heads is None else each.heads
            apply = _of_a_piece(edit)
            map_changes.append(AttentionChange(span, layer, edited_rows, heads_of_edit, kind, apply, cross))
    if not reads and not changes and not taps and not map_changes:
        return None
    return Hooks(reads, changes, taps, map_changes)


def _of_a_piece(edit: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, slice], torch.Tensor]:
    return lambda x, _: edit(x)


def _append(points: dict[Key, torch.Tensor], key: Key) -> Callable[[torch.Tensor], None]:
    def deliver(x: torch.Tensor) -> None:
        points[key] = torch.cat((points[key], x)) if key in points else x

    return deliver


def _keep(found: Seen, kind: str, cross: bool) -> Callable[[int, int, torch.Tensor], None]:
    def deliver(layer: int, _: int, rows: torch.Tensor) -> None:
        key = (kind, layer, cross)
        before = found.attention.get(key)
        if before is not None:
            hidden = 0.0 if kind == "pattern" else float("-inf")
            before = torch.nn.functional.pad(before, (0, rows.shape[2] - before.shape[2]), value=hidden)
            rows = torch.cat((before, rows), 1)
        found.attention[key] = rows

    return deliver
