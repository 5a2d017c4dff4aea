"""Feed-forward networks of a block, without residuals and norms.

Axes: rows, d, ff.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.config import Activation, ClampedGate
from lightwell.model.kernels.rows import activate_times, drop_small
from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.dense_weight import activate
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import AdaptedRows, multiply
from lightwell.model.layers.norm import row_means


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """A feed-forward network: down(act(up(x))), or gated: down(act(gate(x)) * up(x)) (Shazeer, arXiv:2002.05202)."""

    up: Linear
    """[2 ff, d]: the gate's rows, then the rows of up, in one product. Without a gate [ff, d], with the activation."""
    down: Linear
    gate: Activation | ClampedGate | None = None
    sparsity: float = 0.0
    """The share of the gate's numbers that `without_small` sets to 0 before the activation."""
    batch_invariant: bool = True

    def hidden(self, x: Tensor, adapted: AdaptedRows | None) -> Tensor:
        """Return the input of `down`, [rows, ff], for x [rows, d] and the rows' adapters."""
        if self.gate is not None or adapted is None:
            return self.apply_gate(multiply(self.up, x, adapted))
        hidden = self.up(x)
        for rows, change in adapted.changes(self.up, len(x)):  # adapters add before the activation
            hidden[rows] = self.hidden_from(self.up.before_activation(x[rows]) + change(x[rows]), None)
        return hidden

    def before_activation(self, x: Tensor, adapted: AdaptedRows | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the input of the activation, [rows, ff], for x [rows, d] and the rows' adapters, and the factor of
        the activation's output, [rows, ff], or None without a gate.
        """
        y = self.up.before_activation(x)
        if adapted is not None:
            y = adapted.add(self.up, x, y)
        if self.gate is None:
            return y, None
        pre, linear = y.chunk(2, -1)
        return pre, linear

    def hidden_from(self, pre: Tensor, linear: Tensor | None) -> Tensor:
        """Return the input of `down`, [rows, ff], from results of `before_activation`, for rows that hooks change."""
        activation = self.gate or self.up.activation
        assert activation is not None
        linear = torch.ones_like(pre) if linear is None else linear
        return self._gated(torch.cat((pre, linear), -1), activation)

    def apply_gate(self, up: Tensor) -> Tensor:
        """Return the input of `down`, [rows, ff], from the output of `up`, which it equals without a gate."""
        return up if self.gate is None else self._gated(up, self.gate)

    def _gated(self, gate_up: Tensor, activation: Activation | ClampedGate) -> Tensor:
        if isinstance(activation, ClampedGate):
            return clamped(gate_up, activation, native=self.up.native)
        if self.sparsity:
            gate, up = gate_up.chunk(2, -1)
            gate_up = torch.cat((without_small(gate, self.sparsity, native=self.up.native), up), -1)
        return gated(gate_up, activation, native=self.up.native, batch_invariant=self.batch_invariant)


def deviations_of(share: float) -> float:
    """Return the quantile of the normal distribution at `share`."""
    quantile = torch.tensor(share, dtype=torch.float32)  # float32 for every dtype, as in transformers
    return float(math.sqrt(2) * torch.erfinv(2 * quantile - 1))


def without_small(x: Tensor, share: float, *, native: bool = False) -> Tensor:
    """Return relu(x - mean - deviations * standard deviation) of each row of x [rows, ff] (Gemma 3n), with
    `deviations_of(share)`: this share of normally distributed numbers becomes 0. native: by our kernel.
    """
    deviations = deviations_of(share)
    if native:
        x = x.clone(memory_format=torch.contiguous_format)
        drop_small(x, deviations)
        return x
    mean = row_means(x)
    deviation = row_means((x - mean) ** 2).sqrt()  # in float64, bits of torch.std depend on the number of rows
    return torch.relu(x - (mean + deviation * torch.tensor(deviations).to(x.device, x.dtype)))


def gated(gate_up: Tensor, activation: Activation, *, native: bool, batch_invariant: bool) -> Tensor:
    """Return activation(gate) * up [rows, ff] from gate_up [rows, 2 ff]; each row holds the gate, then up.

    The activation is rounded to the dtype before the product, as in `transformers`. Rows have the same bits in any
    batch with our kernel (`native`) or with `batch_invariant`.
    """
    if native:
        return activate_times(gate_up.contiguous(), activation)
    gate, up = gate_up.chunk(2, -1)
    return activate(gate, activation, batch_invariant=batch_invariant) * up


def clamped(gate_up: Tensor, clamps: ClampedGate, *, native: bool) -> Tensor:
    """Return the output of a clamped gate (gpt-oss), [rows, ff], from gate_up [rows, 2 ff], which holds the gate, then
    up, in each row.

    Numbers have the same bits in any batch; with our kernel (`native`) also on every CPU.
    """
    gate, up = gate_up.to(at_least_float32(gate_up.dtype)).chunk(2, -1)
    gate, up = gate.clamp(max=clamps.limit) * clamps.alpha, (up.clamp(-clamps.limit, clamps.limit) + 1) / clamps.alpha
    if native:
        return activate_times(torch.cat((gate, up), -1), "silu").to(gate_up.dtype)
    return (activate(gate, "silu", batch_invariant=True) * up).to(gate_up.dtype)
