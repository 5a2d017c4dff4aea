"""Chooses the attention for a dtype on a device. It knows what each can do; it computes nothing."""

import torch

from model.kernels.choice import KernelConfig
from model.layers.attention import Attention, NativeAttention, PlainAttention
from model.layers.attention_arithmetic import Arithmetic, InvariantArithmetic
from model.layers.batched_attention import BatchedAttention


def attention_for(
    dtype: torch.dtype,
    device: torch.device,
    *,
    kernels: KernelConfig,
    batch_invariant: bool,
    has_sinks: bool = False,
) -> Attention:
    """Return the fastest attention that supports these; our kernels are batch invariant in any case, a card's know no
    sinks.
    """
    if kernels.why_not_native(dtype, device) is None:
        return NativeAttention()
    arithmetic = InvariantArithmetic() if batch_invariant else Arithmetic()
    if kernels.uses_triton(dtype, device) and not has_sinks:
        from model.layers.triton_attention import TritonAttention  # here: it imports Triton, which a CPU does not need

        return TritonAttention(arithmetic)
    return PlainAttention(arithmetic) if batch_invariant else BatchedAttention()
