"""The program of a decoder's blocks (`model/kernels/program/steps.py`): their steps, matrices and points.

Axes: n rows that a hook reads, R rows, d model width, H query heads, K key heads, D head dimension.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor

from lightwell.model.config import ClampedGate
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
    MergeRows,
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
)  # fmt: skip
from lightwell.model.layers.experts import Experts
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import AdaptedRows
from lightwell.model.layers.mlp import Mlp, deviations_of
from lightwell.model.layers.norm import LayerNorm, Norm, RmsNorm
from lightwell.model.layers.rope import Rope
from lightwell.model.network.altup import AltUp
from lightwell.model.network.block import Block, Residual
from lightwell.model.network.per_layer import PerLayer
from lightwell.model.network.program_points import Finish, Place
from lightwell.model.network.recurrences import DeltaNet, ShortConvolution
from lightwell.model.network.sublayers import (
    CrossAttention,
    DenseAndExperts,
    Feedforward,
    MixedFeedforward,
    SelfAttention,
)


def is_supported(block: Block) -> bool:
    """Return whether a program can express a block."""
    attention, mixture, altup = block.attention.f, block.mlp.f, block.altup
    norms = [norm for each in block.residuals for norm in (each.before, each.after, each.of_sum)]
    if isinstance(attention, SelfAttention):
        norms += [attention.q_norm, attention.k_norm, attention.v_norm]
    if altup is not None:
        norms += [altup.norm, altup.laurel_norm]
    if not all(norm is None or isinstance(norm, RmsNorm | LayerNorm) for norm in norms):
        return False
    if (block.parallel or altup is not None) and not all(map(_is_only_added, block.residuals)):
        return False
    if block.parallel:
        is_dense = isinstance(attention, SelfAttention) and isinstance(mixture, Feedforward)
        return is_dense and block.cross is None and altup is None
    return not isinstance(mixture, MixedFeedforward) or (
        mixture.experts.router_norm is None and block.mlp.before is not None
    )


def _is_only_added(residual: Residual[Any]) -> bool:
    return residual.scale == 1 and residual.of_sum is None and residual.stream_scale is None


def _weights(norm: Norm) -> NormWeights:
    """Return a norm in the kernels' form."""
    if isinstance(norm, LayerNorm):
        return NormWeights(norm.weight, norm.eps, norm.bias, is_centred=True)
    assert isinstance(norm, RmsNorm)
    return NormWeights(norm.weight, norm.eps)


def product_of(linear: Linear) -> Product:
    return Product(linear.weight, linear.bias)


def _factor_of(mlp: Mlp, x: Tensor, adapted: AdaptedRows | None) -> Tensor:
    """Return the factor of a gate's activation, [n, ff], for the mlp's input x [n, d]."""
    return cast(Tensor, mlp.before_activation(x, adapted)[1])


def _normed_heads(norm: Norm, x: Tensor, _: AdaptedRows | None) -> Tensor:
    return norm(x.reshape(-1, x.shape[-1])).view(x.shape)


def _chosen(experts: Experts, logits: Tensor, _: AdaptedRows | None) -> Tensor:
    """Return the experts [n, C] that the router chooses by logits [n, E], in the dtype of their probabilities."""
    probabilities = experts.probabilities(logits)
    return experts.choose(probabilities)[0].to(probabilities.dtype)


KeyRange = tuple[int | None, Heads]
"""A window and the heads of the layers that have it."""


def range_of(own: SelfAttention) -> KeyRange:
    """Return the key range of an attention."""
    return own.window, Heads(own.num_heads, own.num_kv_heads, own.head_dim)


