"""Stores the keys and values of every running sequence, in blocks, and the states of layers without attention. It owns
the memory; the scheduler decides which block and which states belong to which sequence.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from model.checkpoint import anonymous_memory
from model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The states that one layer without attention keeps of each sequence.

    A state is read by one step and another one written, at the places that the sequence's `Span` names: so a step that
    was cancelled, or that failed, may run again. State 0 belongs to no sequence.
    """

    inputs: torch.Tensor
    """[state, n, width]: the last inputs of a convolution, oldest first, in the model's dtype."""
    memory: torch.Tensor | None
    """[state, ...] of `StateSizes.memory`, float32 (float64 in float64), or None."""

    @classmethod
    def zeros(cls, config: ModelConfig, num_states: int, dtype: torch.dtype, device: torch.device) -> "LayerStates":
        """Return zeroed states for one layer of `config`."""
        assert config.recurrence is not None
        sizes = config.recurrence.state_sizes(config.hidden_size)
        inputs = anonymous_memory.zeros((num_states, sizes.num_inputs, sizes.width), dtype, device)
        if not sizes.memory:
            return cls(inputs, None)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return cls(inputs, anonymous_memory.zeros((num_states, *sizes.memory), wide, device))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache: keys and values, or, of a layer without attention, states.

    keys [block, key head, d_head, block_size]: on a CPU a query reads a block of keys side by side; values [block, key
    head, block_size, d_head]. With `keys_in_rows` the memory of keys is that of values, [block, key head, block_size,
    d_head], as kernels of a card read it, and `keys` is a view of it.
    """

    keys: torch.Tensor
    values: torch.Tensor
    states: LayerStates | None = None

    @classmethod
    def zeros(
        cls,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keys_in_rows: bool = False,
    ) -> "LayerCache":
        """Return zeroed blocks for one layer of `config`."""
        heads, dim = config.num_kv_heads, config.head_dim
        values = anonymous_memory.zeros((num_blocks, heads, block_size, dim), dtype, device)
        if keys_in_rows:
            return cls(anonymous_memory.zeros(tuple(values.shape), dtype, device).transpose(2, 3), values)
        return cls(anonymous_memory.zeros((num_blocks, heads, dim, block_size), dtype, device), values)

    @classmethod
    def of_states(cls, states: LayerStates) -> "LayerCache":
        """Return the cache of a layer that has no keys and values."""
        nothing = states.inputs.new_empty(0)
        return cls(nothing, nothing, states)

    @property
    def rows_of_keys(self) -> torch.Tensor:
        """Return the keys [block, key head, block_size, d_head], contiguous with `keys_in_rows`."""
        return self.keys.transpose(2, 3)


class KVCache:
    """One `LayerCache` for each layer that has keys and values, or states, of its own. On a CPU it is reserved as a
    whole; a block takes memory from its first use on.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_sequences: int = 0,
        keys_in_rows: bool = False,
    ) -> None:
        """Allocate zeroed blocks, and the states of so many sequences. keys_in_rows: the same as in `LayerCache`."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_sequences = num_sequences if config.recurrence is not None else 0
        """The sequences that it has states for; 0 in a network that keeps none."""
        self._own = [
            LayerCache.zeros(config.at(layer), num_blocks, block_size, dtype, device, keys_in_rows=keys_in_rows)
            if config.has_attention(layer)
            else LayerCache.of_states(LayerStates.zeros(config, 1 + 2 * num_sequences, dtype, device))
            for layer in range(config.num_layers - config.num_kv_shared_layers)
        ]
        self.layers = [self._own[config.kv_layer(layer)] for layer in range(config.num_layers)]
        """The cache of each layer, which several may share."""

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks, each (from, to), one after another, in every layer with keys and values."""
        for source, target in pairs:
            for layer in self._own:
                if layer.states is None:
                    layer.keys[target] = layer.keys[source]
                    layer.values[target] = layer.values[source]

    @staticmethod
    def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """Return the bytes that one block takes over all layers with attention."""
        numbers = sum(2 * layer.num_kv_heads * layer.head_dim for layer in config.layers_with_kv)
        return numbers * block_size * dtype.itemsize
