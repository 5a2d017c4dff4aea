"""Computes the feed-forward half of a block. It knows its two linear layers, but no residuals and norms.

Activations are left to `Linear` and `gated`, which keep them independent of the batch; see there.

Axes: rows, d, ff.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.config import Activation, ClampedGate
from model.kernels.rows import activate_times
from model.layers.attention_arithmetic import at_least_float32
from model.layers.dense_weight import activate, activate_in_any_batch
from model.layers.linear import Linear
from model.layers.lora import AdaptedRows, multiply
from model.layers.norm import row_means


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """A feed-forward, plain: down(act(up(x))), or gated (Shazeer 2020, arXiv:2002.05202): down(act(gate(x)) *
    up(x)).
    """

    up: Linear
    """[2 ff, d] with the gate's rows before its own: one product instead of two. Without a gate [ff, d], and it has the
    activation.
    """
    down: Linear
    gate: Activation | ClampedGate | None = None
    sparsity: float = 0.0
    """The share of a gate's numbers that `without_small` sets to 0 before the activation."""
    batch_invariant: bool = True

    def hidden(self, x: Tensor, adapted: AdaptedRows | None) -> Tensor:
        """Return the input of `down`, [rows, ff], from x [rows, d] as the rows' adapters change it."""
        if self.gate is not None or adapted is None:
            return self.apply_gate(multiply(self.up, x, adapted))
        hidden = self.up(x)
        for rows, change in adapted.changes(self.up, len(x)):  # what adapters add comes before the activation
            hidden[rows] = self.hidden_from(self.up.before_activation(x[rows]) + change(x[rows]), None)
        return hidden

    def before_activation(self, x: Tensor, adapted: AdaptedRows | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the input of the activation, [rows, ff], from x [rows, d] and, if gated, what its output is multiplied
        with. `adapted`: the adapters of these rows.
        """
        y = self.up.before_activation(x)
        if adapted is not None:
            y = adapted.add(self.up, x, y)
        if self.gate is None:
            return y, None
        pre, linear = y.chunk(2, -1)
        return pre, linear

    def hidden_from(self, pre: Tensor, linear: Tensor | None) -> Tensor:
        """Return the input of `down`, [rows, ff], from what `before_activation` returns: for the rows that a hook
        changes.
        """
        activation = self.gate or self.up.activation
        assert activation is not None
        linear = torch.ones_like(pre) if linear is None else linear
        return self._gated(torch.cat((pre, linear), -1), activation)

    def apply_gate(self, up: Tensor) -> Tensor:
        """Return the input of `down`, [rows, ff], from the output of `up`; without a gate they are the same."""
        return up if self.gate is None else self._gated(up, self.gate)

    def _gated(self, gate_up: Tensor, activation: Activation | ClampedGate) -> Tensor:
        if isinstance(activation, ClampedGate):
            return clamped(gate_up, activation, native=self.up.native)
        if self.sparsity:
            gate, up = gate_up.chunk(2, -1)
            gate_up = torch.cat((without_small(gate, self.sparsity), up), -1)
        return gated(gate_up, activation, native=self.up.native, batch_invariant=self.batch_invariant)


def without_small(x: Tensor, share: float) -> Tensor:
    """Return what is left of each row of x [rows, ff] above a number below which this share of it would be, if it were
    normally distributed: relu(x - mean - deviations * standard deviation) (Gemma 3n).
    """
    quantile = torch.tensor(share, dtype=torch.float32)  # its place is rounded so in any dtype, as in transformers
    deviations = float(math.sqrt(2) * torch.erfinv(2 * quantile - 1))
    mean = row_means(x)
    deviation = row_means((x - mean) ** 2).sqrt()  # torch's own, in float64, hangs on the number of rows
    return torch.relu(x - (mean + deviation * torch.tensor(deviations).to(x.device, x.dtype)))


def gated(gate_up: Tensor, activation: Activation, *, native: bool, batch_invariant: bool) -> Tensor:
    """Return activation(gate) * up [rows, ff] from gate_up [rows, 2 ff]: in each row the gate, then up.

    The activation is rounded to the dtype before the product, as in `transformers`. With our kernel, which
    `native` asks for, a row has the same bits whatever rows are next to it; without it, only if `batch_invariant`.
    """
    if native:
        return activate_times(gate_up.contiguous(), activation)
    gate, up = gate_up.chunk(2, -1)
    if batch_invariant:
        return activate_in_any_batch(gate, activation) * up
    return activate(gate, activation) * up


def clamped(gate_up: Tensor, clamps: ClampedGate, *, native: bool) -> Tensor:
    """Return what a clamped gate lets through, [rows, ff], from gate_up [rows, 2 ff]: in each row the gate, then up. A
    number has the same bits whatever is next to it; with our kernel, which `native` asks for, on every CPU.
    """
    gate, up = gate_up.to(at_least_float32(gate_up.dtype)).chunk(2, -1)
    gate, up = gate.clamp(max=clamps.limit) * clamps.alpha, (up.clamp(-clamps.limit, clamps.limit) + 1) / clamps.alpha
    if native:
        return activate_times(torch.cat((gate, up), -1), "silu").to(gate_up.dtype)
    return (activate_in_any_batch(gate, "silu") * up).to(gate_up.dtype)
