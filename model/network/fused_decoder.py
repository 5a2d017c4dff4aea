"""Runs the blocks of a decoder in one call, with the same bits as the separate blocks.

The blocks become one program (`model/kernels/program/steps.py`). The products of such a step take
microseconds each, and the overhead of torch and Python between them takes as long.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, L layers.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import ClampedGate
from lightwell.model.hooks.attention_hooks import written_patterns
from lightwell.model.hooks.hooks import Hooks, LayerHooks
from lightwell.model.kernels.attention import AttentionItems
from lightwell.model.kernels.decoder import AdapterChanges, Change, Decoder, DecoderRows, LayerCaches
from lightwell.model.kernels.library import num_threads
from lightwell.model.kernels.products import LaidWeight
from lightwell.model.kernels.program.steps import (
    AddRows,
    Attend,
    ChooseExperts,
    CombineExperts,
    Convolve,
    EnterHeads,
    EnterQueries,
    GateAside,
    GateRows,
    JoinRows,
    Multiply,
    MultiplyExperts,
    NormRows,
    NormWeights,
    Product,
    Register,
    ScaleRows,
    Step,
)
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import NativeAttention
from lightwell.model.layers.experts import Experts
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import AdaptedRows, Adapter
from lightwell.model.layers.mlp import Mlp
from lightwell.model.layers.norm import LayerNorm, Norm, RmsNorm
from lightwell.model.layers.rope import Rope, rotary_rows
from lightwell.model.network.block import Block, Residual
from lightwell.model.network.program_points import Finish, Place, ProgramReads
from lightwell.model.network.recurrences import ShortConvolution
from lightwell.model.network.sublayers import CrossAttention, Feedforward, MixedFeedforward, SelfAttention

_WORK_BETWEEN_CHECKS = 1 << 25
"""Largest number of weights that one call reads, if it runs several layers: some milliseconds. A key of a head counts
as 64 weights; adapters do not count.
"""

_MOST_LISTS = 32
"""Most lists of attention items of a layer in one call: some tenths of a second."""


def _is_supported(block: Block) -> bool:
    """Return whether the kernels can replace a block."""
    if block.per_layer is not None or block.altup is not None:
        return False
    if block.cross is not None and (block.parallel or not isinstance(block.cross.f.heads.attention, NativeAttention)):
        return False
    attention, mixture = block.attention.f, block.mlp.f
    norms: list[Norm | None] = []
    if isinstance(attention, SelfAttention):
        if not attention.has_kv or attention.gated or not isinstance(attention.heads.attention, NativeAttention):
            return False
        norms = [attention.q_norm, attention.k_norm, attention.v_norm]
    elif not isinstance(attention, ShortConvolution) or not attention.into.native:
        return False
    norms += [norm for each in block.residuals for norm in (each.before, each.after, each.of_sum)]
    if not all(norm is None or _is_native(norm) for norm in norms):
        return False
    if block.parallel and not (isinstance(attention, SelfAttention) and all(map(_is_only_added, block.residuals))):
        return False
    if isinstance(mixture, MixedFeedforward):
        return not block.parallel and block.mlp.before is not None and _are_supported(mixture.experts)
    return isinstance(mixture, Feedforward) and not mixture.mlp.sparsity


def _is_only_added(residual: Residual[Any]) -> bool:
    return residual.scale == 1 and residual.of_sum is None and residual.stream_scale is None


def _are_supported(experts: Experts) -> bool:
    """Return whether the kernels can replace experts."""
    if experts.router_norm is not None or experts.scales is not None:
        return False
    forms = {
        (cast(LaidWeight, each.up.weight).form, cast(LaidWeight, each.down.weight).form) for each in experts.experts
    }
    return len(forms) == 1


def _is_native(norm: Norm) -> bool:
    return isinstance(norm, RmsNorm | LayerNorm) and norm.native


def _weights(norm: Norm) -> NormWeights:
    """Return a norm in the kernels' form."""
    if isinstance(norm, LayerNorm):
        return NormWeights(norm.weight, norm.eps, norm.bias, is_centred=True)
    assert isinstance(norm, RmsNorm)
    return NormWeights(norm.weight, norm.eps)


