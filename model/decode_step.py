"""A step of few rows through all blocks of a decoder in one call, with the bits of the blocks one by one.

Such a step's products take microseconds each, and what torch and Python do between them as long again. Knows which
blocks the kernels can stand for, and where their numbers lie; refuses to compute anything itself.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeGuard

import numpy as np
import torch

from model.attention_looks import Attended, look_at_rows
from model.batch import Batch, Sight, padded_rows
from model.block import Block, Residual
from model.capture import Looks
from model.kv_cache import LayerCache
from model.layers.arrays import bits
from model.layers.attention import CompiledAttention
from model.layers.few_rows import FewRows
from model.layers.linear import Linear
from model.layers.narrow_weight import NarrowWeight, num_parts, rows_together
from model.layers.norm import Norm, RmsNorm
from model.layers.rope import Rope
from model.sublayers import Feedforward, SelfAttention

if TYPE_CHECKING:
    from model.layers.int8_weight import Int8Weight

_WORK_BETWEEN_CHECKS = 1 << 25
"""Weights that one call reads at most, or one layer's: some milliseconds. A key of a head counts as 64."""

_MOST_OWN_ROWS = 256
"""Of a step whose weights are all narrow, or int8, products of which are ours for any number of rows: one of prompts,
too."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of a block, what the kernels stand for."""

    attention: SelfAttention
    gate_up: Linear
    down: Linear
    before_attention: RmsNorm
    before_mlp: RmsNorm

    @classmethod
    def of(cls, block: Block) -> Self | None:
        """None where the block has something else."""
        if block.parallel or block.cross is not None:
            return None
        attention, mlp = block.attention.f, block.mlp.f
        before_attention, before_mlp = _norm_before(block.attention), _norm_before(block.mlp)
        if before_attention is None or before_mlp is None:
            return None
        if not isinstance(attention, SelfAttention) or not isinstance(mlp, Feedforward) or mlp.mlp.gate != "silu":
            return None
        if attention.heads.rule.bias is not None or not isinstance(attention.heads.attention, CompiledAttention):
            return None
        parts = cls(attention, mlp.mlp.up, mlp.mlp.down, before_attention, before_mlp)
        return parts if parts._has_products() else None

    def norms(self) -> list[RmsNorm]:
        """All of them."""
        of_heads = self.attention.q_norm, self.attention.k_norm
        return [self.before_attention, self.before_mlp, *(norm for norm in of_heads if _is_compiled(norm))]

    def _has_products(self) -> bool:
        """Only the gated rows are filled up with zeros where a product asks for it."""
        others = self.attention.qkv, self.attention.heads.out, self.gate_up
        return _product(self.down) is not None and all(
            product is not None and product.inputs == each.in_features
            for each in others
            for product in [_product(each)]
        )


def _product(linear: Linear) -> "FewRows | NarrowWeight | Int8Weight | None":
    """What the kernels multiply few rows by; None where they cannot."""
    return linear.int8 or linear.narrow or linear.few_rows


def _norm_before(residual: Residual) -> RmsNorm | None:
    """The only norm of a residual, where it is one that the kernels can make."""
    alone = residual.after is None and residual.of_sum is None
    return residual.before if alone and _is_compiled(residual.before) else None


def _is_compiled(norm: Norm | None) -> TypeGuard[RmsNorm]:
    return isinstance(norm, RmsNorm) and norm.is_compiled


