"""Translation of a decoder's steps into the kernels' form. `cpu/decoder.h` describes the structures.

Axes: R rows, d model width, H query heads, K key heads, D head dimension.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from lightwell.model.kernels.checks import ACTIVATIONS, address_of, check_activation, check_tensor
from lightwell.model.kernels.delta import CDeltaSizes
from lightwell.model.kernels.library import fields
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
)

_FLOAT32 = (torch.float32,)
_RMS, _RMS_ONCE, _LAYER, _WEIGHTS = range(4)
_NORM, _MULTIPLY, _ENTER, _ATTEND, _READY, _GATE, _ADD, _JOIN, _SCALE = range(9)
_ROUTE, _SORT, _GIVE, _EXPERTS, _COMBINE, _GATE_ASIDE, _QUERY, _CONVOLVE = range(9, 17)
_GATE_HEADS, _APPLY_DELTA, _GATE_TOKENS, _TANH, _PREDICT, _MERGE, _CORRECT, _ADD_OTHERS, TAKE = range(17, 26)
"""`Op` of decoder.h."""


class CProduct(ctypes.Structure):
    """`Product` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "form", "num_inputs", "num_outputs"))


class CNorm(ctypes.Structure):
    """`Norm` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "kind", "width"), *fields("f", "eps"))


class CDeltaNet(ctypes.Structure):
    """`DeltaNet` of decoder.h."""

    _fields_ = (("sizes", CDeltaSizes), *fields("p", "rates", "biases"), ("norm", CNorm))


class CStep(ctypes.Structure):
    """`Step` of decoder.h."""

    _fields_ = (
        *fields("l", "op", "source", "target", "layer"),
        *fields("p", "next"),
        ("product", CProduct),
        *fields("p", "experts"),
        *fields("l", "number", "adds", "activation", "num_experts", "num_chosen", "normalized"),
        *fields("p", "expert_scales"),
        *fields("l", "num_streams"),
        *fields("f", "deviations", "limit", "alpha"),
        *((name, CNorm) for name in ("norm", "k_norm", "v_norm")),
        *fields("p", "cos", "sin"),
        *fields("l", "num_rotated"),
        *fields("p", "bias", "sinks"),
        *fields("l", "bias_width", "key_range", "is_cross", "has_keys", "gated"),
        *fields("p", "delta", "taps"),
        *fields("l", "num_kept", "channels"),
        *fields("f", "score_scale", "softcap", "scale"),
        *fields("p", "taken"),
        *fields("l", "num_taken"),
    )


def translate(
    steps: Sequence[Step], *, dtype: torch.dtype, width: int, heads: Sequence[Heads]
) -> tuple["ctypes.Array[CStep]", list[int], list[dict[Register, int]], object]:
    """Return the translated steps; before each step and at the end the number of translated steps and the numbers in a
    row of each register; and an object that must be kept as long as the steps.

    width: d. heads: of each key range. The step before a product makes its rows ready: the one that writes them, or one
    that does nothing else. Raises ValueError for steps that do not fit.
    """
    translation = _Translation(dtype, width, heads)
    found, starts, number = list[CStep](), list[int](), 0
    widths = [{**translation.widths}]
    for step, before in zip(steps, [None, *steps], strict=False):
        starts.append(len(found))
        if isinstance(step, Multiply | MultiplyExperts) and not _writes_rows(before, step.source):
            found.append(CStep(op=_READY, source=step.source))
        found += translation.of(step)
        if isinstance(step, Multiply):
            found[-1].number, number = number, number + 1
        widths.append({**translation.widths})
    array = (CStep * len(found))(*found)
    for n, each in enumerate(found[1:], 1):
        if each.op in (_MULTIPLY, _EXPERTS):
            array[n - 1].next = ctypes.addressof(array) + n * ctypes.sizeof(CStep)
    if any(each.op in (_GATE, _GATE_TOKENS) and each.next is None for each in array):
        raise ValueError("a gate has no product after it; a product of its rows is accepted")
    return array, [*starts, len(found)], widths, translation.kept


def c_product(dtype: torch.dtype, name: str, product: Product, num_inputs: int, num_outputs: int) -> CProduct:
    """Return a product in the kernels' form. Raises ValueError for one that does not fit; `name` is part of it."""
    weight, bias = product.laid, product.bias
    if (weight.num_inputs, weight.num_outputs) != (num_inputs, num_outputs) or min(num_inputs, num_outputs) < 1:
        found = f"{weight.num_inputs} inputs and {weight.num_outputs} outputs"
        raise ValueError(f"{name} has {found}; {num_inputs} and {num_outputs} are accepted")
    bias_address = address_of(f"bias of {name}", bias, (dtype,), (num_outputs,))
    if weight.row_dtype != dtype:
        raise ValueError(f"{name} multiplies rows of {weight.row_dtype}; {dtype} is accepted")
    return CProduct(
        weight=weight.packed.data_ptr(),
        bias=bias_address,
        form=weight.form,
        num_inputs=num_inputs,
        num_outputs=num_outputs,
    )