def _product(linear: Linear) -> Product:
    return Product(cast(LaidWeight, linear.weight), linear.bias)  # native, like the block's attention and norms


def _factor_of(mlp: Mlp, x: Tensor, adapted: AdaptedRows | None) -> Tensor:
    """Return the factor of a gate's activation, [n, ff], for the mlp's input x [n, d]."""
    return cast(Tensor, mlp.before_activation(x, adapted)[1])


def _normed_heads(norm: Norm, x: Tensor, _: AdaptedRows | None) -> Tensor:
    return norm(x.reshape(-1, x.shape[-1])).view(x.shape)


def _chosen(experts: Experts, logits: Tensor, _: AdaptedRows | None) -> Tensor:
    """Return the experts [n, C] that the router chooses by logits [n, E], in the dtype of their probabilities."""
    probabilities = experts.probabilities(logits)
    return experts.choose(probabilities)[0].to(probabilities.dtype)


class Program:
    """The steps of supported blocks, and their matrices in the order of the products."""

    def __init__(self, width: int) -> None:
        """width: d."""
        self.width = width
        self.steps: list[Step] = []
        self.linears: list[Linear] = []
        self.layers: list[int] = []
        """The first step of each layer."""
        self.points: list[dict[str, Place]] = []
        """The points of each layer."""
        self.num_experts = self.num_chosen = self.num_expert_weights = 0
        """The experts of a layer and of a row, and the weights of the experts of all layers."""

    def add(self, block: Block, rope: Rope | None, windows: Sequence[int | None]) -> None:
        """Add a block. windows: the windows of the ranges of keys; the range of cross attention is the next one."""
        self.layers.append(len(self.steps))
        self.points.append({})
        self._point("hook_resid_pre", Register.STREAM)
        if isinstance(block.attention.f, ShortConvolution):
            self._convolve(block.attention, block.attention.f)
        else:
            self._attend(block, rope, windows.index(block.self_attention.window))
        if block.cross is not None:
            self._attend_across(block.cross, len(windows))
        source = self._before(block.mlp)
        if isinstance(block.mlp.f, MixedFeedforward):
            self._mix_experts(block.mlp.f.experts)
            self._end(block.mlp, AddRows(block.mlp.scale))
        else:
            assert isinstance(block.mlp.f, Feedforward)
            mlp = block.mlp.f.mlp
            self._point("mlp.hook_pre", source, finish=lambda x, adapted: mlp.before_activation(x, adapted)[0])
            if mlp.gate is not None:
                self._point("mlp.hook_pre_linear", source, finish=partial(_factor_of, mlp))
            source = self._inside(mlp, source)
            self._point("mlp.hook_post", source, (mlp.down.in_features,))
            self._finish(block.mlp, mlp.down, source, joins=block.parallel)

    def end(self, norm: Norm | None) -> None:
        """Add the final norm."""
        self.layers.append(len(self.steps))
        self.points.append({})
        self._norm(norm, "ln_final", Register.STREAM, Register.OUT)

    def _attend(self, block: Block, rope: Rope | None, key_range: int) -> None:
        own, n, rule = block.self_attention, len(self.layers) - 1, block.self_attention.heads.rule
        self._multiply(own.qkv, self._before(block.attention), Register.WIDE)
        self._parts_of_heads(own)
        tables = None if rope is None else (rope.cos, rope.sin)
        q, k, v = (None if norm is None else _weights(norm) for norm in (own.q_norm, own.k_norm, own.v_norm))
        self.steps.append(EnterHeads(n, q, k, v, tables))
        self._kept("attn.hook_rot_q", "attn.hook_rot_k")
        self.steps.append(Attend(n, rule.scale, rule.softcap, rule.bias, rule.sinks, key_range))
        self._kept("attn.hook_attn_scores", "attn.hook_pattern")
        self._point("attn.hook_z", Register.MIXED, (own.num_heads, own.head_dim))
        if block.parallel:
            self._multiply(own.heads.out, Register.MIXED, Register.ASIDE)
            self._norm(block.attention.after, block.attention.second_norm, Register.ASIDE, Register.ASIDE)
            self._point(block.attention.out, Register.ASIDE)
        else:
            self._finish(block.attention, own.heads.out)

    def _parts_of_heads(self, own: SelfAttention) -> None:
        """Note the queries, keys and values that WIDE holds before their norms."""
        first = 0
        norms = (None, None, own.v_norm)
        for name, count, norm in zip("qkv", (own.num_heads, own.num_kv_heads, own.num_kv_heads), norms, strict=True):
            finish = None if norm is None else partial(_normed_heads, norm)
            self._point(f"attn.hook_{name}", Register.WIDE, (count, own.head_dim), first, finish=finish)
            first += count * own.head_dim

    def _convolve(self, residual: Residual[Any], own: ShortConvolution) -> None:
        self._multiply(own.into, self._before(residual), Register.WIDE)
        self.steps.append(Convolve(len(self.layers) - 1, own.convolution.taps, own.convolution.bias))
        channels = own.out.in_features
        self._point("conv.hook_in", Register.WIDE, (channels,), 2 * channels)  # C++ keeps B * x there
        self._point("conv.hook_out", Register.MIXED, (channels,))
        self._finish(residual, own.out)

    def _attend_across(self, residual: Residual[CrossAttention], key_range: int) -> None:
        own, rule = residual.f, residual.f.heads.rule
        self._multiply(own.q, self._before(residual), Register.WIDE)
        shape = own.q.out_features // own.head_dim, own.head_dim
        for name in ("cross_attn.hook_q", "cross_attn.hook_rot_q"):
            self._point(name, Register.WIDE, shape)
        self.steps.append(EnterQueries())
        attend = Attend(len(self.layers) - 1, rule.scale, rule.softcap, rule.bias, rule.sinks, key_range, is_cross=True)
        self.steps.append(attend)
        self._point("cross_attn.hook_z", Register.MIXED, shape)
        self._finish(residual, own.heads.out)

    def _inside(self, mlp: Mlp, source: Register) -> Register:
        """Add an mlp up to the input of its last product, and return the register of this input."""
        self._multiply(mlp.up, source, Register.WIDE)
        return self._gate(mlp, Register.WIDE, Register.MIXED)

    def _gate(self, mlp: Mlp, wide: Register, gated: Register) -> Register:
        if mlp.gate is None:
            return wide
        clamps = mlp.gate if isinstance(mlp.gate, ClampedGate) else None
        activation = "silu" if isinstance(mlp.gate, ClampedGate) else mlp.gate
        self.steps.append(GateRows(activation, clamps, of_experts=gated == Register.GIVEN_MIXED))
        return gated

    def _mix_experts(self, experts: Experts) -> None:
        """NORMED = the experts' output for NORMED."""
        if experts.shared is not None:
            self._multiply(experts.shared.down, self._inside(experts.shared, Register.NORMED), Register.ASIDE)
            if experts.shared_gate is not None:
                self._multiply(experts.shared_gate, Register.NORMED, Register.MIXED)
                self.steps.append(GateAside())
        self._multiply(experts.router, Register.NORMED, Register.WIDE)
        own, count = experts.experts, (len(experts.experts),)
        self._point("mlp.hook_router_logits", Register.WIDE, count)
        self._point("mlp.hook_expert_weights", Register.WIDE, count, finish=lambda x, _: experts.probabilities(x))
        self._point("mlp.hook_expert_indices", Register.WIDE, count, finish=partial(_chosen, experts))
        self.steps.append(ChooseExperts(len(own), experts.num_chosen, experts.normalized))
        self.num_experts, self.num_chosen = len(own), experts.num_chosen
        self._multiply_all([each.up for each in own], Register.GIVEN, Register.GIVEN_WIDE)
        source = self._gate(own[0], Register.GIVEN_WIDE, Register.GIVEN_MIXED)
        self._multiply_all([each.down for each in own], source, Register.GIVEN)
        self.steps.append(CombineExperts(adds_aside=experts.shared is not None))

    def _multiply_all(self, linears: Sequence[Linear], source: Register, target: Register) -> None:
        products = [_product(each) for each in linears]
        self.num_expert_weights += sum(each.in_features * each.out_features for each in linears)
        self.steps.append(MultiplyExperts(products, source, target, linears[0].activation))

    def _before(self, residual: Residual[Any]) -> Register:
        """Add the norm before a sublayer, and return the register of the sublayer's input."""
        self._norm(residual.before, residual.norm, Register.STREAM, Register.NORMED)
        return Register.STREAM if residual.before is None else Register.NORMED

    def _finish(
        self, residual: Residual[Any], linear: Linear, source: Register = Register.MIXED, *, joins: bool = False
    ) -> None:
        """Add the last product of a sublayer and the steps after it. joins: whether ASIDE is added, too."""
        adds_itself = residual.after is None and not joins
        self._multiply(linear, source, Register.NORMED, residual.scale if adds_itself else None)
        self._end(residual, None if adds_itself else JoinRows() if joins else AddRows(residual.scale))

    def _end(self, residual: Residual[Any], addition: AddRows | JoinRows | None) -> None:
        """Add the steps after the output of a sublayer, which is in NORMED. addition: the step that adds it to the
        stream, or None if the last product does.
        """
        self._norm(residual.after, residual.second_norm, Register.NORMED, Register.NORMED)
        joined = isinstance(addition, JoinRows)  # NORMED is the addend before the step, else after it
        if joined:
            self._point(residual.out, Register.NORMED)
        self.steps += [] if addition is None else [addition]
        if not joined:
            self._point(residual.out, Register.NORMED)
        self._norm(residual.of_sum, residual.norm, Register.STREAM, Register.STREAM)
        if residual.stream_scale is not None:
            self.steps.append(ScaleRows(float(residual.stream_scale)))
        self._point(residual.stream, Register.STREAM)

    def _norm(self, norm: Norm | None, name: str, source: Register, target: Register) -> None:
        """Add a norm with its points. name: their prefix."""
        if norm is None:
            return
        self._point(f"{name}.hook_scale", source, finish=lambda x, _: norm.scale(x))
        self._point(f"{name}.hook_normalized", source, finish=lambda x, _: norm.normalized(x))
        self.steps.append(NormRows(_weights(norm), source, target))
        self._point(f"{name}.hook_out", target)

    def _kept(self, *names: str) -> None:
        self.points[-1].update({name: Place(len(self.steps)) for name in names})

    def _point(
        self,
        name: str,
        register: Register,
        shape: tuple[int, ...] | None = None,
        first: int = 0,
        *,
        finish: Finish | None = None,
    ) -> None:
        """Note the place of a point after the last step. shape: by default [d]."""
        self.points[-1][name] = Place(len(self.steps), register, first, shape or (self.width,), finish)

    def _multiply(self, linear: Linear, source: Register, target: Register, adds: float | None = None) -> None:
        self.steps.append(Multiply(_product(linear), source, target, linear.activation, adds))
        self.linears.append(linear)


