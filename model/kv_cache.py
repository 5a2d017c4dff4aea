"""Stores the keys and values of every running sequence, in blocks. It owns the memory; the scheduler decides which
block belongs to which sequence.
"""

from dataclasses import dataclass

import torch

from model.checkpoint import anonymous_memory
from model.config import ModelConfig

_PIECE = 32
"""Blocks of one layer whose keys or values are touched at a time, during which nothing else that needs memory from the
kernel can run: a megabyte and a half of the 124M checkpoint in bfloat16, some milliseconds.
"""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache.

    keys [block, key head, d_head, block_size]: on a CPU a query reads a block of keys side by side; values [block, key
    head, block_size, d_head]. With `keys_in_rows` the memory of keys is that of values, [block, key head, block_size,
    d_head], as kernels of a card read it, and `keys` is a view of it.
    """

    keys: torch.Tensor
    values: torch.Tensor

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

    @property
    def rows_of_keys(self) -> torch.Tensor:
        """Return the keys [block, key head, block_size, d_head], contiguous with `keys_in_rows`."""
        return self.keys.transpose(2, 3)


class KVCache:
    """One `LayerCache` for each layer that has keys and values of its own. The kernel allocates its pages as they are
    used, or before that by `touch`.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keys_in_rows: bool = False,
    ) -> None:
        """Allocate zeroed blocks. keys_in_rows: the same as in `LayerCache`."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._own = [
            LayerCache.zeros(layer, num_blocks, block_size, dtype, device, keys_in_rows=keys_in_rows)
            for layer in config.layers_with_kv
        ]
        self.layers = [self._own[config.kv_layer(layer)] for layer in range(config.num_layers)]
        """The cache of each layer, which several may share."""

    def touch(self) -> None:
        """Allocate memory for all blocks, in the order of their numbers. Another thread may do so while they are in
        use.

        From then on the memory that a server takes stays flat. It ends early if the kernel cannot do that.
        """
        tensors = [tensor for layer in self._own for tensor in (layer.keys, layer.values)]
        pieces = (tensor[i : i + _PIECE] for i in range(0, self.num_blocks, _PIECE) for tensor in tensors)
        all(anonymous_memory.touch(piece) for piece in pieces)

    @staticmethod
    def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """Return the bytes that one block takes over all layers."""
        numbers = sum(2 * layer.num_kv_heads * layer.head_dim for layer in config.layers_with_kv)
        return numbers * block_size * dtype.itemsize
