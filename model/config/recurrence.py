"""Configuration of layers with a state in place of attention, and the sizes of the states."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class StateSizes:
    """The sizes of a sequence's state in a layer without attention. They do not depend on its length."""

    num_inputs: int
    """The number of stored inputs of the convolution, in the model's dtype."""
    width: int
    """Numbers of one input."""
    memory: tuple[int, ...] = ()
    """The shape of the memory in float32 (float64 in a float64 model), or () without one."""

    def num_bytes(self, item_size: int) -> int:
        """Return the bytes of one state. item_size: bytes of a number of the model's dtype."""
        memory = prod(self.memory) if self.memory else 0
        return item_size * self.num_inputs * self.width + max(4, item_size) * memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A gated short convolution in place of attention: C * conv(B * x), with B, C and x computed from the layer's
    input. The convolution is over positions and depthwise (LFM2: Liquid AI 2025, arXiv:2511.23404).
    """

    layers: tuple[int, ...]
    kernel_size: int
    """The positions that one output reads: its own and the ones before it."""
    bias: bool = False
    """Whether the convolution and the matrices before and after it have biases."""
    kind: ClassVar[str] = "convolution"

    def state_sizes(self, hidden_size: int) -> StateSizes:
        """Return the sizes of a sequence's state in one layer."""
        return StateSizes(self.kernel_size - 1, hidden_size)

    def num_matrix_parameters(self, hidden_size: int) -> int:
        """Return the number of weights in one layer's matrices."""
        return 4 * hidden_size**2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetConfig:
    """A gated delta net in place of attention (Yang et al. 2024, arXiv:2412.06464). The state of each head is a matrix:
    it decays, is corrected by the difference between a value and the state's product with the key, and is read with the
    query.
    """

    layers: tuple[int, ...]
    kernel_size: int
    """The positions that the convolution of queries, keys and values reads: its own and the ones before it."""
    num_key_heads: int
    """Heads of queries and of keys. Each is shared by consecutive heads of values."""
    num_value_heads: int
    key_dim: int
    value_dim: int
    kind: ClassVar[str] = "gated delta net"

    @property
    def convolved_width(self) -> int:
        """Return the width of all queries, keys and values of a position."""
        return 2 * self.num_key_heads * self.key_dim + self.values_width

    @property
    def values_width(self) -> int:
        """Return the width of all values of a position."""
        return self.num_value_heads * self.value_dim

    def state_sizes(self, hidden_size: int) -> StateSizes:
        """Return the sizes of a sequence's state in one layer."""
        memory = self.num_value_heads, self.key_dim, self.value_dim
        return StateSizes(self.kernel_size - 1, self.convolved_width, memory)

    def num_matrix_parameters(self, hidden_size: int) -> int:
        """Return the number of weights in one layer's matrices."""
        return hidden_size * (self.convolved_width + 2 * self.values_width + 2 * self.num_value_heads)


Recurrence = ShortConvConfig | DeltaNetConfig
"""Configuration of the layers without attention."""