class DecodeStep:
    """The blocks of one decoder, and the norm behind them."""

    def __init__(self, parts: Sequence[_Parts], final_norm: RmsNorm | None, ropes: Sequence[Rope | None]) -> None:
        """ropes: of each layer. The parts live as long as this does; all have norms of one kind, and one rule."""
        # Imported here: a GPU server never needs them.
        from model import decode_step_kernels as kernels
        from model.layers.few_rows_kernels import BLOCK, MOST_ROWS

        self._kernels = kernels
        self._parts = parts
        self._final_norm = final_norm
        attention = parts[0].attention
        self._num_heads, self._num_kv_heads, self._head_dim = (
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_dim,
        )
        self._windows = list(dict.fromkeys(each.attention.window for each in parts))
        self._layers = np.array([self._row(*each) for each in zip(parts, ropes, strict=True)], np.int64)
        products = self._layers[:, : kernels.DOWN + kernels.OUTPUTS + 1].reshape(len(parts), -1, kernels.OUT)
        inputs, outputs = products[..., kernels.INPUTS], products[..., kernels.OUTPUTS]
        self._num_weights = int((inputs[0] * outputs[0]).sum())
        self._widest = int(inputs.max()), int(outputs.max())
        narrow = products[..., kernels.CHAIN] == kernels.NARROW
        self._has_narrow = bool(narrow.any())
        self._is_int8 = parts[0].down.int8 is not None
        self.most_rows = _MOST_OWN_ROWS if self._is_int8 or narrow.all() else MOST_ROWS
        """Of a step that `can_run`."""
        self._sums = BLOCK * MOST_ROWS
        rule, norm = attention.heads.rule, parts[0].before_attention
        no_bias = np.empty((self._num_heads, 0), np.float32)
        self._scores = np.float32(rule.scale), np.float32(rule.softcap or 0.0), no_bias
        self._norms = np.float32(norm.eps), norm.rounds_once
        self._buffers: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(
        cls, blocks: Sequence[Block], final_norm: Norm | None, rope: Rope | None, local_rope: Rope | None
    ) -> Self | None:
        """Of a causal stack; None where the kernels cannot stand for its blocks here.

        local_rope: of the blocks that use it; None is `rope`.
        """
        parts = [part for block in blocks if (part := _Parts.of(block)) is not None]
        if len(parts) < len(blocks) or not parts:
            return None
        if not (final_norm is None or _is_compiled(final_norm)):
            return None
        rules = {(part.attention.heads.rule.scale, part.attention.heads.rule.softcap) for part in parts}
        norms = [norm for part in parts for norm in part.norms()] + ([final_norm] if final_norm else [])
        if len(rules) > 1 or len({(norm.eps, norm.rounds_once) for norm in norms}) > 1:
            return None
        return cls(parts, final_norm, [local_rope or rope if block.uses_local_rope else rope for block in blocks])

    def _row(self, parts: _Parts, rope: Rope | None) -> list[int]:
        """Of the table of layers, see `decode_step_kernels`."""
        attention = parts.attention
        row = []
        for linear in (attention.qkv, attention.heads.out, parts.gate_up, parts.down):
            product = _product(linear)
            assert product is not None
            if isinstance(product, FewRows):
                chain = product.chain
            else:
                chain = self._kernels.NARROW if isinstance(product, NarrowWeight) else _address(product.scales)
            row += [product.address, _address(linear.bias), chain, product.inputs, product.outputs]
        row += [_address(norm.weight) for norm in (parts.before_attention, parts.before_mlp)]
        for of_heads in (attention.q_norm, attention.k_norm):
            row += [0, 0] if of_heads is None else [_address(of_heads.weight), len(of_heads.weight)]
        row += [0, 0, 0] if rope is None else [_address(rope.cos), _address(rope.sin), rope.cos.shape[1]]
        return [*row, self._windows.index(attention.window)]

    def can_run(self, batch: Batch, looks: Looks | None) -> bool:
        """Whether rows are few, see few keys and need all layers, and nobody wants more than attention rows."""
        last = len(self._parts) - 1
        if batch.num_rows > self.most_rows or batch.num_rows_at(last) < batch.num_rows:
            return False
        if not batch.needs_output_of(last):
            return False
        if looks is not None and (looks.reads or looks.changes or looks.attention_changes):
            return False
        return len(self._items(batch)) == 1

    def _items(self, batch: Batch) -> list[np.ndarray]:
        return batch.attention_items(batch.num_rows, self._num_kv_heads, torch.get_num_threads())

    def __call__(
        self, x: torch.Tensor, batch: Batch, caches: Sequence[LayerCache], looks: Looks | None
    ) -> torch.Tensor:
        """x [R, d], which may be overwritten -> the final-normed rows [R, d]; keys and values go into the caches.

        Raises what `batch.check` raises, between two calls; the caches then hold the rows of some layers.
        """
        x = x.contiguous()
        sights = [batch.sight(True, window) for window in self._windows]
        wanted = [] if looks is None else [n for n in range(len(caches)) if looks.at(n) is not None]
        places = np.zeros(len(caches), np.int64)
        places[wanted] = range(1, len(wanted) + 1)
        queries = np.empty((1 + len(wanted), batch.num_rows * self._num_heads * self._head_dim), np.float32)
        out = torch.empty_like(x)
        self._run(x, batch, caches, sights, queries, places, out)
        if looks is not None:
            self._show(looks, wanted, queries[1:], batch, caches, sights)
        return x if self._final_norm is None else out

    def _run(
        self,
        x: torch.Tensor,
        batch: Batch,
        caches: Sequence[LayerCache],
        sights: Sequence[Sight],
        queries: np.ndarray,
        places: np.ndarray,
        out: torch.Tensor,
    ) -> None:
        """As many layers at a time as take some milliseconds."""
        threads = torch.get_num_threads()
        run = self._kernels.run_blocks_here if threads == 1 else self._kernels.run_blocks_shared
        addresses = np.array([(each.keys.data_ptr(), each.values.data_ptr()) for each in caches], np.int64)
        num_blocks, *_, size = caches[0].keys.shape
        shape = x.shape[1], self._num_heads, self._num_kv_heads, self._head_dim, size, num_blocks
        stream, normed = bits(x).reshape(-1), bits(out).reshape(-1)
        buffers = self._buffers_for(len(x), stream.dtype, threads)
        sight, (items,) = sights[0], self._items(batch)
        first = np.array([each.first_array for each in sights])
        counts = np.diff(batch.first_rows)
        alone = np.repeat(counts == 1, counts)
        rows = sight.positions_array, batch.slots_array, alone
        seen = *rows, first, sight.last_array, sight.tables_array, items
        work = self._num_weights * (1 + len(x) // 16) + 64 * int(sight.last_array.sum()) * self._num_heads
        step, num_layers = max(1, _WORK_BETWEEN_CHECKS // work), len(caches)
        for start in range(0, num_layers, step):
            batch.check()
            end = min(start + step, num_layers)
            final = 0 if self._final_norm is None or end < num_layers else _address(self._final_norm.weight)
            of_call = slice(start, end)
            run(
                *(stream, self._layers[of_call], addresses[of_call], shape, self._norms, final, self._scores),
                *(seen, queries, places[of_call], buffers, normed),
            )

    def _buffers_for(self, num_rows: int, dtype: np.dtype, threads: int) -> tuple[np.ndarray, ...]:
        """What the kernels write between products, made anew only for more rows, or threads, than ever before."""
        inputs, outputs = self._widest
        if not self._buffers or len(self._buffers[0]) < num_rows * inputs or len(self._buffers[-1]) != threads:
            rows = padded_rows(num_rows)
            normed, wide, mixed = (np.empty(rows * width, dtype) for width in (inputs, outputs, inputs))
            sums, parts = np.empty((threads, self._sums), np.float32), self._parts_for(rows, threads, dtype)
            self._buffers = normed, wide, mixed, sums, parts
        return self._buffers

    def _parts_for(self, num_rows: int, threads: int, dtype: np.dtype) -> np.ndarray:
        """Where each thread writes the parts of its rows, or their digits."""
        inputs, _ = self._widest
        if self._is_int8:
            from model.layers.int8_weight import num_digits  # here, as above

            return np.empty((threads, num_digits(num_rows, inputs, dtype)), np.int8)
        in_parts = num_parts(rows_together(num_rows, inputs), inputs) if self._has_narrow else 0
        return np.empty((threads, in_parts), np.uint16)

    def _show(
        self,
        looks: Looks,
        layers: Sequence[int],
        queries: np.ndarray,
        batch: Batch,
        caches: Sequence[LayerCache],
        sights: Sequence[Sight],
    ) -> None:
        """Hand out the attention of some layers from their queries [layers, R H D]: the keys are in the caches."""
        for layer, of_layer in zip(layers, queries, strict=True):
            attention, look = self._parts[layer].attention, looks.at(layer)
            assert look is not None
            q = torch.from_numpy(of_layer).view(-1, self._num_heads, self._head_dim)
            sight = sights[self._windows.index(attention.window)]
            heads = attention.heads
            look_at_rows(
                Attended(heads.attention, heads.rule, q, caches[layer], sight, cross=False, check=batch.check), look
            )


def _address(x: torch.Tensor | None) -> int:
    """Of its first number; 0 of nothing."""
    if x is None:
        return 0
    assert x.is_contiguous()
    return x.data_ptr()
