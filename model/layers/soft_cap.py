"""Soft capping of logits (Gemma 2: Gemma Team 2024, arXiv:2408.00118, section 2). Knows numbers, not their use."""

import torch

from model.kernels import rows
from model.kernels.choice import why_not_native
from model.layers.fixed_shapes import whole_vectors


def soft_cap(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(logits / cap): [n, vocab] -> the same shape; the argument may be overwritten.

    By our kernel or by whole vectors on a CPU, since torch's tanh gives an element other last bits by its place among
    the rows.
    """
    if why_not_native(logits.dtype, logits.device) is not None or logits.dtype != torch.float32:
        return cap * whole_vectors(torch.tanh, logits / cap)
    logits = logits.contiguous()
    rows.soft_cap(logits, cap)
    return logits
