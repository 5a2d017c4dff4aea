"""A graph of the device's sampler, captured once, works for any rows. Without a GPU the captured function is called
instead of replayed.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lightwell.model.sampling.device_edits import EditCapacity, PackedEdits, RowEdits, edited
from lightwell.model.sampling.device_rows import Kind, pack, packed_size, unpack
from lightwell.model.sampling.device_sampler import DeviceSampler, score_type
from lightwell.model.sampling.sampler import Sampler
from tests.model.sampling.rows import make_logits, make_row

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")]
CASES = [
    ("cpu", torch.bfloat16, 300),  # test_device_sampler.py compares others without a graph
    *(
        pytest.param("cuda", dtype, vocab_size, marks=ON_GPU)
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
        for vocab_size in (300, 4096, 50257)
    ),
]
ROWS = 6
CAPACITY = EditCapacity(ROWS, 100, 400)


class Step:
    """A step's input on the device, and a graph from it to the result, with edits and log-probabilities."""

    def __init__(self, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.logits = torch.zeros(ROWS, vocab_size, dtype=dtype, device=device)
        self.packed = torch.zeros(packed_size(ROWS), dtype=torch.int64, device=device)
        self.cells = torch.zeros(CAPACITY.packed_size, dtype=torch.int64, device=device)
        self.sampler = DeviceSampler(vocab_size)
        self.replay = self.captured() if device.type == "cuda" else self.compute

    def compute(self) -> torch.Tensor:
        scores = edited(self.logits, self.cells, CAPACITY, score_type(self.logits))
        return self.sampler.sample(Kind(7), self.logits, self.packed, edited=scores, logprobs=20)

    def captured(self) -> Callable[[], torch.Tensor]:
        self.compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self.compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


@pytest.mark.parametrize(("name", "dtype", "vocab_size"), CASES)
def test_a_graph_answers_as_the_plain_sampler_on_its_device(name: str, dtype: torch.dtype, vocab_size: int) -> None:
    device, rng = torch.device(name), random.Random(vocab_size)
    step, plain = Step(vocab_size, dtype, device), Sampler(vocab_size, device)
    for seed in range(20):
        logits = make_logits(ROWS, vocab_size, seed, dtype)
        if seed % 2:
            logits = (logits * 4).round() / 4
        rows = [make_row(vocab_size, rng) for _ in range(rng.randrange(1, ROWS + 1))]
        packed, places = np.zeros(step.packed.shape, np.int64), np.zeros(step.cells.shape, np.int64)
        pack(rows, packed)
        edits = PackedEdits(vocab_size)
        for r, row in enumerate(rows):
            edits.add(r, RowEdits(row.params, vocab_size, row.num_prompt_tokens), row.token_ids)
        edits.pack(places, CAPACITY)
        for there, here in ((step.logits, logits), (step.packed, packed), (step.cells, places)):
            there.copy_(torch.as_tensor(here))
        found = unpack(step.replay().cpu().numpy()[: len(rows)], rows)
        assert found == plain.sample(step.logits[: len(rows)], rows), seed
