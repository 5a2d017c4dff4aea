"""The steps of a decoder's program, as plain data. `translation.py` converts them for the kernels.

Axes: R rows, d model width, H query heads, K key heads, D head dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from lightwell.model.config import Activation, ClampedGate
from lightwell.model.kernels.products import LaidWeight


class Register(IntEnum):
    """The numbers of a row between two steps, [R, width of the step that wrote them]."""

    STREAM = 0
    """The residual stream, [R, d]."""
    NORMED = 1
    """[R, d]"""
    WIDE = 2
    MIXED = 3
    ASIDE = 4
    """[R, d]"""
    OUT = 5
    """The result of the program, [R, d]."""
    GIVEN = 6
    """[pairs, d]: from here on a row for each row and expert that is chosen for it, sorted by expert."""
    GIVEN_WIDE = 7
    GIVEN_MIXED = 8


@dataclass(frozen=True, slots=True)
class Product:
    """A weight to multiply by, with a bias [outputs] of the residual stream's dtype."""

    weight: LaidWeight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class NormWeights:
    """An RMSNorm or LayerNorm of rows, or of parts of a row."""

    weight: Tensor
    """[numbers of a part], of the stream's dtype; float32 for an RMSNorm that rounds once."""
    eps: float
    bias: Tensor | None = None
    """The bias of a LayerNorm, or None."""
    is_centred: bool = False
    """True for a LayerNorm, False for an RMSNorm."""


@dataclass(frozen=True, slots=True)
class NormRows:
    """target = norm(source)."""

    norm: NormWeights
    source: Register
    target: Register


@dataclass(frozen=True, slots=True)
class Multiply:
    """target = activation(product of source)."""

    product: Product
    source: Register
    target: Register
    activation: Activation | None = None
    adds: float | None = None
    """The factor of target in a sum with the stream, or None if it is not added."""


@dataclass(frozen=True, slots=True)
class EnterHeads:
    """Normalise and rotate the heads of WIDE: query heads, key heads, value heads; keys and values go to the cache."""

    layer: int
    q_norm: NormWeights | None = None
    """The norm of each query head, with weight [D], or of all query heads together, [H D]."""
    k_norm: NormWeights | None = None
    v_norm: NormWeights | None = None
    rotary_tables: tuple[Tensor, Tensor] | None = None
    """cos and sin [positions, rotated] float32, as in `rows.rotate_and_store`; None rotates nothing."""


@dataclass(frozen=True, slots=True)
class EnterQueries:
    """Take WIDE [R, H D] as the queries of cross attention."""


@dataclass(frozen=True, slots=True)
class Attend:
    """MIXED = the heads' mixed values, after `EnterHeads`, or `EnterQueries` if `is_cross`. `AttentionRule` describes
    the other fields.
    """

    layer: int
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    key_range: int = 0
    """The index of the layer's key range among the step's `key_ranges`."""
    is_cross: bool = False


@dataclass(frozen=True, slots=True)
class Convolve:
    """MIXED = C * conv(B * x), where WIDE holds B, C and x, each of the convolution's channels."""

    layer: int
    taps: Tensor
    """[kept inputs + 1, channels] float32, the row's own last."""
    bias: Tensor | None = None
    """[channels] float32."""


@dataclass(frozen=True, slots=True)
class GateRows:
    """MIXED = activation(gate) * up of WIDE, which holds gate, then up; or GIVEN_MIXED of GIVEN_WIDE. A product of the
    result follows.
    """

    activation: Activation
    clamps: ClampedGate | None = None
    """The gate in place of activation(gate) * up, or None."""
    of_experts: bool = False


@dataclass(frozen=True, slots=True)
class AddRows:
    """NORMED *= scale, and STREAM += NORMED."""

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class JoinRows:
    """NORMED += ASIDE, and STREAM += NORMED."""


@dataclass(frozen=True, slots=True)
class ScaleRows:
    """STREAM *= scale."""

    scale: float


@dataclass(frozen=True, slots=True)
class ChooseExperts:
    """Choose experts for each row by the router's logits in WIDE, and GIVEN = NORMED of each pair of row and expert. A
    product of GIVEN follows.
    """

    num_experts: int
    num_chosen: int
    normalized: bool
    """True if the weights of a row's experts are divided by their sum."""


@dataclass(frozen=True, slots=True)
class MultiplyExperts:
    """target = activation(product of source), of each pair's expert. The weights have the same shapes and forms."""

    products: Sequence[Product]
    source: Register
    target: Register
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class CombineExperts:
    """NORMED = the sum of a row's pairs in GIVEN, times their weights."""

    adds_aside: bool = False
    """True if ASIDE is added to the sum."""


@dataclass(frozen=True, slots=True)
class GateAside:
    """ASIDE *= the sigmoid of MIXED, a number a row."""


_Experts = ChooseExperts | MultiplyExperts | CombineExperts | GateAside
_Attention = EnterHeads | EnterQueries | Attend
Step = NormRows | Multiply | _Attention | Convolve | GateRows | AddRows | JoinRows | ScaleRows | _Experts
