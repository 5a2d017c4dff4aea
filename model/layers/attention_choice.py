"""Which attention serves a dtype on a device. Knows what each can do; computes nothing."""

import torch

from model.layers.arrays import why_not_compiled
from model.layers.attention import Attention, CompiledAttention, PlainAttention
from model.layers.attention_arithmetic import InvariantArithmetic
from model.layers.batched_attention import BatchedAttention


def attention_for(dtype: torch.dtype, device: torch.device, *, batch_invariant: bool) -> Attention:
    """The fastest way that can serve these; compiled it is batch invariant in any case."""
    if why_not_compiled(dtype, device) is None:
        return CompiledAttention()
    return PlainAttention(InvariantArithmetic()) if batch_invariant else BatchedAttention()
