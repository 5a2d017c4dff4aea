"""Computes what each layer gets of the tokens themselves, beside the residual stream, and what it adds of it (Gemma 4).
It knows no residuals and no caches.

Axes: T rows, L layers, P numbers of a layer, d model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.batch import Batch
from model.config import Activation
from model.hooks.hooks import LayerHooks, hooked
from model.layers.linear import Linear
from model.layers.lora import multiply
from model.layers.mlp import gated
from model.layers.norm import Norm
from model.layers.token_table import TokenTable
from model.network.sublayers import BlockInputs


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerInputs:
    """Computes what all layers get of the tokens: of each token, and of its vector."""

    table: TokenTable
    """[entries, L P]. Tokens that it has no entry for get the first."""
    num_entries: int
    scale: Tensor
    """A number, of the table's dtype: of its rows."""
    project: Linear
    """[L P, d]"""
    norm: Norm
    """A norm over P."""

    def __call__(self, batch: Batch, x: Tensor) -> Tensor:
        """Return what the layers get [T, L, P] of the batch's tokens and their vectors x [T, d]."""
        width = self.norm.weight.shape[0]
        of_vectors = self.norm((self.project(x) * x.shape[-1] ** -0.5).view(-1, width)).view(len(x), -1, width)
        ids = batch.token_ids
        of_tokens = (self.table(ids.where(ids < self.num_entries, 0)) * self.scale).view(of_vectors.shape)
        return (of_vectors + of_tokens) * 2**-0.5


@dataclass(frozen=True, slots=True, eq=False)
class PerLayer:
    """Computes what a block adds last: its residual stream, as far as the layer's inputs let it through."""

    gate: Linear
    """[P, d]"""
    out: Linear
    """[d, P]"""
    activation: Activation
    batch_invariant: bool

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the output: x [T, d] -> [T, d]."""
        assert step.of_tokens is not None
        given = step.of_tokens[: len(x)]
        given = hooked(layer_hooks, "hook_per_layer_input", given)
        both = torch.cat((multiply(self.gate, x, step.adapted), given), -1)
        hidden = gated(both, self.activation, native=self.gate.native, batch_invariant=self.batch_invariant)
        return multiply(self.out, hidden, step.adapted)
