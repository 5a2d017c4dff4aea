"""Cache: keys and values of all running sequences, in blocks, and states of layers without attention. The scheduler
assigns blocks and states to sequences.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from lightwell.model.checkpoint import anonymous_memory
from lightwell.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The states of all sequences in one layer without attention.

    A step reads one state and writes another one, both given in the sequence's `Span`, so that a cancelled or failed
    step can be repeated. State 0 is not used.
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
    """The cache of one layer: keys and values, or the states of a layer without attention.

    keys [block, key head, d_head, block_size], for the CPU's kernels; values [block, key head, block_size, d_head].
    With `keys_in_rows` the keys are stored like values, for the GPU's kernels, and `keys` is a view.
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
        """Return the cache of a layer without keys and values."""
        nothing = states.inputs.new_empty(0)
        return cls(nothing, nothing, states)

    @property
    def rows_of_keys(self) -> torch.Tensor:
        """Return the keys [block, key head, block_size, d_head], contiguous with `keys_in_rows`."""
        return self.keys.transpose(2, 3)


class KVCache:
    """A `LayerCache` for each layer with keys and values or states of its own. CPU memory is used from first use on."""

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
        """Allocate zeroed blocks, and the states of `num_sequences` sequences. keys_in_rows: as in `LayerCache`."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_sequences = num_sequences if config.recurrence is not None else 0
        """Sequences with states, 0 in a network without states."""
        self._own = [
            LayerCache.zeros(config.at(layer), num_blocks, block_size, dtype, device, keys_in_rows=keys_in_rows)
            if config.has_attention(layer)
            else LayerCache.of_states(LayerStates.zeros(config, 1 + 2 * num_sequences, dtype, device))
            for layer in range(config.num_layers - config.num_kv_shared_layers)
        ]
        self.layers = [self._own[config.kv_layer(layer)] for layer in range(config.num_layers)]
        """The cache of each layer. Several layers may share one."""

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks, each (from, to), in order, in every layer with keys and values."""
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
