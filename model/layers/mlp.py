"""The feed-forward half of a block. Knows its two or three linear layers; refuses to know residuals and norms.

The activation, and the gate's product, are asked of `Linear`, which keeps them free of the batch; see there.

Axes: rows, d, ff.
"""

from functools import partial

import torch

from model.config import ModelConfig
from model.layers.int8_rows import Quantization
from model.layers.linear import Linear, activate


class Mlp:
    """Plain: down(act(up(x))). Gated (Shazeer 2020, arXiv:2002.05202): down(act(gate(x)) * up(x))."""

    def __init__(self, up: Linear, down: Linear, gate: Linear | None = None) -> None:
        """The activation belongs to `gate` where there is one, else to `up`."""
        self.up = up
        self.down = down
        self.gate = gate

    @classmethod
    def take(
        cls,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: ModelConfig,
        *,
        batch_invariant: bool,
        quantize: Quantization = "none",
    ) -> "Mlp":
        """Build block `prefix` ("layers.3") from `gate_up` or `up`, and `down`, which leave the dict.

        Raises KeyError when a weight is missing.
        """
        linear = partial(Linear, batch_invariant=batch_invariant, quantize=quantize)
        take = partial(Linear.take, weights, batch_invariant=batch_invariant, quantize=quantize)
        if not config.gated_mlp:
            return cls(take(f"{prefix}.up", activation=config.activation), take(f"{prefix}.down"))
        gate_weight, up_weight = weights.pop(f"{prefix}.gate_up.weight").chunk(2)
        bias = weights.pop(f"{prefix}.gate_up.bias", None)
        gate_bias, up_bias = (None, None) if bias is None else bias.chunk(2)
        gate = linear(gate_weight, gate_bias, activation=config.activation)
        return cls(linear(up_weight, up_bias), take(f"{prefix}.down"), gate)

    def before_activation(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, d] -> [rows, ff]: what the activation is given."""
        return (self.up if self.gate is None else self.gate).before_activation(x)

    def hidden_from(self, pre: torch.Tensor, linear: torch.Tensor | None) -> torch.Tensor:
        """What `down` is given, [rows, ff], from what the activation is given and, gated, what it is multiplied with.

        Row by row, since torch's activations are not free of the batch: this is for the few rows that somebody changes.
        """
        activation = (self.up if self.gate is None else self.gate).activation
        assert activation is not None
        hidden = torch.stack([activate(row, activation) for row in pre])
        return hidden if linear is None else hidden * linear

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, d] -> [rows, ff]: what `down` is given."""
        return self.up(x) if self.gate is None else self.up(x, times=self.gate(x))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, d] -> [rows, d]."""
        return self.down(self.hidden(x))
