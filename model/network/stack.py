"""Stack: runs embedding, blocks and final norm over a ragged batch.

Axes: T rows of the batch, d model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.hooks import Hooks, normed
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.lora import AdaptedRows
from lightwell.model.layers.norm import Norm
from lightwell.model.layers.rope import Rope, rotary_rows
from lightwell.model.network.altup import StreamEnds
from lightwell.model.network.block import Block
from lightwell.model.network.convolution import KeptInputs
from lightwell.model.network.embedding import Embedding
from lightwell.model.network.fused_decoder import DecodeStep
from lightwell.model.network.fused_encoder import EncodeStep
from lightwell.model.network.per_layer import PerLayerInputs
from lightwell.model.network.sublayers import BlockInputs, Streams

if TYPE_CHECKING:  # a CPU has no need of Triton
    from lightwell.model.network.gpu_program import GpuProgram


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """An encoder or a decoder, without a head."""

    config: ModelConfig
    embedding: Embedding
    blocks: Sequence[Block]
    ropes: Sequence[Rope | None]
    """The rotary positions of each block, or None; blocks with equal positions share one object."""
    final_norm: Norm | None
    decode_step: DecodeStep | None
    """The blocks as one program, or None."""
    encode_step: EncodeStep | None
    """All blocks of an encoder in one call, or None."""
    gpu_program: "GpuProgram | None" = None
    """The whole stack by our Triton kernels, or None."""
    stream_ends: StreamEnds | None = None
    """The layers that create and join several residual streams, or None if there is one stream."""
    per_layer: PerLayerInputs | None = None
    """The per-layer token embeddings, or None."""

    def __call__(self, batch: Batch, caches: Sequence[LayerCache], hooks: Hooks | None = None) -> Tensor:
        """Run each row through the layers that its span needs, and write keys, values and states to the caches.

        Returns the final-normed hidden states [T, d] of the leading rows that need all layers, or no rows if the output
        of the last layer is not needed. Exceptions of `batch.check`, between two layers or inside one, are passed on;
        the caches then hold the rows of some layers.
        """
        adapted = AdaptedRows.of(batch)
        if self.gpu_program is not None and adapted is None:
            plan = self.gpu_program.plan(batch, hooks)
            if plan is not None:
                return self.gpu_program(batch, caches, plan)
        outside = None if hooks is None else hooks.at(None)
        x = self.embedding(batch, outside)  # [T, d]
        if self.encode_step is not None and adapted is None and self.encode_step.can_run(batch, hooks):
            return self.encode_step(x, batch)
        program, num_layers, first = self.decode_step, len(self.blocks), 0
        end = 0 if program is None else program.end_of_run(0, batch, hooks, adapted)
        of_tokens = None if self.per_layer is None else self.per_layer(batch, x)  # [T, L, P]
        if program is not None and end == num_layers and outside is None and self.stream_ends is None:
            return program(x[: batch.num_rows_at(0)], batch, caches, hooks, adapted, of_tokens=of_tokens)
        streams = None if self.stream_ends is None else self.stream_ends.start(x)
        inputs = self._inputs(batch, hooks, adapted, of_tokens, streams)
        while first < num_layers:
            x = x[: batch.num_rows_at(first)]
            if len(x) == 0:
                return x
            end = first if program is None else program.end_of_run(first, batch, hooks, adapted)
            if streams is not None:
                streams.keep(len(x))
            if program is not None and end > first:
                others = None if streams is None else streams.others
                x = program(x, batch, caches, hooks, adapted, (first, end), of_tokens, others)
                first = end
                continue
            batch.check()
            block, layer_hooks = self.blocks[first], None if hooks is None else hooks.at(first)
            step = inputs(block, caches[first])
            if not batch.needs_output_of(first):
                block.write_kv(x, step, layer_hooks)
                return x[:0]
            x, first = block(x, step, layer_hooks), first + 1
        if self.stream_ends is not None and streams is not None:
            x = self.stream_ends.end(x, streams)
        return normed(self.final_norm, "ln_final", x, outside)

    def _inputs(
        self,
        batch: Batch,
        hooks: Hooks | None,
        adapted: AdaptedRows | None,
        of_tokens: Tensor | None,
        streams: Streams | None,
    ) -> Callable[[Block, LayerCache], BlockInputs]:
        """Return a function that returns the other inputs of a block."""
        recurrence = self.config.recurrence
        kept = None if recurrence is None else KeptInputs.of(batch, recurrence.kernel_size - 1)
        projected: dict[int, tuple[Tensor, Tensor]] | None
        projected = {} if hooks is not None and self.config.num_kv_shared_layers else None
        rows_of_tables = torch.from_numpy(rotary_rows(batch)).to(batch.device)
        tables = {rope: None if rope is None else rope.at(rows_of_tables) for rope in set(self.ropes)}

        def of_block(block: Block, cache: LayerCache) -> BlockInputs:
            own = None if of_tokens is None else of_tokens[:, block.index]
            return BlockInputs(batch, cache, tables[self.ropes[block.index]], adapted, kept, own, streams, projected)

        return of_block
