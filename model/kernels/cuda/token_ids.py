"""Replacement of placeholders by the previous step's tokens, which the host has not received yet."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def known_tokens_kernel(token_ids, last, out, count, BLOCK: tl.constexpr):
    """Compute BLOCK tokens: grid (blocks,)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(token_ids + at, mask=at < count, other=0)
    is_later = token < 0
    found = tl.load(last - (token + 1), mask=is_later & (at < count), other=0)
    tl.store(out + at, tl.where(is_later, found, token.to(tl.int64)), mask=at < count)


def known_tokens(token_ids: Tensor, last: Tensor) -> Tensor:
    """Return token ids [T] int64: token_ids [T] int32, with -1 - i replaced by element i of last [n] int64, the tokens
    of the previous step.
    """
    out = torch.empty(token_ids.shape, dtype=torch.int64, device=token_ids.device)
    known_tokens_kernel[(triton.cdiv(len(token_ids), _BLOCK),)](token_ids, last, out, len(token_ids), BLOCK=_BLOCK)
    return out
