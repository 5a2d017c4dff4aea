"""Defines what stands in place of attention in some layers, and what it keeps of each sequence."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class StateSizes:
    """The sizes of the state that a layer without attention keeps of a sequence, however long that is."""

    num_inputs: int
    """The last inputs of a convolution, in the model's dtype."""
    width: int
    """Numbers of one input."""
    memory: tuple[int, ...] = ()
    """The shape of what is kept in float32 (float64 in float64); () is nothing."""

    def num_bytes(self, item_size: int) -> int:
        """Return the bytes of one sequence in one layer; item_size: of the model's dtype."""
        memory = prod(self.memory) if self.memory else 0
        return item_size * self.num_inputs * self.width + max(4, item_size) * memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A gated short convolution in place of attention: C * conv(B * x), where a layer makes B, C and x of its input,
    and the convolution is over positions, of each channel alone (LFM2: Liquid AI 2025, arXiv:2511.23404).
    """

    layers: tuple[int, ...]
    """The layers that have it."""
    kernel_size: int
    """The positions that one output reads: its own, and those before it."""
    bias: bool = False
    """Whether the convolution and the matrices before and after it have biases."""
    kind: ClassVar[str] = "convolution"

    def state_sizes(self, hidden_size: int) -> StateSizes:
        """Return what each layer keeps of a sequence."""
        return StateSizes(self.kernel_size - 1, hidden_size)

    def num_matrix_parameters(self, hidden_size: int) -> int:
        """Return the weights of one layer's matrices."""
        return 4 * hidden_size**2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetConfig:
    """A gated delta net in place of attention (Yang et al. 2024, arXiv:2412.06464): each of its heads keeps one matrix,
    which it decays, corrects by what a key finds in it and what its value should be, and reads by a query.
    """

    layers: tuple[int, ...]
    """The layers that have it."""
    kernel_size: int
    """The positions that the convolution of queries, keys and values reads: its own, and those before it."""
    num_key_heads: int
    """Heads of queries and of keys, of which consecutive heads of values share one."""
    num_value_heads: int
    key_dim: int
    """Numbers of one query or key."""
    value_dim: int
    kind: ClassVar[str] = "gated delta net"

    @property
    def convolved_width(self) -> int:
        """Return the numbers of all queries, keys and values of a position."""
        return 2 * self.num_key_heads * self.key_dim + self.values_width

    @property
    def values_width(self) -> int:
        """Return the numbers of all values of a position."""
        return self.num_value_heads * self.value_dim

    def state_sizes(self, hidden_size: int) -> StateSizes:
        """Return what each layer keeps of a sequence."""
        memory = self.num_value_heads, self.key_dim, self.value_dim
        return StateSizes(self.kernel_size - 1, self.convolved_width, memory)

    def num_matrix_parameters(self, hidden_size: int) -> int:
        """Return the weights of one layer's matrices."""
        return hidden_size * (self.convolved_width + 2 * self.values_width + 2 * self.num_value_heads)


Recurrence = ShortConvConfig | DeltaNetConfig
"""The configuration of the layers that have no attention."""
