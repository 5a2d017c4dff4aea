"""Computes a gated short convolution, which stands in place of attention in most layers of LFM2 (Liquid AI 2025,
arXiv:2511.23404): W_out (C * conv(B * x)), where B, C and x are parts of W_in n.

Axes: T rows that need this layer, d model width.
"""

from dataclasses import dataclass

from torch import Tensor

from model.hooks.hooks import LayerHooks, hooked
from model.layers.linear import Linear
from model.layers.lora import multiply
from model.network.convolution import Convolution
from model.network.sublayers import BlockInputs


@dataclass(frozen=True, slots=True, eq=False)
class ShortConvolution:
    """The convolution with its points."""

    into: Linear
    """[3 d, d]: the rows of B, of C, and of x."""
    convolution: Convolution
    out: Linear
    """[d, d]"""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return what the convolution adds: x [T, d] -> [T, d]; its last inputs are written to the states."""
        convolved, gate = self._convolve(x, step, layer_hooks)
        y = gate * convolved.to(gate.dtype)
        y = hooked(layer_hooks, "conv.hook_out", y)
        return multiply(self.out, y, step.adapted)

    def write_kv(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Write the last inputs of x [T, d] to the states, and do no more."""
        self._convolve(x, step, layer_hooks)

    def _convolve(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> tuple[Tensor, Tensor]:
        """Return the convolution's output and the gate that it is multiplied with, [T, d] each."""
        before, gate, x = multiply(self.into, x, step.adapted).chunk(3, -1)
        x = before * x
        x = hooked(layer_hooks, "conv.hook_in", x)
        assert step.kept is not None
        assert step.cache.states is not None
        return self.convolution(x, step.kept, step.cache.states), gate

    @property
    def linears(self) -> dict[str, Linear]:
        """Return its matrices by our names of their weights."""
        return {"conv_in": self.into, "conv_out": self.out}
