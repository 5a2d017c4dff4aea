"""Translation of a decoder's steps into the kernels' form. `cpu/decoder.h` describes the structures.

Axes: R rows, d model width, H query heads, K key heads, D head dimension.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from lightwell.model.kernels.checks import ACTIVATIONS, address_of, check_activation, check_tensor
from lightwell.model.kernels.library import fields
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

_FLOAT32 = (torch.float32,)
_RMS, _RMS_ONCE, _LAYER = range(3)
_NORM, _MULTIPLY, _ENTER, _ATTEND, _READY, _GATE, _ADD, _JOIN, _SCALE = range(9)
_ROUTE, _SORT, _GIVE, _EXPERTS, _COMBINE, _GATE_ASIDE, _QUERY, _CONVOLVE, TAKE = range(9, 18)
"""`Op` of decoder.h."""


class CProduct(ctypes.Structure):
    """`Product` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "form", "num_inputs", "num_outputs"))


class CNorm(ctypes.Structure):
    """`Norm` of decoder.h."""

    _fields_ = (*fields("p", "weight", "bias"), *fields("l", "kind", "width"), *fields("f", "eps"))


class CStep(ctypes.Structure):
    """`Step` of decoder.h."""

    _fields_ = (
        *fields("l", "op", "source", "target", "layer"),
        *fields("p", "next"),
        ("product", CProduct),
        *fields("p", "experts"),
        *fields("l", "number", "adds", "activation", "num_experts", "num_chosen", "normalized"),
        *fields("f", "limit", "alpha"),
        *((name, CNorm) for name in ("norm", "k_norm", "v_norm")),
        *fields("p", "cos", "sin"),
        *fields("l", "num_rotated"),
        *fields("p", "bias", "sinks"),
        *fields("l", "bias_width", "key_range", "is_cross"),
        *fields("p", "taps"),
        *fields("l", "num_kept", "channels"),
        *fields("f", "score_scale", "softcap", "scale"),
        *fields("p", "taken"),
        *fields("l", "num_taken"),
    )


def translate(
    steps: Sequence[Step], *, dtype: torch.dtype, width: int, heads: tuple[int, int, int]
) -> tuple["ctypes.Array[CStep]", list[int], list[dict[Register, int]], object]:
    """Return the translated steps; before each step and at the end the number of translated steps and the numbers in a
    row of each register; and an object that must be kept as long as the steps.

    width: d. heads: H, K, D. The step before a product makes its rows ready: the one that writes them, or one that does
    nothing else. Raises ValueError for steps that do not fit.
    """
    translation = _Translation(dtype, width, *heads)
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
    if any(each.op == _GATE and each.next is None for each in array):
        raise ValueError("GateRows has no product after it; one of its rows is accepted")
    return array, [*starts, len(found)], widths, translation.kept


def c_product(dtype: torch.dtype, name: str, product: Product, num_inputs: int, num_outputs: int) -> CProduct:
    """Return a product in the kernels' form. Raises ValueError for one that does not fit; `name` is part of it."""
    weight, bias = product.weight, product.bias
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
        case GateRows(_, _, of_experts):
            return register == (Register.GIVEN_MIXED if of_experts else Register.MIXED)
        case ChooseExperts():
            return register == Register.GIVEN
        case NormRows():
            return step.target == register != Register.STREAM
    return False


