"""Runs an mlp and a mixture of experts side by side, each with norms of its own (Gemma 4). It knows no residuals.

Axes: T rows, d model width.
"""

from dataclasses import dataclass

from torch import Tensor

from model.hooks.hooks import LayerHooks, hooked, normed
from model.layers.norm import Norm
from model.network.sublayers import BlockInputs, Feedforward, MixedFeedforward


@dataclass(frozen=True, slots=True, eq=False)
class DenseAndExperts:
    """The sum of what an mlp and experts make of the stream. The router reads the stream as it is."""

    dense: Feedforward
    experts: MixedFeedforward
    before_dense: Norm
    after_dense: Norm
    before_experts: Norm
    after_experts: Norm

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the sum: x [T, d] -> [T, d]."""
        dense = self.dense(normed(self.before_dense, "ln2", x, layer_hooks), step, layer_hooks)
        dense = hooked(layer_hooks, "mlp.hook_dense_out", self.after_dense(dense))
        experts = self.after_experts(self.experts.of(self.before_experts(x), x, layer_hooks))
        return dense + hooked(layer_hooks, "mlp.hook_experts_out", experts)