class DecodeStep:
    """The blocks of one decoder, and the norm after them."""

    def __init__(self, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> None:
        """Keep the blocks, which `of` has checked. ropes: one for each block."""
        self._blocks = blocks
        attentions = [block.self_attention for block in blocks if isinstance(block.attention.f, SelfAttention)]
        self._windows = list(dict.fromkeys(attention.window for attention in attentions))
        self.program = program = Program(attentions[0].qkv.in_features)
        for block, rope in zip(blocks, ropes, strict=True):
            program.add(block, rope, self._windows)
        program.end(final_norm)
        first = attentions[0]
        self._causal = attentions[0].causal
        self._has_states = len(attentions) < len(blocks)
        self._num_heads, self._num_kv_heads, self._head_dim = first.num_heads, first.num_kv_heads, first.head_dim
        self._decoder = Decoder(
            program.steps,
            dtype=cast(LaidWeight, first.qkv.weight).row_dtype,
            width=first.qkv.in_features,
            num_heads=first.num_heads,
            num_key_heads=first.num_kv_heads,
            head_dim=first.head_dim,
        )
        self._activated = [linear for linear in program.linears if linear.activation is not None]
        of_all = sum(linear.in_features * linear.out_features for linear in program.linears)
        self._num_weights = of_all // len(blocks)
        self._expert_weights = program.num_expert_weights // max(1, program.num_experts) // len(blocks)
        self._changes: WeakKeyDictionary[Adapter, AdapterChanges] = WeakKeyDictionary()
        self._caches: Sequence[LayerCache] = ()
        self._layer_caches: LayerCaches | None = None

    @classmethod
    def of(cls, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> Self | None:
        """Return the step of a causal stack, or None if the kernels cannot replace its blocks."""
        if not blocks or not all(map(_is_supported, blocks)) or not (final_norm is None or _is_native(final_norm)):
            return None
        heads = [block.self_attention for block in blocks if isinstance(block.attention.f, SelfAttention)]
        shapes = {(each.num_heads, each.num_kv_heads, each.head_dim) for each in heads}
        return cls(blocks, final_norm, ropes) if len(shapes) == 1 else None

    def end_of_run(self, first: int, batch: Batch, hooks: Hooks | None, adapted: AdaptedRows | None = None) -> int:
        """Return the end of the layers first <= n < end that one run can replace: all have the same rows, hooks change
        only the stream, and adapters change no product with an activation.
        """
        if adapted is not None and any(
            linear in adapter.changes for _, adapter in adapted.runs for linear in self._activated
        ):
            return first
        rows, count = batch.num_rows_at(first), len(self._blocks)
        if len(self._items(batch, rows)) > _MOST_LISTS:
            return first

        def has_rows(layer: int) -> bool:
            return batch.num_rows_at(layer) == rows and batch.needs_output_of(layer)

        end = count if has_rows(count - 1) else next(n for n in range(first, count) if not has_rows(n))
        if hooks is None:
            return end
        own = ((n, hooks.at(n)) for n in range(first, end))
        return next((n for n, each in own if each is not None and not self._has_points(n, each)), end)

    def _has_points(self, layer: int, hooks: LayerHooks) -> bool:
        """Return whether a layer's hooks read only numbers that the program has, and change only the stream."""
        if hooks.attention_changes or any(tap.cross for tap in hooks.attention):
            return False
        if not (hooks.reads or hooks.changes):
            return True
        points = self.program.points[layer]
        stream = {name for name, each in points.items() if each.register == Register.STREAM and each.finish is None}
        return hooks.changes.keys() <= stream and hooks.reads.keys() <= points.keys()

    def _items(self, batch: Batch, num_rows: int) -> list[AttentionItems]:
        return batch.attention_items(num_rows, self._num_kv_heads, num_threads())

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        caches: Sequence[LayerCache],
        hooks: Hooks | None,
        adapted: AdaptedRows | None = None,
        layers: tuple[int, int] | None = None,
    ) -> Tensor:
        """Return x [R, d], which may be overwritten, after the layers first <= n < end of `end_of_run` (None: after all
        layers and the final norm), and write keys and values to the caches.

        Exceptions of `batch.check`, between two calls, are passed on; the caches then hold the rows of some layers.
        """
        x = out = x.contiguous()
        rows, memory = self._rows(batch, len(x)), self._memory(caches)
        changes = [
            (slice(run.start, min(run.stop, len(x))), self._changes_of(adapter))
            for run, adapter in (() if adapted is None else adapted.runs)
            if run.start < len(x)
        ]
        step, (first, end) = self._layers_of_a_call(rows), layers or (0, len(self._blocks))
        if hooks is not None and end > 1 and caches[0] is caches[1]:  # a layer replaces the keys of the one before
            step = 1
        taps = () if hooks is None else hooks.attention
        written, patterns = written_patterns(
            taps, batch, batch.key_range(self._causal), self._num_heads, range(len(self._blocks) if taps else 0)
        )
        for start in range(first, end, step):
            batch.check()
            stop = min(start + step, end)
            blocks = self._blocks[start:stop]
            points, own = self.program.points[start:stop], caches[start:stop]
            reads = ProgramReads.of(blocks, points, x, batch, own, hooks, written)
            at, last = self.program.layers[start], self.program.layers[stop] if layers or stop < end else None
            for cut, before in zip([*reads.cuts, None], [None, *reads.cuts], strict=True):
                upto, taken = cut.order[0] if cut else last, reads.taken_between(before, cut)
                out = self._decoder.run(
                    x,
                    rows,
                    memory,
                    first=at,
                    end=upto,
                    queries=reads.queries,
                    patterns=patterns if written else None,
                    taken=taken,
                    adapted=changes,
                )
                if cut is not None:
                    x.copy_(cut.hooks(cut.point, x))
                    at = cut.order[0]
            reads.deliver(adapted)
        return out

    def _layers_of_a_call(self, rows: DecoderRows) -> int:
        work = self._num_weights * (1 + rows.num_rows // 16)
        work += self._expert_weights * min(self.program.num_experts, rows.num_rows * self.program.num_chosen)
        work += 64 * int(rows.key_ranges[0].last.sum()) * self._num_heads
        return max(1, _WORK_BETWEEN_CHECKS // work)

    def _rows(self, batch: Batch, num_rows: int) -> DecoderRows:
        """Return the first rows of a batch, in whole spans, in the kernels' form."""
        key_ranges = [batch.key_range(self._causal, window) for window in self._windows]
        cross = batch.cross_key_range if self._blocks[0].cross is not None else None
        counts = np.diff(batch.first_rows)
        return DecoderRows(
            [each.of_first(num_rows) for each in key_ranges],
            AttentionItems.joined(self._items(batch, num_rows)),
            batch.slots_array[:num_rows],
            np.repeat(counts == 1, counts)[:num_rows],
            self._num_kv_heads,
            rotary_rows(batch)[:num_rows],
            None if cross is None else cross.of_first(num_rows),
            self._spans(batch, num_rows) if self._has_states else (),
        )

    @staticmethod
    def _spans(batch: Batch, num_rows: int) -> list[tuple[int, int, int, int, bool]]:
        bounds = pairwise(batch.first_rows)
        spans = zip(bounds, batch.spans, strict=True)
        return [(*rows, *span.states, span.start == 0) for rows, span in spans if rows[0] < num_rows]

    def _memory(self, caches: Sequence[LayerCache]) -> LayerCaches:
        """Return the caches in the kernels' form. A server's steps all use the same caches."""
        if self._layer_caches is None or caches is not self._caches:
            self._layer_caches = LayerCaches(
                [(each.keys, each.values) if each.states is None else each.states.inputs for each in caches]
            )
            self._caches = caches
        return self._layer_caches

    def _changes_of(self, adapter: Adapter) -> AdapterChanges:
        """Return an adapter's changes in the kernels' form, which is kept as long as the adapter."""
        found = self._changes.get(adapter)
        if found is None:
            changes = [adapter.changes.get(linear) for linear in self.program.linears]
            found = self._changes[adapter] = self._decoder.changes(
                [None if each is None else Change(_product(each.down), _product(each.up)) for each in changes]
            )
        return found
