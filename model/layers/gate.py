"""The middle of a gated feed-forward (Shazeer 2020, arXiv:2002.05202): activation(gate) * up. Knows numbers alone.

Axes: rows, ff.
"""

import torch

from model.config import Activation
from model.kernels.choice import why_not_native
from model.kernels.rows import activate_times
from model.layers.dense_weight import activate, activate_in_any_batch


def gated(gate_up: torch.Tensor, activation: Activation, *, batch_invariant: bool) -> torch.Tensor:
    """[rows, 2 ff], in each row what the activation is given and then what multiplies it -> [rows, ff].

    The activation is rounded to the type of the numbers before the product, as `transformers` does. By our
    kernel where there is one, and then the same for a row whatever stands beside it; else so if `batch_invariant`.
    """
    if why_not_native(gate_up.dtype, gate_up.device) is None:
        return activate_times(gate_up.contiguous(), activation)
    gate, up = gate_up.chunk(2, -1)
    if batch_invariant:
        return activate_in_any_batch(gate, activation) * up
    return activate(gate, activation) * up
