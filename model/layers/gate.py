"""Computes the middle of a gated feed-forward (Shazeer 2020, arXiv:2002.05202): activation(gate) * up. It knows numbers
alone.

Axes: rows, ff.
"""

import torch

from model.config import Activation
from model.kernels.rows import activate_times
from model.layers.dense_weight import activate, activate_in_any_batch


def gated(gate_up: torch.Tensor, activation: Activation, *, native: bool, batch_invariant: bool) -> torch.Tensor:
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