@dataclass
class _Translation:
    """The translation of one program, step by step."""

    dtype: torch.dtype
    width: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    widths: dict[Register, int] = field(init=False)
    """Numbers in a row of each register."""
    num_experts: int = 0
    """The experts of the last `ChooseExperts`, 0 before the first."""
    num_chosen: int = 0
    """The chosen experts of a row, the same in each `ChooseExperts`; 0 before the first."""
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.widths = {Register.STREAM: self.width}

    @property
    def _qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_key_heads) * self.head_dim

    def of(self, step: Step) -> Iterator[CStep]:
        """Return a step in the kernels' form: one, or more."""
        match step:
            case NormRows(norm, source, target):
                if max(source, target) >= Register.GIVEN:
                    raise ValueError(f"a norm is of {source.name} and {target.name}; registers of rows are accepted")
                self._take(step, source, self.width)
                self.widths[target] = self.width
                yield CStep(op=_NORM, source=source, target=target, norm=self._norm("norm", norm, self.width))
            case Multiply():
                yield self._multiply(step)
            case EnterHeads():
                yield self._enter(step)
            case EnterQueries():
                self._take(step, Register.WIDE, self.num_heads * self.head_dim)
                yield CStep(op=_QUERY, source=Register.WIDE)
            case Attend():
                yield self._attend(step)
            case Convolve(layer, taps, bias):
                count, channels = taps.shape
                self._take(step, Register.WIDE, 3 * channels)
                self.widths[Register.MIXED] = channels
                check_tensor("taps", taps, _FLOAT32, (count, channels))
                address = address_of("bias", bias, _FLOAT32, (channels,))
                places = {"source": Register.WIDE, "target": Register.MIXED, "layer": layer}
                sizes = {"num_kept": count - 1, "channels": channels}
                yield CStep(op=_CONVOLVE, **places, taps=taps.data_ptr(), bias=address, **sizes)
            case GateRows():
                yield self._gate(step)
            case AddRows(scale):
                self._take(step, Register.NORMED, self.width)
                yield CStep(op=_ADD, scale=scale)
            case JoinRows():
                self._take(step, Register.NORMED, self.width)
                self._take(step, Register.ASIDE, self.width)
                yield CStep(op=_JOIN)
            case ScaleRows(scale):
                yield CStep(op=_SCALE, scale=scale)
            case ChooseExperts(num_experts, num_chosen, normalized):
                self._take(step, Register.WIDE, num_experts)
                self._take(step, Register.NORMED, self.width)
                if not 1 <= num_chosen <= num_experts or self.num_chosen not in (0, num_chosen):
                    most = self.num_chosen or f"1 to {num_experts}"
                    raise ValueError(f"num_chosen is {num_chosen}; {most} is accepted")
                self.num_chosen = num_chosen
                self.num_experts, self.widths[Register.GIVEN] = num_experts, self.width
                sizes = {"num_experts": num_experts, "num_chosen": num_chosen, "normalized": normalized}
                yield from (CStep(op=op, **sizes) for op in (_ROUTE, _SORT, _GIVE))
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
                f"a product is of {step.source.name} and {step.target.name}; registers of rows are accepted"
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
            raise ValueError(f"experts are of {step.source.name} and {step.target.name}; GIVEN and later are accepted")
        weight = step.products[0].weight
        self._take(step, step.source, weight.num_inputs)
        self._put(step.target, weight.num_outputs)
        if len(step.products) != self.num_experts or len({each.weight.form for each in step.products}) != 1:
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

    def _enter(self, step: EnterHeads) -> CStep:
        self._take(step, Register.WIDE, self._qkv_width)
        found, dim = CStep(op=_ENTER, source=Register.WIDE, layer=step.layer), self.head_dim
        wholes = {"norm": self.num_heads * dim, "k_norm": self.num_key_heads * dim, "v_norm": dim}
        for (name, whole), norm in zip(wholes.items(), (step.q_norm, step.k_norm, step.v_norm), strict=True):
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
        width = self.num_heads * self.head_dim
        self._take(step, Register.WIDE, width if step.is_cross else self._qkv_width)
        self.widths[Register.MIXED] = width
        bias_width = 0 if step.bias is None else step.bias.shape[1]
        return CStep(
            op=_ATTEND,
            source=Register.WIDE,
            target=Register.MIXED,
            layer=step.layer,
            bias=address_of("bias", step.bias, _FLOAT32, (self.num_heads, bias_width)),
            sinks=address_of("sinks", step.sinks, _FLOAT32, (self.num_heads,)),
            bias_width=bias_width,
            key_range=1 + step.key_range,
            is_cross=step.is_cross,
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
        if step.clamps is not None:
            found.limit, found.alpha = step.clamps.limit, step.clamps.alpha
        return found

    def _norm(self, name: str, norm: NormWeights, width: int) -> CNorm:
        dtypes = (self.dtype,) if norm.is_centred else (self.dtype, torch.float32)
        check_tensor(name, norm.weight, dtypes, (width,))
        kind = _LAYER if norm.is_centred else _RMS if norm.weight.dtype == self.dtype else _RMS_ONCE
        bias = address_of(f"bias of {name}", norm.bias, (self.dtype,), (width,))
        return CNorm(weight=norm.weight.data_ptr(), bias=bias, kind=kind, width=width, eps=norm.eps)
