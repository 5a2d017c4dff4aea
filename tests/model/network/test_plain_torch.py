"""A network that runs with torch only."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.model.kernels import library
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from tests import tiny
from tests.model.sampling.rows import params
from tests.model.watching import Watched, load, run, token_ids

VARIANTS = [name for name in tiny.VARIANTS if name.removeprefix("llama-") not in tiny.ROPE_VARIANTS]


@pytest.mark.parametrize("name", VARIANTS)
def test_no_kernel_runs_where_plain_torch_was_chosen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, kernel: str, *_: Any) -> None:
        raise AssertionError(f"the kernel {kernel} ran")

    folder = tiny.make_variant(name, tmp_path)
    monkeypatch.setattr(library.Kernels, "call", refuse)
    for dtype in (torch.float32, torch.bfloat16):
        model = load(folder, dtype, KernelConfig("torch"))
        (seen,) = run(model, [Watched(token_ids(20), token_ids(9) if model.config.encoder else [])], chunk=7)
        if model.config.has_head:
            model.largest_logits(seen.hidden)
            sampler = Sampler(model.config.vocab_size, kernels=model.kernels)
            sampler.sample(model.logits(seen.hidden[:2], widen=False), [SamplerRow(params(temperature=0.0), 20)] * 2)
