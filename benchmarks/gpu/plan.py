"""The measurements and their sizes: a card's, or small ones with which tests run the same code paths."""

from dataclasses import dataclass

import torch

from benchmarks.gpu.networks import LARGE, SMALL, TINY, Network
from lightwell.model.kernels.choice import AUTO, KernelConfig


@dataclass(frozen=True)
class Crowd:
    network: Network = TINY
    requests: int = 12
    longest_prompt: int = 300
    longest_answer: int = 40
    context: int = 512


@dataclass(frozen=True)
class Plan:
    """All sizes of a run; the defaults are for a card."""

    small: Network = SMALL
    large: Network = LARGE
    dtype: torch.dtype = torch.bfloat16
    kernels: KernelConfig = AUTO
    block_size: int = 32
    rows: tuple[int, int, int] = (1, 32, 256)
    """Sequences at once that decode; the bars are for these three."""
    peer_rows: tuple[int, ...] = (1, 32)
    """Batch sizes that `transformers` decodes too; a subset of the batch sizes above."""
    prompt: int = 256
    answer: int = 128
    repeats: int = 3
    calls: int = 10
    """Consecutive calls of a graph when only the graph is timed."""
    long_prompt: int = 2048
    batched_tokens: int = 1 << 14
    """Most tokens of a step while only decoding is measured: then all prompts are soon read."""
    attention_keys: int = 1024
    looking_streams: int = 8
    looking_answer: int = 128
    looking_runs: int = 5
    mixed_streams: int = 32
    mixed_steps: int = 400
    mixed_tokens: int = 2048
    """Most tokens of a step with streams and prompts."""
    mixed_prompt: int = 512
    mixed_every: int = 8
    """Steps from one new prompt to the next."""
    start_seqs: int = 64
    start_tokens: int = 2048
    crowd: Crowd = Crowd()
    num_bytes: int = 1 << 31
    """Bytes that are read to measure the bandwidth."""
    matrix: int = 8192
    """Rows and columns of the matrices by which the rate of products is measured."""

    @property
    def context(self) -> int:
        """Return the context length of the engines: that required by the longest stream."""
        return self.prompt + max(self.answer, self.looking_answer)

    @property
    def mixed_context(self) -> int:
        """Return the context length where streams decode while prompts arrive."""
        return max(self.prompt + self.mixed_steps + 1, self.mixed_prompt + self.mixed_every + 1)
