"""The keys and values of every running sequence, in blocks. Owns the memory; which block is whose is the scheduler's to
say.
"""

from dataclasses import dataclass

import torch

from model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache.

    keys [block, key head, d_head, block_size]: a query meets a block of keys side by side;
    values [block, key head, block_size, d_head].
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def zeros(
        cls, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> "LayerCache":
        """Blocks for one layer of `config`, every page of them touched."""
        heads, dim = config.num_kv_heads, config.head_dim
        return cls(
            keys=_filled((num_blocks, heads, dim, block_size), dtype, device),
            values=_filled((num_blocks, heads, block_size, dim), dtype, device),
        )


class KVCache:
    """One `LayerCache` a layer. All of it is touched at once: what a server takes it takes at the start, where too much
    of it is an error that can be read, and its memory stays flat from then on.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.layers = [
            LayerCache.zeros(config, num_blocks, block_size, dtype, device) for _ in range(config.num_layers)
        ]

    @staticmethod
    def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
        """Bytes that one block takes over all layers."""
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize


def _filled(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that are really written: `torch.zeros` leaves its pages for the kernel to hand out when first used."""
    return torch.empty(shape, dtype=dtype, device=device).zero_()