class Program:
    """The steps of supported blocks and the norm after them, and their matrices in the order of the products."""

    def __init__(self, blocks: Sequence[Block], final_norm: Norm | None, ropes: Sequence[Rope | None]) -> None:
        """ropes: one for each block."""
        attentions = [block.self_attention for block in blocks if isinstance(block.attention.f, SelfAttention)]
        self.width = attentions[0].qkv.in_features
        self.key_ranges = list(dict.fromkeys(map(range_of, attentions)))
        """The key ranges of self-attention; cross-attention has the next one."""
        self.steps: list[Step] = []
        self.linears: list[Linear] = []
        self.layers: list[int] = []
        """The first step of each layer."""
        self.points: list[dict[str, Place]] = []
        """The points of each layer."""
        self.num_experts = self.num_chosen = self.num_expert_weights = 0
        """The experts of a layer and of a row, and the weights of the experts of all layers."""
        for block, rope in zip(blocks, ropes, strict=True):
            self._add(block, rope)
        self.layers.append(len(self.steps))
        self.points.append({})
        self._norm(final_norm, "ln_final", Register.STREAM, Register.OUT)

    def _add(self, block: Block, rope: Rope | None) -> None:
        self.layers.append(len(self.steps))
        self.points.append({})
        self._point("hook_resid_pre", Register.STREAM)
        if block.altup is not None:
            self._add_among_streams(block, block.altup, rope)
            return
        if isinstance(block.attention.f, ShortConvolution):
            self._convolve(block.attention, block.attention.f)
        elif isinstance(block.attention.f, DeltaNet):
            self._apply_delta(block.attention, block.attention.f)
        else:
            self._attend(block, rope)
        if block.cross is not None:
            self._attend_across(block.cross)
        self._feed_forward(block)
        if block.per_layer is not None:
            self._multiply_gate(block.per_layer.f, self._before(block.per_layer))
            self._finish(block.per_layer, block.per_layer.f.out)

    def _add_among_streams(self, block: Block, altup: AltUp, rope: Rope | None) -> None:
        """Add a block with several residual streams. Of its points, only attention is read in a program."""
        assert block.per_layer is not None
        own, residual, last, count = block.self_attention, block.attention, block.per_layer, altup.router.out_features
        self._weigh_streams(altup, altup.predict)
        self.steps.append(PredictStreams(count))
        source = self._before(residual)
        self._multiply(altup.laurel_left, source, Register.WIDE)
        self._multiply(altup.laurel_right, Register.WIDE, Register.ASIDE)
        self._norm(altup.laurel_norm, None, Register.ASIDE, Register.ASIDE)
        self.steps.append(JoinRows(adds=False, target=Register.ASIDE))
        self._attend_heads(own, source, rope)
        self._multiply(own.heads.out, Register.MIXED, Register.NORMED)
        self._norm(residual.after, residual.second_norm, Register.NORMED, Register.NORMED)
        self.steps.append(MergeRows())
        self._feed_forward(block)
        self._weigh_streams(altup, altup.correct)
        self.steps.append(CorrectStreams(count))
        self.steps += [] if altup.scale is None else [WeighRows(altup.scale)]
        self._multiply_gate(last.f, Register.STREAM if altup.scale is None else Register.NORMED)
        self._multiply(last.f.out, Register.MIXED, Register.NORMED)
        self._norm(last.after, last.second_norm, Register.NORMED, Register.NORMED)
        self.steps.append(AddToOthers(count))

    def _weigh_streams(self, altup: AltUp, weights: Linear) -> None:
        """WIDE = the weights of the streams for STREAM."""
        self._norm(altup.norm, None, Register.STREAM, Register.NORMED)
        self.steps.append(ScaleRows(1 / altup.router.in_features, Register.NORMED))
        self._multiply(altup.router, Register.NORMED, Register.WIDE)
        self.steps.append(Tanh())
        self._multiply(weights, Register.MIXED, Register.WIDE)

    def _multiply_gate(self, own: PerLayer, source: Register) -> None:
        self._multiply(own.gate, source, Register.WIDE)
        self.steps.append(GateTokens(len(self.layers) - 1, own.activation))

    def _feed_forward(self, block: Block) -> None:
        source = self._before(block.mlp)
        if isinstance(block.mlp.f, DenseAndExperts):
            self._mix_both(block.mlp.f)
            self._end(block.mlp, AddRows(block.mlp.scale))
        elif isinstance(block.mlp.f, MixedFeedforward):
            self._mix_experts(block.mlp.f.experts)
            self._end(block.mlp, AddRows(block.mlp.scale))
        else:
            mlp = block.mlp.f.mlp
            self._point("mlp.hook_pre", source, finish=lambda x, adapted: mlp.before_activation(x, adapted)[0])
            if mlp.gate is not None:
                self._point("mlp.hook_pre_linear", source, finish=partial(_factor_of, mlp))
            source = self._inside(mlp, source)
            self._point("mlp.hook_post", source, (mlp.down.in_features,))
            self._finish(block.mlp, mlp.down, source, joins=block.parallel)

    def _attend(self, block: Block, rope: Rope | None) -> None:
        own = block.self_attention
        self._attend_heads(own, self._before(block.attention), rope)
        if block.parallel:
            self._multiply(own.heads.out, Register.MIXED, Register.ASIDE)
            self._norm(block.attention.after, block.attention.second_norm, Register.ASIDE, Register.ASIDE)
            self._point(block.attention.out, Register.ASIDE)
        else:
            self._finish(block.attention, own.heads.out)

    def _attend_heads(self, own: SelfAttention, source: Register, rope: Rope | None) -> None:
        """MIXED = the heads' mixed values for the rows of `source`."""
        at, rule = (len(self.layers) - 1, self.key_ranges.index(range_of(own))), own.heads.rule
        self._multiply(own.qkv, source, Register.WIDE)
        self._parts_of_heads(own)
        tables = None if rope is None else (rope.cos, rope.sin)
        q, k, v = (None if norm is None else _weights(norm) for norm in (own.q_norm, own.k_norm, own.v_norm))
        enter = EnterHeads(*at, q, k, v, tables, own.gated) if own.has_kv else EnterQueries(*at, q, tables)
        self.steps.append(enter)
        self._kept("attn.hook_rot_q", "attn.hook_rot_k")
        how = {"has_keys": own.has_kv, "gated": own.gated}
        self.steps.append(Attend(*at, rule.scale, rule.softcap, rule.bias, rule.sinks, **how))
        self._kept("attn.hook_attn_scores", "attn.hook_pattern")
        self._point("attn.hook_z", Register.MIXED, (own.num_heads, own.head_dim))
        self.steps += [GateHeads(at[1])] if own.gated else []

    def _parts_of_heads(self, own: SelfAttention) -> None:
        """Note the queries, keys and values that WIDE holds before their norms."""
        first = 0
        norms = (None, None, own.v_norm)
        for name, count, norm in zip("qkv", (own.num_heads, own.num_kv_heads, own.num_kv_heads), norms, strict=True):
            finish = None if norm is None else partial(_normed_heads, norm)
            self._point(f"attn.hook_{name}", Register.WIDE, (count, own.head_dim), first, finish=finish)
            first += (2 if name == "q" and own.gated else 1) * count * own.head_dim
            if not own.has_kv:
                return

    def _convolve(self, residual: Residual[Any], own: ShortConvolution) -> None:
        self._multiply(own.into, self._before(residual), Register.WIDE)
        self.steps.append(Convolve(len(self.layers) - 1, own.convolution.taps, own.convolution.bias))
        channels = own.out.in_features
        self._point("conv.hook_in", Register.WIDE, (channels,), 2 * channels)  # C++ keeps B * x there
        self._point("conv.hook_out", Register.MIXED, (channels,))
        self._finish(residual, own.out)

    def _apply_delta(self, residual: Residual[Any], own: DeltaNet) -> None:
        net, convolution = own.sizes, own.convolution
        self._multiply(own.into, self._before(residual), Register.WIDE)
        self._point("delta.hook_in", Register.WIDE, (net.convolved_width,))
        sizes = net.num_key_heads, net.num_value_heads, net.key_dim, net.value_dim
        decay = own.rates, own.step_bias
        step = ApplyDelta(len(self.layers) - 1, sizes, convolution.taps, convolution.bias, *decay, _weights(own.norm))
        self.steps.append(step)
        self._point("delta.hook_out", Register.MIXED, (net.num_value_heads, net.value_dim))
        self._finish(residual, own.out)

    def _attend_across(self, residual: Residual[CrossAttention]) -> None:
        own, rule, at = residual.f, residual.f.heads.rule, (len(self.layers) - 1, len(self.key_ranges))
        self._multiply(own.q, self._before(residual), Register.WIDE)
        shape = own.q.out_features // own.head_dim, own.head_dim
        for name in ("cross_attn.hook_q", "cross_attn.hook_rot_q"):
            self._point(name, Register.WIDE, shape)
        self.steps.append(EnterQueries(*at, is_cross=True))
        attend = Attend(*at, rule.scale, rule.softcap, rule.bias, rule.sinks, is_cross=True, has_keys=False)
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
        deviations = deviations_of(mlp.sparsity) if mlp.sparsity else None
        of_experts = gated == Register.GIVEN_MIXED
        self.steps.append(GateRows(activation, clamps, of_experts=of_experts, deviations=deviations))
        return gated

    def _mix_both(self, both: DenseAndExperts) -> None:
        """NORMED = the sum of an mlp and of experts for STREAM."""
        mlp, experts = both.dense.mlp, both.experts.experts
        self._norm(both.before_dense, "ln2", Register.STREAM, Register.NORMED)
        self._multiply(mlp.down, self._inside(mlp, Register.NORMED), Register.ASIDE)
        self._norm(both.after_dense, None, Register.ASIDE, Register.ASIDE)
        self._point("mlp.hook_dense_out", Register.ASIDE)
        self._mix_experts(experts, both.before_experts)
        self._norm(both.after_experts, None, Register.NORMED, Register.NORMED)
        self._point("mlp.hook_experts_out", Register.NORMED)
        self.steps.append(JoinRows(adds=False))

    def _mix_experts(self, experts: Experts, before: Norm | None = None) -> None:
        """NORMED = the experts' output for NORMED; or, with the norm `before`, for the norm of STREAM, which the router
        reads, too.
        """
        if experts.shared is not None:
            self._multiply(experts.shared.down, self._inside(experts.shared, Register.NORMED), Register.ASIDE)
            if experts.shared_gate is not None:
                self._multiply(experts.shared_gate, Register.NORMED, Register.MIXED)
                self.steps.append(GateAside())
        source = Register.NORMED if before is None else Register.STREAM
        if experts.router_norm is not None:
            self._norm(experts.router_norm, None, source, Register.NORMED)
            self.steps.append(ScaleRows(experts.router.in_features**-0.5, Register.NORMED))
            source = Register.NORMED
        self._multiply(experts.router, source, Register.WIDE)
        own, count = experts.experts, (len(experts.experts),)
        self._point("mlp.hook_router_logits", Register.WIDE, count)
        self._point("mlp.hook_expert_weights", Register.WIDE, count, finish=lambda x, _: experts.probabilities(x))
        self._point("mlp.hook_expert_indices", Register.WIDE, count, finish=partial(_chosen, experts))
        self._norm(before, None, Register.STREAM, Register.NORMED)
        scales = None if experts.scales is None else experts.scales.float()
        self.steps.append(ChooseExperts(len(own), experts.num_chosen, experts.normalized, scales))
        self.num_experts, self.num_chosen = len(own), experts.num_chosen
        self._multiply_all([each.up for each in own], Register.GIVEN, Register.GIVEN_WIDE)
        source = self._gate(own[0], Register.GIVEN_WIDE, Register.GIVEN_MIXED)
        self._multiply_all([each.down for each in own], source, Register.GIVEN)
        self.steps.append(CombineExperts(adds_aside=experts.shared is not None))

    def _multiply_all(self, linears: Sequence[Linear], source: Register, target: Register) -> None:
        products = [product_of(each) for each in linears]
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

    def _norm(self, norm: Norm | None, name: str | None, source: Register, target: Register) -> None:
        """Add a norm with its points. name: their prefix, or None without points."""
        if norm is None:
            return
        if name is not None:
            self._point(f"{name}.hook_scale", source, finish=lambda x, _: norm.scale(x))
            self._point(f"{name}.hook_normalized", source, finish=lambda x, _: norm.normalized(x))
        self.steps.append(NormRows(_weights(norm), source, target))
        if name is not None:
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
        self.steps.append(Multiply(product_of(linear), source, target, linear.activation, adds))
        self.linears.append(linear)
