"""Runs the program of a stack (`block_program.py`) on a GPU: our Triton kernels in a loop over its steps.

An addition to the residual stream and the norms around it are one launch. Hooks read only patterns, which attention
writes; the separate blocks serve all other hooks.

Axes: T rows, H query heads, D head dimension, d model width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.hooks.pattern_plan import PatternPlan
from lightwell.model.kernels.cuda.add_norm import MAX_WIDTH, add_norm
from lightwell.model.kernels.cuda.experts import ExpertWeights, Pairs
from lightwell.model.kernels.cuda.gate import gated
from lightwell.model.kernels.cuda.paged_keys import Arrivals, PatternRows
from lightwell.model.kernels.cuda.recurrences import apply_delta, convolve
from lightwell.model.kernels.cuda.rotate_and_store import rotate_and_store
from lightwell.model.kernels.cuda.token_ids import known_tokens
from lightwell.model.kernels.program.steps import (
    AddRows,
    ApplyDelta,
    Attend,
    ChooseExperts,
    CombineExperts,
    Convolve,
    EnterHeads,
    EnterQueries,
    GateAside,
    GateHeads,
    GateRows,
    GateTokens,
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
from lightwell.model.layers.attention import AttentionRule
from lightwell.model.layers.dense_weight import DenseWeight
from lightwell.model.layers.device_batch import DeviceBatch, Packing
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.norm import Norm
from lightwell.model.layers.rope import Rope
from lightwell.model.layers.triton_attention import TritonAttention, attend
from lightwell.model.network.block import Block
from lightwell.model.network.block_program import Program, is_supported
from lightwell.model.network.embedding import Embedding
from lightwell.model.network.per_layer import PerLayerInputs
from lightwell.model.network.sublayers import SelfAttention

STREAM, NORMED, WIDE, MIXED, ASIDE, OUT = (Register(n) for n in range(6))
_OF_HEADS = EnterHeads | EnterQueries | Attend | GateHeads
_OF_STATES = Convolve | ApplyDelta
_OF_EXPERTS = ChooseExperts | MultiplyExperts | CombineExperts | GateAside
_SUPPORTED = (
    NormRows | Multiply | _OF_HEADS | _OF_STATES | GateRows | GateTokens | AddRows | JoinRows | ScaleRows | _OF_EXPERTS
)


@dataclass(slots=True, eq=False)
class _Pass:
    """The inputs of one pass, and its numbers between two steps."""

    inputs: DeviceBatch
    caches: Sequence[LayerCache]
    max_len: int
    """An upper bound of the keys of a span."""
    patterns: Tensor | None
    """[n] float32: the buffer of the patterns, or None."""
    registers: dict[Register, Tensor]
    of_tokens: Tensor | None
    """The layers' inputs [T, L, P], or None."""
    queries: Tensor = field(init=False)
    """The rotated queries [T, H, D]."""
    pairs: Pairs = field(init=False)
    """The experts of the rows."""
    aside_gate: Tensor | None = None
    """The gate [T, 1] of ASIDE, or None."""

    def pattern_rows(self, layer: int, num_heads: int) -> PatternRows | None:
        """Return the places of one layer's patterns, or None."""
        if self.patterns is None:
            return None
        inputs = self.inputs
        slots = inputs.tail[layer * num_heads :]
        return PatternRows(slots, inputs.row_slots, inputs.pattern_starts, inputs.pattern_strides, self.patterns)


@dataclass(frozen=True, slots=True)
class Addition:
    """STREAM = stream_scale * of_sum(STREAM + scale * after(addends)), and target = before(STREAM)."""

    addends: tuple[Register, ...]
    """NORMED, or NORMED and ASIDE; with two there are no factors and norms except `before`."""
    scale: float = 1.0
    stream_scale: float = 1.0
    after: NormWeights | None = None
    of_sum: NormWeights | None = None
    before: NormWeights | None = None
    target: Register = NORMED


