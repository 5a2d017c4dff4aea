"""The program of a stack, run by the card's kernels: against the separate blocks in torch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.batch import Batch, Span
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.program.steps import AddRows, JoinRows, NormRows, NormWeights, ScaleRows
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.gpu_program import ASIDE, NORMED, OUT, STREAM, Addition, fused
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.model.kernels.cuda.card import DEVICE, fresh_draw
from tests.server.engine.driving import load

pytestmark = [] if IS_INTERPRETED else [pytest.mark.gpu]
BLOCK = 16
FEW = ("gpt2", "gpt_oss", "qwen2_moe", "lfm2", "qwen3_5")
MORE = ("gemma3", "gemma4-e2b", "gemma4-experts", "gpt_neox", "granite4-experts", "olmo2", "opt-post", "phi3-long")


def outputs(model: Transformer, texts: tuple[list[int], list[int]]) -> Tensor:
    """Return the logits of two texts: read whole, without an output first, in a piece, and one token at a time."""
    layers, device = model.config.num_layers, model.device
    cache = KVCache(model.cache_config, 9, BLOCK, model.dtype, device, keys_in_rows=model.keys_in_rows, num_sequences=2)
    hidden = []
    for step, cuts in enumerate((((0, 19), (0, 5)), ((19, 20), (5, 9)), ((20, 21), (9, 10)))):
        spans = [
            Span(
                text[start:end], start, range(1 + 3 * i, 4 + 3 * i), layers, needs_output=step > 0 or i == 0,
                states=(1 + 2 * i + step % 2, 2 + 2 * i - step % 2),
            )
            for i, (text, (start, end)) in enumerate(zip(texts, cuts, strict=True))
        ]  # fmt: skip
        hidden.append(model.forward(Batch(spans, BLOCK, device), cache))
    return model.logits(torch.cat(hidden))


def test_an_addition_and_the_norms_around_it_are_one_launch() -> None:
    norms = [NormWeights(torch.ones(8), eps) for eps in (0.1, 0.2, 0.3)]
    steps = [
        NormRows(norms[0], NORMED, NORMED), AddRows(0.5), NormRows(norms[1], STREAM, STREAM), ScaleRows(2.0),
        NormRows(norms[2], STREAM, NORMED), ScaleRows(3.0, NORMED), JoinRows(), NormRows(norms[0], STREAM, OUT),
    ]  # fmt: skip
    assert list(fused(steps)) == [
        (0, Addition((NORMED,), 0.5, 2.0, *norms)),
        (5, steps[5]),
        (6, Addition((NORMED, ASIDE), before=norms[0], target=OUT)),
    ]


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)])
def test_the_kernels_give_the_numbers_of_the_separate_blocks(name: str, tmp_path: Path) -> None:
    rng = fresh_draw()
    texts = tuple([rng.randrange(2, tiny.VOCAB_SIZE) for _ in range(21)] for _ in range(2))
    folder = tiny.make_variant(name, tmp_path)
    ours, plain = (
        load(folder, torch.float32, DEVICE, kernels=KernelConfig(kernels)) for kernels in ("triton", "torch")
    )
    assert ours.decoder is not None
    assert ours.decoder.gpu_program is not None
    found, expected = outputs(ours, (texts[0], texts[1])), outputs(plain, (texts[0], texts[1]))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
