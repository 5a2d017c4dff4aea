"""Behaviour of the network other than its numbers, for every kind of checkpoint: the largest logit, and missing stacks.

The numbers are checked in tests/model/checkpoint/test_every_family.py, the bits in batches in tests/server/engine.
"""

import math
from pathlib import Path

import pytest
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.row_search import largest
from tests import tiny
from tests.model.watching import BLOCK, CPU, load

ROPES = {f"llama-{name}" for name in tiny.ROPE_VARIANTS} - {"llama-longrope"}
"""Rope variants that one of them covers: they differ only in a row's tables, and
tests/model/checkpoint/test_every_family.py has others.
"""


@pytest.fixture(scope="module", params=[name for name in tiny.VARIANTS if name not in ROPES])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return load(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_largest_logit_is_the_same_whether_or_not_logits_are_made(
    folder: Path, model: Transformer, dtype: torch.dtype
) -> None:
    model = model if dtype == model.dtype else load(folder, dtype)
    if not model.config.has_head:
        pytest.skip("it computes no logits")
    hidden = torch.randn(70, model.config.hidden_size).to(dtype)
    for rows in (1, 9, 70):
        assert model.largest_logits(hidden[:rows]) == largest(model.logits(hidden[:rows], widen=False))
    hidden[3] = torch.inf  # the largest logit of such a row may be NaN, which equals nothing
    ids, numbers = model.largest_logits(hidden[:9])
    assert ids == largest(model.logits(hidden[:9], widen=False))[0]
    assert not math.isfinite(numbers[3])


def test_a_stack_that_is_not_there_is_named(model: Transformer) -> None:
    batch = Batch.unchunked([[5, 6]], BLOCK, CPU, [1])
    cache = KVCache(model.config, 4, BLOCK, model.dtype, CPU)
    if model.config.kind == "encoder":
        with pytest.raises(ValueError, match="has no decoder"):
            model.forward(batch, cache)
    if model.config.kind == "decoder":
        with pytest.raises(ValueError, match="has no encoder"):
            model.encode(batch)
    if not model.config.cross_attention:
        with pytest.raises(ValueError, match="has no cross attention"):
            model.write_cross_kv(torch.zeros(2, model.config.hidden_size), cache, batch.slots_array)


def test_spans_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="most layers first"):
        Batch([Span([1], 0, [1], 1), Span([1], 0, [2], 2)], BLOCK, CPU)
