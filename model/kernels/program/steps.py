"""The steps of a decoder's program, as plain data. `translation.py` converts them for the kernels.

Axes: R rows, d model width, H query heads, K key heads, D head dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from lightwell.model.config import Activation, ClampedGate
from lightwell.model.kernels.forms import Weight
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


class Heads(NamedTuple):
    """The heads of an attention: H, K and D."""

    num_heads: int
    num_key_heads: int
    dim: int


@dataclass(frozen=True, slots=True)
class Product:
    """A weight to multiply by, with a bias [outputs] of the residual stream's dtype."""

    weight: Weight
    bias: Tensor | None = None

    @property
    def laid(self) -> LaidWeight:
        """Return the weight, which must be in a form of the CPU kernels."""
        assert isinstance(self.weight, LaidWeight)
        return self.weight


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
    """Normalise and rotate the heads of WIDE: query heads, gates if `gated`, key heads, value heads; keys and values go
    to the cache. `Attend` describes `key_range`.
    """

    layer: int
    key_range: int
    q_norm: NormWeights | None = None
    """The norm of each query head, with weight [D], or of all query heads together, [H D]."""
    k_norm: NormWeights | None = None
    v_norm: NormWeights | None = None
    rotary_tables: tuple[Tensor, Tensor] | None = None
    """cos and sin [positions, rotated] float32, as in `rows.rotate_and_store`; None rotates nothing."""
    gated: bool = False


@dataclass(frozen=True, slots=True)
class EnterQueries:
    """Normalise and rotate the heads of WIDE, query heads only: of cross attention, or with keys that another layer
    wrote to the same cache. `EnterHeads` and `Attend` describe the fields.
    """

    layer: int
    key_range: int
    q_norm: NormWeights | None = None
    rotary_tables: tuple[Tensor, Tensor] | None = None
    is_cross: bool = False


@dataclass(frozen=True, slots=True)
class Attend:
    """MIXED = the heads' mixed values, after `EnterHeads`, or after `EnterQueries` without `has_keys`. `AttentionRule`
    describes the other fields.
    """

    layer: int
    key_range: int
    """The index of the layer's key range, with its heads, in the program's `heads`."""
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    is_cross: bool = False
    has_keys: bool = True
    gated: bool = False
    """True if WIDE has gates, as in `EnterHeads`."""


@dataclass(frozen=True, slots=True)
class GateHeads:
    """MIXED *= the sigmoids of WIDE's gates, after an `Attend` that is gated."""

    key_range: int


@dataclass(frozen=True, slots=True)
class Convolve:
    """MIXED = C * conv(B * x), where WIDE holds B, C and x, each of the convolution's channels."""

    layer: int
    taps: Tensor
    """[kept inputs + 1, channels] float32, the row's own last."""
    bias: Tensor | None = None
    """[channels] float32."""

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Return the number of kept inputs, and the channels."""
        return len(self.taps) - 1, self.taps.shape[1]


@dataclass(frozen=True, slots=True)
class ApplyDelta:
    """MIXED = the values of a gated delta net [V v], where WIDE holds the inputs of the convolution (queries, keys and
    values), gates [V v], strengths [V] and steps of decay [V]. V, K: value and key heads; k, v: their widths.
    """

    layer: int
    sizes: tuple[int, int, int, int]
    """K, V, k and v."""
    taps: Tensor
    """As in `Convolve`, of 2 K k + V v channels; a SiLU follows the convolution."""
    bias: Tensor | None
    rates: Tensor
    """[V] float32: a decay is exp(-rate * softplus(step + bias))."""
    decay_biases: Tensor
    """[V] float32."""
    norm: NormWeights
    """The norm of each value head, [v]."""

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Return the number of kept inputs, the channels, and the shape of the matrices."""
        return len(self.taps) - 1, self.taps.shape[1], *self.sizes[1:]


@dataclass(frozen=True, slots=True)
class GateRows:
    """MIXED = activation(gate) * up of WIDE, which holds gate, then up; or GIVEN_MIXED of GIVEN_WIDE. A product of the
    result follows.
    """

    activation: Activation
    clamps: ClampedGate | None = None
    """The gate in place of activation(gate) * up, or None."""
    of_experts: bool = False
    deviations: float | None = None
    """Numbers of the gate become relu(gate - mean - deviations * standard deviation) first, except for None."""


@dataclass(frozen=True, slots=True)
class GateTokens:
    """MIXED = activation(WIDE) * the row's inputs of the layer. A product of the result follows."""

    layer: int
    activation: Activation


@dataclass(frozen=True, slots=True)
class AddRows:
    """NORMED *= scale, and STREAM += NORMED."""

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class JoinRows:
    """target = NORMED + ASIDE, one of them, and STREAM += NORMED if it `adds`."""

    adds: bool = True
    target: Register = Register.NORMED


@dataclass(frozen=True, slots=True)
class ScaleRows:
    """target *= scale, with rows [R, d]."""

    scale: float
    target: Register = Register.STREAM


@dataclass(frozen=True, slots=True)
class WeighRows:
    """NORMED = STREAM * weight."""

    weight: Tensor
    """[d], of the stream's dtype."""


@dataclass(frozen=True, slots=True)
class Tanh:
    """MIXED = tanh(WIDE)."""


@dataclass(frozen=True, slots=True)
class PredictStreams:
    """Predict each residual stream as the sum of all, times their weights in WIDE [N N], plus itself. STREAM = the
    first prediction. See model/network/altup.py.
    """

    num_streams: int


@dataclass(frozen=True, slots=True)
class MergeRows:
    """STREAM = (STREAM + NORMED + ASIDE) / sqrt(2)."""


@dataclass(frozen=True, slots=True)
class CorrectStreams:
    """Each residual stream = its prediction + (STREAM - the first prediction) * (1 + its weight in WIDE [N])."""

    num_streams: int


@dataclass(frozen=True, slots=True)
class AddToOthers:
    """All residual streams except the first one += NORMED."""

    num_streams: int


@dataclass(frozen=True, slots=True)
class ChooseExperts:
    """Choose experts for each row by the router's logits in WIDE, and GIVEN = NORMED of each pair of row and expert. A
    product of GIVEN follows.
    """

    num_experts: int
    num_chosen: int
    normalized: bool
    """True if the weights of a row's experts are divided by their sum."""
    scales: Tensor | None = None
    """Factors of the experts' outputs [num_experts], float32."""


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
_Mixer = EnterHeads | EnterQueries | Attend | GateHeads | Convolve | ApplyDelta
_Sums = AddRows | JoinRows | ScaleRows | WeighRows | MergeRows
_Streams = Tanh | PredictStreams | CorrectStreams | AddToOthers
Step = NormRows | Multiply | _Mixer | GateRows | GateTokens | _Sums | _Streams | _Experts
