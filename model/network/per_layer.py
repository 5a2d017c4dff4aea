"""Per-layer token embeddings (Gemma 4): an additional input of each layer, and the sublayer that adds it.

Axes: T rows, L layers, P width of a layer's inputs, d model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import Activation
from lightwell.model.hooks.hooks import LayerHooks, hooked
from lightwell.model.layers.device_batch import DeviceBatch
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import multiply
from lightwell.model.layers.mlp import gated
from lightwell.model.layers.norm import Norm
from lightwell.model.layers.token_table import TokenTable
from lightwell.model.network.sublayers import BlockInputs


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerInputs:
    """Computes the inputs of all layers from each token and from its vector."""

    table: TokenTable
    """[entries, L P]. Tokens without an entry use the first one."""
    num_entries: int
    scale: Tensor
    """The factor of the table's rows, a number of its dtype."""
    project: Linear
    """[L P, d]"""
    norm: Norm
    """A norm over P."""

    def __call__(self, batch: Batch | DeviceBatch, x: Tensor) -> Tensor:
        """Return the layers' inputs [T, L, P] for the batch's tokens and their vectors x [T, d]."""
        width = self.norm.weight.shape[0]
        of_vectors = self.norm((self.project(x) * x.shape[-1] ** -0.5).view(-1, width)).view(len(x), -1, width)
        ids = batch.token_ids
        of_tokens = (self.table(ids.where(ids < self.num_entries, 0)) * self.scale).view(of_vectors.shape)
        return (of_vectors + of_tokens) * 2**-0.5


@dataclass(frozen=True, slots=True, eq=False)
class PerLayer:
    """The last sublayer of a block: the layer's inputs, gated by the residual stream."""

    gate: Linear
    """[P, d]"""
    out: Linear
    """[d, P]"""
    activation: Activation
    batch_invariant: bool

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the output: x [T, d] -> [T, d]."""
        assert step.of_tokens is not None
        given = hooked(layer_hooks, "hook_per_layer_input", step.of_tokens[: len(x)])
        both = torch.cat((multiply(self.gate, x, step.adapted), given), -1)
        hidden = gated(both, self.activation, native=self.gate.native, batch_invariant=self.batch_invariant)
        return multiply(self.out, hidden, step.adapted)
