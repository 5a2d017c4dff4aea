"""Runs `transformers.generate` with a static batch on the same weights and prompts."""

import time
from typing import Any

import torch

from benchmarks.gpu.clock import wait_for


@torch.inference_mode()
def decode_tokens_per_second(theirs: Any, prompts: list[list[int]], num_tokens: int) -> float:
    """Return the tokens per second after the first one, greedy, of all sequences together: the median of three runs.

    The time of the prompts is excluded: the time of one token is subtracted from the time of all.
    """
    device = theirs.device
    ids = torch.tensor(prompts, device=device)

    def generate(count: int) -> float:
        wait_for(device)
        began = time.perf_counter()
        theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        wait_for(device)
        return time.perf_counter() - began

    generate(2)
    rates = [len(prompts) * (num_tokens - 1) / (generate(num_tokens) - generate(1)) for _ in range(3)]
    return sorted(rates)[1]
