"""An embedding in one pass has the bits of its parts, one after another."""

from dataclasses import replace

import pytest
import torch

from model.batch import Batch
from model.checkpoint.registry import read_config
from model.config import ModelConfig
from model.kernels.choice import AUTO
from model.layers.token_table import TokenTable
from model.loading.stack_builder import StackBuilder
from tests import tiny
from tests.network import CPU


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return read_config(tiny.make_variant("bert", tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize("count", [1, 5, 130])
@pytest.mark.parametrize("width", [64, 41])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("added", ["type and position", "type", "position", "nothing"])
def test_an_embedding_in_one_pass_has_the_bits_of_its_parts(
    bert: ModelConfig, added: str, dtype: torch.dtype, width: int, count: int
) -> None:
    generator = torch.Generator().manual_seed(count)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    weights = {"embed_norm.weight": numbers(width), "embed_norm.bias": numbers(width)}
    if "type" in added:
        weights["token_type_embed.weight"] = numbers(2, width)
    if "position" in added:
        weights["pos_embed.weight"] = numbers(200, width)
    tokens = TokenTable(numbers(50, width))
    config = replace(bert, hidden_size=width)
    embedding = StackBuilder(config, weights, tokens, 200, kernels=AUTO, batch_invariant=True).embedding()
    assert not weights
    assert embedding.at_once is not None
    ids = torch.randint(50, (count,), generator=generator).tolist()
    batch = Batch.unchunked([ids[:1], ids[-count:]], 16, CPU, [1, 1])
    assert torch.equal(embedding(batch), replace(embedding, at_once=None)(batch))
