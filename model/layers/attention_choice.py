"""Which attention serves a dtype on a device. Knows what each can do; computes nothing."""

import torch

from model.kernels.choice import why_not_native
from model.layers.attention import Attention, NativeAttention, PlainAttention
from model.layers.attention_arithmetic import InvariantArithmetic
from model.layers.batched_attention import BatchedAttention


def attention_for(dtype: torch.dtype, device: torch.device, *, batch_invariant: bool) -> Attention:
    """The fastest way that can serve these; ours is batch invariant in any case."""
    if why_not_native(dtype, device) is None:
        return NativeAttention()
    return PlainAttention(InvariantArithmetic()) if batch_invariant else BatchedAttention()
