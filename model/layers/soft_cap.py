"""Soft cap of logits (Gemma 2: Gemma Team 2024, arXiv:2408.00118, section 2)."""

import torch
from torch import Tensor

from lightwell.model.kernels import rows
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.layers.fixed_shapes import whole_vectors


def soft_cap(logits: Tensor, cap: float, kernels: KernelConfig = AUTO) -> Tensor:
    """Return cap * tanh(logits / cap), [n, vocab]. The argument may be overwritten.

    On a CPU our kernel or `whole_vectors` computes it, since the last bits of torch.tanh depend on an element's place.
    """
    if kernels.why_not_native(logits.dtype, logits.device) is not None or logits.dtype != torch.float32:
        return cap * whole_vectors(torch.tanh, logits / cap)
    logits = logits.contiguous()
    rows.soft_cap(logits, cap)
    return logits