def fused(steps: Sequence[Step]) -> Iterator[tuple[int, Step | Addition]]:
    """Return the steps with each addition and its norms as one, and the index of the first step that each replaces."""
    at = 0
    while at < len(steps):
        first, step, after = at, steps[at], None
        at += 1
        if isinstance(step, NormRows) and isinstance(adding := steps[at] if at < len(steps) else None, AddRows):
            after, step, at = step.norm, adding, at + 1
        match step:
            case Multiply(adds=float() as scale):
                yield first, step
                addition = Addition((NORMED,), scale)
            case AddRows(scale):
                addition = Addition((NORMED,), scale, after=after)
            case JoinRows(adds=True):
                addition = Addition((NORMED, ASIDE))
            case _:
                yield first, step
                continue
        for following in steps[at : at + 3]:
            match following:
                case NormRows(norm, Register.STREAM, Register.STREAM):
                    addition = replace(addition, of_sum=norm)
                case ScaleRows(scale, Register.STREAM):
                    addition = replace(addition, stream_scale=scale)
                case NormRows(norm, Register.STREAM, (Register.NORMED | Register.OUT) as target):
                    addition = replace(addition, before=norm, target=target)
                case _:
                    break
            at += 1
            if addition.before is not None:
                break
        yield first, addition


class GpuProgram:
    """The embedding, blocks and final norm of one stack."""

    def __init__(
        self,
        embedding: Embedding,
        program: Program,
        per_layer: PerLayerInputs | None,
        *,
        causal: bool,
        serves_hooks: bool,
    ) -> None:
        """Keep the parts, which `of` has checked.

        causal: of self-attention. serves_hooks: whether attention writes patterns for hooks, which requires all heads.
        """
        self.program, self.serves_hooks = program, serves_hooks
        self._embedding, self._per_layer, self._causal = embedding, per_layer, causal
        self._heads = [*program.key_ranges, program.key_ranges[0]]
        self._arrivals = Arrivals()
        steps, linears = list(fused(program.steps)), iter(program.linears)
        self._launches = [self._launch_of(step, linears) for _, step in steps]
        self._layers = [sum(first < start for first, _ in steps) for start in program.layers]
        """The first launch of each layer, and the first after all layers."""
        self._writes = [
            [
                next(n for n in range(start, len(steps)) if isinstance(steps[n][1], kinds))
                for kinds in (EnterHeads | EnterQueries | _OF_STATES, Attend | _OF_STATES)
            ]
            for start in self._layers[:-1]
        ]
        """The launches of each layer that write keys or states, and patterns."""
        has_norm = any(isinstance(step, NormRows) and step.target == OUT for step in program.steps[-1:])
        self._result = OUT if has_norm else STREAM

    @classmethod
    def of(
        cls,
        embedding: Embedding,
        blocks: Sequence[Block],
        final_norm: Norm | None,
        ropes: Sequence[Rope | None],
        per_layer: PerLayerInputs | None = None,
    ) -> Self | None:
        """Return the program of a stack, or None if our Triton kernels cannot run it. ropes: one for each block."""
        attentions = [block.self_attention for block in blocks if isinstance(block.attention.f, SelfAttention)]
        downs = [each.down for block in blocks if block.mixture is not None for each in block.mixture.experts]
        if not all(map(is_supported, blocks)) or any(type(each) is not Linear for each in downs):  # ranks sum products
            return None
        if not all(isinstance(each.heads.attention, TritonAttention) for each in attentions):
            return None
        program = Program(blocks, final_norm, ropes)
        if program.width > MAX_WIDTH or not all(map(_has_kernel, program.steps)):
            return None
        causal, serves_hooks = attentions[0].causal, attentions[0].heads.are_all
        return cls(embedding, program, per_layer, causal=causal, serves_hooks=serves_hooks)

    @property
    def device(self) -> torch.device:
        return self._embedding.tokens.device

    def plan(self, batch: Batch, hooks: Hooks | None) -> PatternPlan | None:
        """Return the patterns that attention writes, or None if the hooks read something else.

        A rank with only some of the heads serves no hooks.
        """
        if hooks is not None and not self.serves_hooks:
            return None
        return PatternPlan.of(hooks or Hooks(), batch)

    def __call__(self, batch: Batch, caches: Sequence[LayerCache], plan: PatternPlan) -> Tensor:
        """Run a batch, deliver the patterns, and return the result of `Stack.__call__`.

        Exceptions of `batch.check`, between two blocks, are passed on; the caches then hold the rows of some layers.
        """
        packing = Packing.of(batch, plan.rooms)
        patterns = torch.empty(plan.size, dtype=torch.float32, device=self.device) if plan.size else None
        hidden = self.run(DeviceBatch.upload(packing, self.device), caches, packing.longest, patterns)
        if patterns is not None:
            plan.deliver(patterns.cpu())
        return hidden

    def run(
        self, inputs: DeviceBatch, caches: Sequence[LayerCache], max_len: int, patterns: Tensor | None = None
    ) -> Tensor:
        """Run a batch that is on the device. max_len: an upper bound of the keys of a span."""
        if inputs.last_tokens is not None:
            inputs.token_ids = known_tokens(inputs.token_ids, inputs.last_tokens)
        x = self._embedding(inputs)
        of_tokens = None if self._per_layer is None else self._per_layer(inputs, x)
        step = _Pass(inputs, caches, max_len, patterns, {STREAM: x}, of_tokens)
        for layer, (first, end) in enumerate(pairwise(self._layers)):
            rows = inputs.num_rows_at(layer)
            if rows == 0:
                return x[:0]
            inputs.check()
            step.registers = {name: step.registers[name][:rows] for name in (STREAM, NORMED) if name in step.registers}
            needs_output = inputs.needs_output_of(layer)
            last = end if needs_output else 1 + self._writes[layer][patterns is not None]
            for launch in self._launches[first:last]:
                launch(step)
            if not needs_output:
                return x[:0]
        for launch in self._launches[self._layers[-1] :]:
            launch(step)
        return step.registers[self._result]

    def _launch_of(self, step: Step | Addition, linears: Iterator[Linear]) -> Callable[[_Pass], None]:
        """Return the function that runs a step. linears: the matrices of this and all later products."""
        match step:
            case Addition():
                return partial(_add, step)
            case NormRows(norm, source, target):
                return partial(_norm, norm, source, target)
            case Multiply(source=source, target=target):
                return partial(_multiply, next(linears), source, target)
            case EnterHeads() | EnterQueries():
                return partial(self._enter, step)
            case Attend():
                return partial(self._attend, step, AttentionRule(step.scale, step.softcap, step.bias, step.sinks))
            case Convolve() | ApplyDelta():
                return partial(_advance, step)
            case GateHeads(key_range):
                heads = self._heads[key_range][1]
                return partial(_gate_heads, heads.num_heads * heads.dim)
            case GateRows():
                return partial(_gate, step)
            case GateTokens():
                return partial(_gate_tokens, step)
            case GateAside():
                return _keep_gate
            case ChooseExperts():
                return partial(_choose, step)
            case MultiplyExperts(products, source, target):
                own = [(_numbers(each), each.bias) for each in products]
                return partial(_multiply_experts, ExpertWeights(*zip(*own, strict=True)), source, target)
            case CombineExperts(adds_aside):
                return partial(_combine, adds_aside)
            case JoinRows(target=target):
                return partial(_join, target)
            case ScaleRows(scale, target):
                return partial(_scale, scale, target)
        raise AssertionError(f"no kernel of {step}")

    def _enter(self, own: EnterHeads | EnterQueries, step: _Pass) -> None:
        """Rotate queries, and write keys and values to the cache."""
        heads, inputs, cache = self._heads[own.key_range][1], step.inputs, step.caches[own.layer]
        wide = step.registers[WIDE].view(len(step.registers[WIDE]), -1, heads.dim)
        if isinstance(own, EnterQueries) and own.is_cross:
            step.queries = wide
            return
        keys, values, k_norm, v_norm, num_gates = cache.rows_of_keys, cache.values, None, None, 0
        if isinstance(own, EnterHeads):
            k_norm, v_norm, num_gates = own.k_norm, own.v_norm, heads.num_heads * own.gated
        else:
            keys, values = keys[:, :0], values[:, :0]
        step.queries = rotate_and_store(
            wide,
            own.rotary_tables,
            inputs.rotary_rows[: len(wide)],
            inputs.slots[: len(wide)],
            keys,
            values,
            q_norm=own.q_norm,
            k_norm=k_norm,
            v_norm=v_norm,
            num_gates=num_gates,
        )

    def _attend(self, own: Attend, rule: AttentionRule, step: _Pass) -> None:
        """MIXED = the heads' results; write the patterns of self-attention."""
        (window, heads), cache = self._heads[own.key_range], step.caches[own.layer]
        if own.is_cross:
            keys, patterns = step.inputs.keys(causal=False, is_cross=True), None
        else:
            keys = step.inputs.keys(causal=self._causal, window=window)
            patterns = step.pattern_rows(own.layer, heads.num_heads)
        z = attend(step.queries, cache, step.inputs, keys, rule, step.max_len, self._arrivals, patterns)
        step.registers[MIXED] = z.flatten(1)


