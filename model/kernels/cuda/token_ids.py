"""Takes the tokens of a step from the one before, of which the host has not yet heard. It knows numbers only."""

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
    """Return token ids [T] int64: those of token_ids [T] int32 that are not negative, and for -1 - i element i of last
    [n] int64, the tokens that the step before has chosen.
    """
    out = torch.empty(token_ids.shape, dtype=torch.int64, device=token_ids.device)
    known_tokens_kernel[(triton.cdiv(len(token_ids), _BLOCK),)](token_ids, last, out, len(token_ids), BLOCK=_BLOCK)
    return out