def _writes_rows(step: Step | None, register: Register) -> bool:
    """Return whether a step writes whole rows of a register, so that it can make them ready for a product. The product
    of the stream may be in another call.
    """
    match step:
        case GateRows(of_experts=of_experts):
            return register == (Register.GIVEN_MIXED if of_experts else Register.MIXED)
        case ChooseExperts():
            return register == Register.GIVEN
        case NormRows():
            return step.target == register != Register.STREAM
        case WeighRows():
            return register == Register.NORMED
        case GateHeads() | GateTokens():
            return register == Register.MIXED
    return False


@dataclass
class _Translation:
    """The translation of one program, step by step."""

    dtype: torch.dtype
    width: int
    heads: Sequence[Heads]
    widths: dict[Register, int] = field(init=False)
    """Numbers in a row of each register."""
    num_experts: int = 0
    """The experts of the last `ChooseExperts`, 0 before the first."""
    num_chosen: int = 0
    """The chosen experts of a row, the same in each `ChooseExperts`; 0 before the first."""
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.widths = {Register.STREAM: self.width}

    def _heads(self, step: EnterHeads | EnterQueries | Attend | GateHeads) -> Heads:
        if not 0 <= step.key_range < len(self.heads):
            raise ValueError(f"key_range is {step.key_range}; 0 to {len(self.heads) - 1} is accepted")
        return self.heads[step.key_range]

    def _take_heads(self, step: EnterHeads | Attend | GateHeads, *, gated: bool) -> Heads:
        heads = self._heads(step)
        self._take(step, Register.WIDE, ((2 if gated else 1) * heads.num_heads + 2 * heads.num_key_heads) * heads.dim)
        return heads

    def of(self, step: Step) -> Iterator[CStep]:
        """Return a step in the kernels' form: one, or more."""
        match step:
            case NormRows(norm, source, target):
                if max(source, target) >= Register.GIVEN:
                    raise ValueError(
                        f"a norm reads {source.name} and writes {target.name}; registers of rows are accepted"
                    )
                self._take(step, source, self.width)
                self.widths[target] = self.width
                yield CStep(op=_NORM, source=source, target=target, norm=self._norm("norm", norm, self.width))
            case Multiply():
                yield self._multiply(step)
            case EnterHeads() | EnterQueries():
                yield self._enter(step)
            case Attend():
                yield self._attend(step)
            case GateHeads(key_range):
                heads = self._take_heads(step, gated=True)
                self._take(step, Register.MIXED, heads.num_heads * heads.dim)
                yield CStep(op=_GATE_HEADS, source=Register.WIDE, gated=True, key_range=1 + key_range)
            case Convolve(_, taps):
                self._take(step, Register.WIDE, 3 * taps.shape[1])
                self.widths[Register.MIXED] = taps.shape[1]
                yield self._convolve(_CONVOLVE, step)
            case ApplyDelta():
                yield self._apply_delta(step)
            case GateRows():
                yield self._gate(step)
            case GateTokens(layer, activation):
                check_activation(activation)
                self.widths[Register.MIXED] = self.widths.get(Register.WIDE, 0)
                self._take(step, Register.WIDE, max(1, self.widths[Register.MIXED]))
                places = {"source": Register.WIDE, "target": Register.MIXED, "layer": layer}
                yield CStep(op=_GATE_TOKENS, **places, activation=ACTIVATIONS[activation])
            case AddRows() | JoinRows() | ScaleRows() | WeighRows() | MergeRows():
                yield self._add(step)
            case Tanh() | PredictStreams() | CorrectStreams() | AddToOthers():
                yield self._of_streams(step)
            case ChooseExperts(num_experts, num_chosen, normalized, scales):
                self._take(step, Register.WIDE, num_experts)
                self._take(step, Register.NORMED, self.width)
                if not 1 <= num_chosen <= num_experts or self.num_chosen not in (0, num_chosen):
                    most = self.num_chosen or f"1 to {num_experts}"
                    raise ValueError(f"num_chosen is {num_chosen}; {most} is accepted")
                self.num_chosen = num_chosen
                self.num_experts, self.widths[Register.GIVEN] = num_experts, self.width
                sizes = {"num_experts": num_experts, "num_chosen": num_chosen, "normalized": normalized}
                address = address_of("scales", scales, _FLOAT32, (num_experts,))
                yield from (CStep(op=op, **sizes, expert_scales=address) for op in (_ROUTE, _SORT, _GIVE))
            case MultiplyExperts():
                yield self._multiply_experts(step)
            case CombineExperts(adds_aside):
                self._take(step, Register.GIVEN, self.width)
                if adds_aside:
                    self._take(step, Register.ASIDE, self.width)
                self.widths[Register.NORMED] = self.width
                yield CStep(op=_COMBINE, adds=adds_aside)
            case GateAside():
                self._take(step, Register.ASIDE, self.width)
                self._take(step, Register.MIXED, 1)
                yield CStep(op=_GATE_ASIDE)

    def _add(self, step: AddRows | JoinRows | ScaleRows | WeighRows | MergeRows) -> CStep:
        match step:
            case ScaleRows(scale, target):
                self._take(step, target, self.width)
                return CStep(op=_SCALE, source=target, scale=scale)
            case WeighRows(weight):
                check_tensor("weight", weight, (self.dtype,), (self.width,))
                self.widths[Register.NORMED] = self.width
                norm = CNorm(weight=weight.data_ptr(), kind=_WEIGHTS, width=self.width)
                return CStep(op=_NORM, source=Register.STREAM, target=Register.NORMED, norm=norm)
        self._take(step, Register.NORMED, self.width)
        if isinstance(step, AddRows):
            return CStep(op=_ADD, scale=step.scale)
        self._take(step, Register.ASIDE, self.width)
        if isinstance(step, MergeRows):
            return CStep(op=_MERGE)
        if step.target not in (Register.NORMED, Register.ASIDE):
            raise ValueError(f"a sum is written to {step.target.name}; NORMED or ASIDE is accepted")
        return CStep(op=_JOIN, target=step.target, adds=step.adds)

    def _of_streams(self, step: Tanh | PredictStreams | CorrectStreams | AddToOthers) -> CStep:
        match step:
            case Tanh():
                count = self.widths[Register.MIXED] = self.widths.get(Register.WIDE, 0)
                return CStep(op=_TANH, source=Register.WIDE, target=Register.MIXED, channels=count)
            case PredictStreams(count):
                self._take(step, Register.WIDE, count * count)
                return CStep(op=_PREDICT, num_streams=count)
            case CorrectStreams(count):
                self._take(step, Register.WIDE, count)
                return CStep(op=_CORRECT, num_streams=count)
            case AddToOthers(count):
                self._take(step, Register.NORMED, self.width)
                return CStep(op=_ADD_OTHERS, num_streams=count)

    def _take(self, step: Step, register: Register, width: int) -> None:
        if self.widths.get(register) != width:
            name = f"{type(step).__name__} takes {width} numbers of {register.name}"
            raise ValueError(f"{name}; a row has {self.widths.get(register, 'none')} there")

    def _put(self, target: Register, outputs: int) -> None:
        """Note the product that is written to a register, if there is room."""
        fits = {
            Register.NORMED: outputs == self.width,
            Register.ASIDE: outputs == self.width,
            Register.GIVEN: outputs == self.width,
            Register.MIXED: outputs <= self.width,
            Register.WIDE: True,
            Register.GIVEN_WIDE: True,
        }
        if not fits.get(target, False):
            raise ValueError(f"a product for {target.name} has {outputs} outputs; the width is {self.width}")
        self.widths[target] = outputs

    def _multiply(self, step: Multiply) -> CStep:
        check_activation(step.activation)
        if max(step.source, step.target) >= Register.GIVEN:
            raise ValueError(
                f"a product reads {step.source.name} and writes {step.target.name}; registers of rows are accepted"
            )
        weight = step.product.weight
        self._take(step, step.source, weight.num_inputs)
        self._put(step.target, weight.num_outputs)
        if step.adds is not None and step.target != Register.NORMED:
            raise ValueError(f"a product of {step.target.name} is added to the stream; NORMED is accepted")
        return CStep(
            op=_MULTIPLY,
            source=step.source,
            target=step.target,
            product=c_product(self.dtype, "product", step.product, weight.num_inputs, weight.num_outputs),
            adds=step.adds is not None,
            scale=step.adds or 0.0,
            activation=ACTIVATIONS[step.activation],
        )

    def _multiply_experts(self, step: MultiplyExperts) -> CStep:
        check_activation(step.activation)
        if min(step.source, step.target) < Register.GIVEN:
            raise ValueError(
                f"experts read {step.source.name} and write {step.target.name}; GIVEN and later registers are accepted"
            )
        weight = step.products[0].weight
        self._take(step, step.source, weight.num_inputs)
        self._put(step.target, weight.num_outputs)
        if len(step.products) != self.num_experts or len({each.laid.form for each in step.products}) != 1:
            raise ValueError(f"there are {len(step.products)} products; {self.num_experts} of one form are accepted")
        sizes = weight.num_inputs, weight.num_outputs
        products = [c_product(self.dtype, f"expert {n}", each, *sizes) for n, each in enumerate(step.products)]
        array = (CProduct * len(products))(*products)
        self.kept.append(array)
        return CStep(
            op=_EXPERTS,
            source=step.source,
            target=step.target,
            product=products[0],
            experts=ctypes.addressof(array),
            num_experts=len(products),
            activation=ACTIVATIONS[step.activation],
        )

    def _convolve(self, op: int, step: Convolve | ApplyDelta) -> CStep:
        count, channels = step.taps.shape
        check_tensor("taps", step.taps, _FLOAT32, (count, channels))
        return CStep(
            op=op,
            source=Register.WIDE,
            target=Register.MIXED,
            layer=step.layer,
            taps=step.taps.data_ptr(),
            bias=address_of("bias", step.bias, _FLOAT32, (channels,)),
            num_kept=count - 1,
            channels=channels,
        )

    def _apply_delta(self, step: ApplyDelta) -> CStep:
        key_heads, heads, key_dim, value_dim = step.sizes
        channels, values = 2 * key_heads * key_dim + heads * value_dim, heads * value_dim
        if min(step.sizes) < 1 or heads % key_heads or channels != step.taps.shape[1]:
            raise ValueError(
                f"a delta net has sizes {step.sizes} and {step.taps.shape[1]} channels; {channels}, of "
                "positive sizes with a multiple of the key heads, are accepted"
            )
        self._take(step, Register.WIDE, channels + values + 2 * heads)
        self.widths[Register.MIXED] = values
        for name, each in (("rates", step.rates), ("decay_biases", step.decay_biases)):
            check_tensor(name, each, _FLOAT32, (heads,))
        norm = self._norm("norm", step.norm, value_dim)
        net = CDeltaNet(CDeltaSizes(*step.sizes), step.rates.data_ptr(), step.decay_biases.data_ptr(), norm)
        self.kept.append(net)
        found = self._convolve(_APPLY_DELTA, step)
        found.delta = ctypes.addressof(net)
        return found

    def _enter(self, step: EnterHeads | EnterQueries) -> CStep:
        found = CStep(source=Register.WIDE, layer=step.layer, key_range=1 + step.key_range)
        if isinstance(step, EnterQueries):
            heads = self._heads(step)
            self._take(step, Register.WIDE, heads.num_heads * heads.dim)
            found.op, found.is_cross, k_norm, v_norm = _QUERY, step.is_cross, None, None
        else:
            heads = self._take_heads(step, gated=step.gated)
            found.op, found.gated, k_norm, v_norm = _ENTER, step.gated, step.k_norm, step.v_norm
        dim = heads.dim
        wholes = {"norm": heads.num_heads * dim, "k_norm": heads.num_key_heads * dim, "v_norm": dim}
        for (name, whole), norm in zip(wholes.items(), (step.q_norm, k_norm, v_norm), strict=True):
            if norm is not None:
                setattr(found, name, self._norm(name, norm, dim if len(norm.weight) == dim else whole))
        if step.rotary_tables is not None:
            cos, sin = step.rotary_tables
            for name, table in (("cos", cos), ("sin", sin)):
                check_tensor(name, table, _FLOAT32, tuple(cos.shape))
            if cos.dim() != 2 or cos.shape[1] % 2 or cos.shape[1] > dim:
                raise ValueError(f"cos is {list(cos.shape)}; an even number up to {dim} can be rotated")
            found.cos, found.sin, found.num_rotated = cos.data_ptr(), sin.data_ptr(), cos.shape[1]
        return found

    def _attend(self, step: Attend) -> CStep:
        heads = self._take_heads(step, gated=step.gated) if step.has_keys else self._heads(step)
        width = heads.num_heads * heads.dim
        if not step.has_keys:
            self._take(step, Register.WIDE, width)
        self.widths[Register.MIXED] = width
        bias_width = 0 if step.bias is None else step.bias.shape[1]
        return CStep(
            op=_ATTEND,
            source=Register.WIDE,
            target=Register.MIXED,
            layer=step.layer,
            bias=address_of("bias", step.bias, _FLOAT32, (heads.num_heads, bias_width)),
            sinks=address_of("sinks", step.sinks, _FLOAT32, (heads.num_heads,)),
            bias_width=bias_width,
            key_range=1 + step.key_range,
            is_cross=step.is_cross,
            has_keys=step.has_keys,
            gated=step.gated,
            score_scale=step.scale,
            softcap=step.softcap or 0.0,
        )

    def _gate(self, step: GateRows) -> CStep:
        check_activation(step.activation)
        source, target = (
            (Register.GIVEN_WIDE, Register.GIVEN_MIXED) if step.of_experts else (Register.WIDE, Register.MIXED)
        )
        inside = self.widths.get(source, 0) // 2
        self._take(step, source, 2 * inside)
        self.widths[target] = inside
        found = CStep(op=_GATE, source=source, target=target, activation=ACTIVATIONS[step.activation])
        found.deviations = -math.inf if step.deviations is None else step.deviations
        if step.clamps is not None:
            found.limit, found.alpha = step.clamps.limit, step.clamps.alpha
        return found

    def _norm(self, name: str, norm: NormWeights, width: int) -> CNorm:
        dtypes = (self.dtype,) if norm.is_centred else (self.dtype, torch.float32)
        check_tensor(name, norm.weight, dtypes, (width,))
        kind = _LAYER if norm.is_centred else _RMS if norm.weight.dtype == self.dtype else _RMS_ONCE
        bias = address_of(f"bias of {name}", norm.bias, (self.dtype,), (width,))
        return CNorm(weight=norm.weight.data_ptr(), bias=bias, kind=kind, width=width, eps=norm.eps)