def _has_kernel(step: Step) -> bool:
    match step:
        case GateRows():
            return step.deviations is None
        case MultiplyExperts():
            return step.activation is None and all(_numbers(each) is not None for each in step.products)
    return isinstance(step, _SUPPORTED)


def _numbers(product: Product) -> Tensor | None:
    """Return a weight in floating point [N, K], or None."""
    return product.weight.numbers if isinstance(product.weight, DenseWeight) else None


def _add(own: Addition, step: _Pass) -> None:
    stream, normed = add_norm(
        step.registers[STREAM],
        [step.registers[each] for each in own.addends],
        scale=own.scale,
        stream_scale=own.stream_scale,
        after=own.after,
        of_sum=own.of_sum,
        before=own.before,
    )
    step.registers[STREAM] = stream
    if normed is not None:
        step.registers[own.target] = normed


def _norm(norm: NormWeights, source: Register, target: Register, step: _Pass) -> None:
    normed = add_norm(step.registers[source], (), before=norm)[1]
    assert normed is not None
    step.registers[target] = normed


def _multiply(linear: Linear, source: Register, target: Register, step: _Pass) -> None:
    step.registers[target] = linear(step.registers[source])


def _advance(own: Convolve | ApplyDelta, step: _Pass) -> None:
    """MIXED = the output of a layer with states, which are written."""
    wide, states, spans = step.registers[WIDE], step.caches[own.layer].states, step.inputs.state_spans
    assert states is not None
    if isinstance(own, Convolve):
        step.registers[MIXED] = convolve(wide, own, states.inputs, spans)
    else:
        assert states.memory is not None
        step.registers[MIXED] = apply_delta(wide, own, states.inputs, states.memory, spans)


