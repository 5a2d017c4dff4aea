"""Which layers multiply by the card's own kernel, and their results."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda.matmul import matmul
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.dense_weight import DenseWeight
from lightwell.model.layers.fp8_weight import LEAST_CAPABILITY
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.triton_grouped_weight import TritonGroupedWeight
from lightwell.model.loading.loader import build_model, load_model
from lightwell.model.network.transformer import Transformer
from tests import quantized_files as files
from tests.gguf_files import make_network, write_gguf
from tests.model.kernels.cuda.card import DEVICE, fresh_draw, normal

TRITON = KernelConfig("triton")


def logits(model: Transformer) -> torch.Tensor:
    """Return the logits of a prompt of 5 tokens."""
    cache = KVCache(model.cache_config, 3, 16, model.dtype, DEVICE, keys_in_rows=True)
    hidden = model.forward(Batch([Span([5, 9, 2, 7, 1], 0, [1], model.config.num_layers)], 16, DEVICE), cache)
    return model.logits(hidden)


def test_products_whose_rows_ignore_the_batch_are_the_cards() -> None:
    weight = normal(6, 8, dtype=torch.bfloat16)
    own = Linear(weight, kernels=TRITON).weight
    assert isinstance(own, DenseWeight)
    assert own.product is matmul
    others = (
        Linear(weight, kernels=TRITON, batch_invariant=False),
        Linear(weight.double(), kernels=TRITON),
        Linear(weight, kernels=KernelConfig("torch")),
        Linear(weight, kernels=KernelConfig("torch"), quantize="int8"),
    )
    for layer in others:
        assert isinstance(layer.weight, DenseWeight)
        assert layer.weight.product is not matmul


@pytest.mark.skipif(DEVICE.type == "cuda" and torch.cuda.get_device_capability() < LEAST_CAPABILITY, reason="no fp8")
@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", DEVICE.type.upper()),
    reason="this release of torch multiplies fp8 on cards only",
)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 48), (5, 70, 33), (0, 64, 48)])
def test_fp8_has_the_bits_that_torch_gives_it(rows: int, inputs: int, outputs: int) -> None:
    fresh_draw()
    weight, x = normal(outputs, inputs, dtype=torch.bfloat16), normal(rows, inputs, dtype=torch.bfloat16)
    ours, plain = (
        Linear(weight, kernels=kernels, quantize="fp8", batch_invariant=False, activation="silu")
        for kernels in (TRITON, KernelConfig("torch"))
    )
    assert torch.equal(ours(x), plain(x))


@pytest.mark.parametrize("name", ["gptq", "awq", "mxfp4", "int8", "inputs out of order"])
def test_a_quantised_checkpoint_stays_quantised_on_a_card_with_the_bits_of_its_dense_form(
    name: str, tmp_path: Path
) -> None:
    network = make_network("llama", head_dim=32, intermediate_size=192, num_hidden_layers=1)
    formats = {"gptq": files.gptq(), "awq": files.awq(), "mxfp4": files.mxfp4()}
    formats |= {"int8": files.int_quantized(torch.float32), "inputs out of order": files.gptq(in_order=False)}
    files.write_checkpoint(network, formats[name], tmp_path)
    config = read_config(tmp_path)
    model = load_model(tmp_path, config, torch.bfloat16, DEVICE, kernels=TRITON, batch_invariant=True)
    weights = load_weights(tmp_path, config, torch.bfloat16, DEVICE)
    dense = build_model(config, weights, context=64, kernels=TRITON, batch_invariant=True)
    kept = [isinstance(matrix.weight, TritonGroupedWeight) for matrix in model.matrices]
    assert set(kept[:-1]) == {name != "inputs out of order"}  # the last is the head, of 16 bits in these files
    assert torch.equal(logits(model), logits(dense))


def test_a_tied_table_is_stored_once_and_int4_weights_are_quantised_on_the_card(tmp_path: Path) -> None:
    network = make_network("llama", tie_word_embeddings=True, num_hidden_layers=1)
    write_gguf(network, "llama", Type.Q8_0, tmp_path / "a.gguf")
    folder = resolve(str(tmp_path / "a.gguf"))
    config = read_config(folder)
    model = load_model(folder, config, torch.bfloat16, DEVICE, kernels=TRITON, batch_invariant=True)
    assert model.head is not None
    assert isinstance(model.head.weight, TritonGroupedWeight)
    assert model.tokens.stored == model.head.weight.stored
    ids = torch.tensor([0, 95, 3], device=DEVICE)
    assert torch.equal(model.tokens(ids).cpu(), model.head.to_dense()[ids.cpu()])
    wide = load_model(folder, config, torch.float32, DEVICE, kernels=TRITON)
    assert {matrix.weight.stored for matrix in wide.matrices} == {"float32"}  # else each product would dequantise
    small = load_model(folder, config, torch.bfloat16, DEVICE, kernels=TRITON, quantize="int4")
    assert all(isinstance(matrix.weight, TritonGroupedWeight) for matrix in small.matrices)
    assert logits(small).isfinite().all()
