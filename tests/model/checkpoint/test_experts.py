"""Mixtures of experts in the forms in which files hold them: stacked, interleaved, quantised."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.kernels.choice import KernelChoice, KernelConfig
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.loading.loader import load_model
from lightwell.model.network.sublayers import MixedFeedforward
from lightwell.server.config.memory_estimate import kept_bytes
from tests import quantized_files as files
from tests import reference, tiny
from tests.network import CPU, logits_alone, look_at_everything, worst


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Write a gpt-oss with experts that are quantised as OpenAI publishes them."""
    folder = tiny.make("gpt_oss", tmp_path / "mxfp4", hidden_size=64, intermediate_size=32, tie_word_embeddings=False)
    stored = load_file(folder / "model.safetensors")
    for name in [name for name in stored if name.endswith("_proj")]:
        num_experts, inputs, outputs = stored.pop(name).shape
        parts, _ = files.mxfp4().write(num_experts * outputs, inputs)
        stored[f"{name}_blocks"] = parts["weight_blocks"].view(num_experts, outputs, -1, 16)
        stored[f"{name}_scales"] = parts["weight_scales"].view(num_experts, outputs, -1)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    files.set_fields(folder, files.mxfp4().fields)
    return folder


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_experts_in_mxfp4_compute_what_transformers_makes_of_the_file(published: Path, kernels: KernelChoice) -> None:
    ids = torch.randint(5, tiny.VOCAB_SIZE, (50,)).tolist()
    with torch.inference_mode():
        expected = tiny.theirs(published, torch.float32)(torch.tensor([ids])).logits[0]
    config = read_config(published)
    model = load_model(published, config, torch.float32, CPU, kernels=KernelConfig(kernels))
    assert (logits_alone(model, ids, []) - expected).abs().max() <= 1e-4
    assert model.decoder is not None
    for block in model.decoder.blocks:
        assert isinstance(block.mlp.f, MixedFeedforward)
        router, *experts = block.mlp.f.experts.linears
        assert {type(linear.weight) is GroupedWeight for linear in experts} == {kernels == "auto"}
        assert type(router.weight) is not GroupedWeight


def test_experts_in_mxfp4_are_counted_and_what_is_beside_them_apart(published: Path) -> None:
    tensors = load_file(published / "model.safetensors").values()
    quantized, plain = kept_bytes(read_config(published), published / "config.json", 4)
    codes = sum(tensor.nbytes for tensor in tensors if tensor.dtype == torch.uint8)
    assert codes <= quantized <= 1.1 * codes  # a scale has two bytes, and in the file one
    assert plain == sum(tensor.nbytes for tensor in tensors if tensor.dtype != torch.uint8)


def test_stacked_experts_are_read_alike_from_either_kind_of_file(tmp_path: Path) -> None:
    folder = tiny.make("gpt_oss", tmp_path / "a")
    config = read_config(folder)
    expected = load_weights(folder, config, torch.float32)
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    found = load_weights(tmp_path, config, torch.float32)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    stacked = tensors["model.layers.1.mlp.experts.gate_up_proj"][3]
    assert torch.equal(found["layers.1.experts.3.gate_up.weight"], torch.cat((stacked.T[::2], stacked.T[1::2])))


def test_stacks_of_another_number_of_experts_are_named(tmp_path: Path) -> None:
    folder = tiny.make("gpt_oss", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    save_file({**tensors, name: tensors[name][:4].clone()}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"missing: model.layers.1.mlp.experts.0.down.weight.*unexpected: {name}"):
        load_weights(folder, read_config(folder), torch.float32)


@pytest.mark.every_family
@pytest.mark.parametrize("family", ["granite_moe", "granite_moe_shared"])
def test_granites_with_experts_compute_what_transformers_computes(family: str, tmp_path: Path) -> None:
    folder = tiny.make(family, tmp_path, seed=random.randrange(1000))
    config = read_config(folder)
    ids = torch.randint(5, tiny.VOCAB_SIZE, (50,)).tolist()
    with torch.inference_mode():
        expected = tiny.theirs(folder, torch.float32)(torch.tensor([ids])).logits[0]
    assert (logits_alone(load_model(folder, config, torch.float32, CPU), ids, []) - expected).abs().max() <= 1e-4
    found = look_at_everything(load_model(folder, config, torch.float64, CPU), ids, [])
    assert worst(found, reference.run(config, load_weights(folder, config, torch.float64), ids).points) <= 1e-10