def _gate(own: GateRows, step: _Pass) -> None:
    source, target = (Register.GIVEN_WIDE, Register.GIVEN_MIXED) if own.of_experts else (WIDE, MIXED)
    gate, up = step.registers[source].chunk(2, -1)
    step.registers[target] = gated(gate, up, own.activation, own.clamps)


def _gate_heads(width: int, step: _Pass) -> None:
    """Width: of all heads' gates, which follow the queries."""
    gates = step.registers[WIDE][:, width : 2 * width]
    step.registers[MIXED] = gated(gates, step.registers[MIXED], "sigmoid")


def _gate_tokens(own: GateTokens, step: _Pass) -> None:
    assert step.of_tokens is not None
    wide = step.registers[WIDE]
    step.registers[MIXED] = gated(wide, step.of_tokens[: len(wide), own.layer], own.activation)


def _keep_gate(step: _Pass) -> None:
    step.aside_gate = step.registers[MIXED]


def _choose(own: ChooseExperts, step: _Pass) -> None:
    logits = step.registers[WIDE]
    step.pairs = Pairs.choose(logits, own.num_chosen, normalized=own.normalized, scales=own.scales)
    step.registers[Register.GIVEN] = step.registers[NORMED]


def _multiply_experts(weights: ExpertWeights, source: Register, target: Register, step: _Pass) -> None:
    step.registers[target] = weights.multiply(step.registers[source], step.pairs)


def _combine(adds_aside: bool, step: _Pass) -> None:
    shared = step.registers[ASIDE] if adds_aside else None
    step.registers[NORMED] = step.pairs.combine(step.registers[Register.GIVEN], shared, step.aside_gate)
    step.aside_gate = None


def _join(target: Register, step: _Pass) -> None:
    step.registers[target] = step.registers[NORMED] + step.registers[ASIDE]


def _scale(scale: float, target: Register, step: _Pass) -> None:
    step.registers[target] = step.registers[target] * scale
