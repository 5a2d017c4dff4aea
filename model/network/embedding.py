"""Embedding of token ids: the input of the first block.

Axes: T rows, d model width, e width of the token table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.hooks import LayerHooks, hooked, normed
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.rows import embed
from lightwell.model.layers.device_batch import DeviceBatch
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.norm import LayerNorm, Norm
from lightwell.model.layers.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Embedding:
    """norm(project(scale * token) + token type + position); each family has some of these parts."""

    tokens: TokenTable
    """The token table, [vocab, e]; both stacks of an encoder-decoder share it."""
    scale: Tensor | None
    """A number, of the tables' dtype, or None."""
    project: Linear | None
    """[d, e]"""
    positions: Tensor | None
    """[context, d]: row 0 is for position 0."""
    token_types: Tensor | None
    """[types, d]: row 0 is for a text, row 1 for the second one of a pair."""
    norm: Norm | None
    at_once: Callable[[Batch | DeviceBatch], Tensor] | None
    """The whole embedding in one kernel, with the same bits, or None if no kernel supports it."""

    def __call__(self, batch: Batch | DeviceBatch, layer_hooks: LayerHooks | None = None) -> Tensor:
        """Return the vectors [T, d] of the batch's tokens at their positions."""
        if self.at_once is not None and layer_hooks is None:
            return self.at_once(batch)
        types = batch.token_types
        x = self.tokens(batch.token_ids)  # [T, e]
        if self.scale is not None:
            x = x * self.scale
        if self.project is not None:
            x = self.project(x)  # [T, d]
        x = hooked(layer_hooks, "hook_embed", x)
        if self.token_types is not None:
            of_type = self.token_types[0].expand(len(x), -1) if types is None else self.token_types[types]
            x = x + hooked(layer_hooks, "hook_token_type_embed", of_type)
        if self.positions is not None:
            x = x + hooked(layer_hooks, "hook_pos_embed", self.positions[batch.positions])
        return normed(self.norm, "embed_norm", x, layer_hooks)


def embed_at_once(
    tokens: TokenTable, token_types: Tensor | None, positions: Tensor | None, norm: Norm | None, kernels: KernelConfig
) -> Callable[[Batch | DeviceBatch], Tensor] | None:
    """Return LayerNorm(token + token type + position) in one kernel, or None if no kernel supports it."""
    table = tokens.dense
    if type(tokens) is not TokenTable or table is None:  # ranks with a part of the table sum their rows
        return None
    if not isinstance(norm, LayerNorm) or kernels.why_not_native(table.dtype, table.device) is not None:
        return None
    parts = table, token_types, positions, norm.weight, norm.bias, norm.eps
    return lambda batch: embed(batch.token_ids, batch.token_types, batch.positions, *parts)


def sinusoids(num_positions: int, width: int) -> Tensor:
    """Return the positions of Vaswani et al. 2017 (arXiv:1706.03762), section 3.5, [num_positions, width] float64, in
    Marian's order: all sines, then all cosines.
    """
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()[:, : width // 2]), 1)
