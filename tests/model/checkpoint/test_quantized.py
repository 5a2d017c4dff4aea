"""Quantised checkpoints against `transformers` with the numbers in their files, and broken files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import WeightFiles, load_weights
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from tests import quantized_files as files
from tests import tiny
from tests.gguf_files import make_network
from tests.quantized_files import Format, set_fields, write_checkpoint

CPU = torch.device("cpu")
UP = "model.layers.0.mlp.up_proj"
KEPT: dict[str, Format] = {
    "awq": files.awq(),
    "awq, whole rows, bfloat16": files.awq(-1, torch.bfloat16),
    "gptq": files.gptq(),
    "gptq, version 2": files.gptq(64, version="gptq_v2"),
    "gptq, symmetric": files.gptq(is_symmetric=True),
    "gptq, 8 bits": files.gptq(bits=8),
    "gptq, 8 bits, symmetric": files.gptq(-1, 8, is_symmetric=True),
    "packed": files.packed(),
    "packed, zeros": files.packed(64, is_symmetric=False),
    "packed, zeros in bytes": files.packed(is_symmetric=False, old_zeros=True),
    "packed, 8 bits": files.packed(None, 8),
    "int8": files.int_quantized(),
    "mxfp4": files.mxfp4(),
    "mxfp4, compressed": files.mxfp4(is_compressed=True),
    "int8, zeros": files.int_quantized(torch.float16, has_zeros=True),
}
"""Formats with matrices that stay quantised."""


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_model(folder, read_config(folder), dtype, CPU)


def ours(model: Transformer, ids: list[int]) -> torch.Tensor:
    """Return the logits of our network, float32."""
    with torch.inference_mode():
        cache = KVCache(model.cache_config, 8, 32, torch.float32, CPU, keys_in_rows=model.keys_in_rows)
        batch = Batch([Span(ids, 0, [1, 2], model.config.num_layers)], 32, CPU)
        return model.logits(model.forward(batch, cache)[: len(ids)])


def assert_alike(folder: Path, network: Any, *, kept: bool) -> None:
    """Compare the logits of a checkpoint with a network's; `kept`: whether matrices stay quantised."""
    ids = torch.randint(96, (40,)).tolist()
    model = load(folder)
    with torch.inference_mode():
        expected = network(torch.tensor([ids]))[0][0]
    assert (ours(model, ids) - expected).abs().max() <= 1e-4
    assert model.decoder is not None
    for block, theirs in zip(model.decoder.blocks, network.model.layers, strict=True):
        assert torch.equal(block.linears["down"].to_dense(), theirs.mlp.down_proj.weight)
        assert {type(linear.weight) is GroupedWeight for linear in block.linears.values()} == {kept}


@pytest.mark.parametrize("name", KEPT)
def test_a_network_computes_what_transformers_computes_with_the_files_numbers(name: str, tmp_path: Path) -> None:
    network = make_network("llama", head_dim=32, intermediate_size=192, num_hidden_layers=2)
    write_checkpoint(network, KEPT[name], tmp_path)
    assert_alike(tmp_path, network, kept=True)


WIDENED: dict[str, Format] = {
    "gptq, inputs out of order": files.gptq(in_order=False),
    "gptq, 8 bits, inputs out of order": files.gptq(32, 8, in_order=False),
    "packed, inputs out of order": files.packed(in_order=False),
    "int8, float32": files.int_quantized(torch.float32),
    "fp8": files.fp8(),
    "fp8, one scale": files.fp8(None),
    "fp8, scales of outputs": files.fp8(None, "channel"),
    "fp8, compressed, blocks": files.fp8((64, 32), "block"),
    "fp8, compressed, one scale": files.fp8(None, "tensor"),
}
"""Formats that the kernels have no form of."""


@pytest.mark.parametrize("name", WIDENED)
def test_what_the_kernels_have_no_form_of_is_widened(name: str, tmp_path: Path) -> None:
    network = make_network("llama", head_dim=32, intermediate_size=192, num_hidden_layers=2)
    write_checkpoint(network, WIDENED[name], tmp_path)
    assert_alike(tmp_path, network, kept=False)


def test_heads_that_lie_one_by_one_are_put_in_order(tmp_path: Path) -> None:
    folder = tiny.make("gpt_neox", tmp_path / "plain", hidden_size=96, intermediate_size=96)
    weights = load_weights(folder, read_config(folder), torch.float32)
    tensors = load_file(folder / "model.safetensors")
    name = "gpt_neox.layers.0.attention.query_key_value"
    parts, numbers = files.gptq().write(*tensors[f"{name}.weight"].shape)
    dense = {**tensors, f"{name}.weight": numbers.float()}
    save_file(dense, folder / "model.safetensors")
    expected = load_weights(folder, read_config(folder), torch.float32)["layers.0.qkv.weight"]
    assert not torch.equal(expected, weights["layers.0.qkv.weight"])
    del dense[f"{name}.weight"]
    dense |= {f"{name}.{part}": value.contiguous() for part, value in parts.items()}
    save_file(dense, folder / "model.safetensors")
    set_fields(folder, files.gptq().fields)
    found = WeightFiles(folder, read_config(folder)).read_quantized("layers.0.qkv.weight", torch.float32)
    assert found is not None
    assert torch.equal(found.to_dense(), expected)
    assert torch.equal(load_weights(folder, read_config(folder), torch.float32)["layers.0.qkv.weight"], expected)


def test_a_bias_of_zeros_that_the_network_has_not_is_left_out(tmp_path: Path) -> None:
    tensors = write_checkpoint(make_network("llama", num_hidden_layers=1), files.gptq(), tmp_path)
    save_file(tensors | {f"{UP}.bias": torch.zeros(160)}, tmp_path / "model.safetensors")
    load(tmp_path)
    save_file(tensors | {f"{UP}.bias": torch.ones(160)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"1 unexpected: {UP}.bias"):
        load(tmp_path)


def test_matrices_of_gpt2_are_refused(tmp_path: Path) -> None:
    folder = tiny.make("gpt2", tmp_path)
    set_fields(folder, files.gptq().fields)
    with pytest.raises(
        ModelLoadError, match="quantization_config is set; a GPT2LMHeadModel is supported only without it"
    ):
        read_config(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(make_network("llama", num_hidden_layers=1), files.awq(), tmp_path)
    return tmp_path


def refused(folder: Path) -> str:
    """Return the error of a checkpoint."""
    with pytest.raises(ModelLoadError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("made", "part", "value", "said"),
    [
        (files.awq(), "scales", None, "scales is missing; F16 or BF16 or F32 [2, 160] is expected for awq"),
        (files.awq(), "scales", torch.ones(1, 160), "scales is F32 [1, 160]; F16 or BF16 or F32 [2, 160] is expected"),
        (files.awq(), "qzeros", torch.ones(2, 20), "qzeros is F32 [2, 20]; I32 [2, 20] is expected"),
        (files.awq(), "qweight", torch.ones(64).int(), "qweight is I32 [64]; I32 [any, any] is expected"),
        (files.awq(), "g_index", torch.ones(64).int(), "g_index"),
        (files.gptq(), "qzeros", torch.ones(4, 20).int(), "qzeros is I32 [4, 20]; I32 [2, 20] is expected for gptq"),
        (files.awq(), "qweight", torch.ones(40, 20).int(), " has 40 inputs; a multiple of 32 is expected"),
        (files.packed(), "weight_scale", torch.ones(160, 4), "F32 [160, 4]; F16 or BF16 or F32 [1, 1] or [160, 2] is"),
        (files.packed(), "weight_shape", torch.tensor([160, 0]), "weight_shape [160, 0]; codes of 4 bits are expected"),
        (files.packed(), "weight_zero_point", torch.ones(20, 1).int(), "is I32 [20, 1]; I32 [20, 2] is expected"),
        (files.int_quantized(), "weight_scale", None, "weight_scale is missing; F16 or BF16 or F32 [1, 1] or [160, 1]"),
        (files.fp8(), "weight_scale_inv", torch.ones(3, 1), "is F32 [3, 1]; F16 or BF16 or F32 or F8_E8M0 [1, 1] or"),
        (files.fp8(), "weight_scale_inv", None,
         "weight_scale is missing; F16 or BF16 or F32 or F8_E8M0 [1, 1] or [160"),
        (files.mxfp4(), "weight_scales", None, "weight_scales is missing; U8 [160, 2] is expected for mxfp4"),
        (files.mxfp4(), "weight_blocks", torch.ones(160, 2, 8).byte(), "is U8 [160, 2, 8]; U8 [any, any, 16] is"),
        (files.gptq(), "g_idx", torch.arange(64).int(), "g_idx has groups from 0 to 63; 0 to 1 are expected"),
        (files.gptq(), "qweight", torch.ones(16, 160).int(),
         "scales is F16 [2, 160]; F16 or BF16 or F32 [4, 160] is expected"),
    ],
)  # fmt: skip
def test_a_part_that_does_not_fit_is_named(
    made: Format, part: str, value: torch.Tensor | None, said: str, tmp_path: Path
) -> None:
    tensors = write_checkpoint(make_network("llama", num_hidden_layers=1), made, tmp_path)
    tensors.pop(f"{UP}.{part}", None)
    if value is not None:
        tensors[f"{UP}.{part}"] = value.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    found = refused(tmp_path)
    assert UP in found
    assert said in found


def test_inputs_that_are_no_whole_groups_never_reach_a_kernel(tmp_path: Path) -> None:
    def write(n: int, k: int) -> files.Part:
        scales = torch.full((n, k // 32), 120).byte()
        return {"weight_packed": torch.randint(256, (n, k // 2)).byte(), "weight_scale": scales}, torch.zeros(n, k)

    made = Format(files.mxfp4(is_compressed=True).fields, write)
    write_checkpoint(make_network("llama", num_hidden_layers=1, intermediate_size=656), made, tmp_path)
    said = "weights: model.layers.0.mlp.down_proj has 656 inputs; a multiple of 32 is expected"
    assert refused(tmp_path) == said


def test_zeros_that_do_not_fit_their_scales_never_reach_a_kernel(tmp_path: Path) -> None:
    def write(n: int, k: int) -> files.Part:
        parts, numbers = files.gptq(-1).write(-(-n // 8) * 8, k)
        ends = {"qweight": n, "scales": n, "qzeros": n // 8}
        return parts | {name: parts[name][:, :end] for name, end in ends.items()}, numbers[:n]

    made = Format(files.gptq(-1).fields, write)
    write_checkpoint(make_network("llama", num_hidden_layers=1, head_dim=6), made, tmp_path)
    said = "weights: model.layers.0.self_attn.k_proj: zeros are [8, 1] and scales [12, 1]; one shape is expected"
    assert refused(tmp_path) == said


def compressed(**changes: Any) -> dict[str, Any]:
    """Return the fields of a compressed-tensors format with some changes, also of its weights' fields."""
    fields: dict[str, Any] = json.loads(json.dumps(files.packed().fields)) | changes
    for group in fields["config_groups"].values():
        group["weights"] |= changes
    return fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quant_method": "aqlm"}, "quant_method is 'aqlm'; supported are awq, gptq, compressed-tensors, fp8, mxfp4"),
        ({}, "quant_method is None; supported are awq, gptq, compressed-tensors, fp8, mxfp4"),
        ({"quant_method": "awq", "bits": 3, "group_size": 128}, "bits is 3; supported are 4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 48}, "group_size is 48; supported are 32, 64, 128, -1"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'; gemm is"),
        ({"quant_method": "awq", "bits": 4, "format": "marlin"}, "format is 'marlin'; gemm is"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3; supported are 4, 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; supp"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic is {'+:.*': {'bits': 8}}; on"),
        (compressed(format="marlin-24"), "format is 'marlin-24'; supported are pack-quantized, int-quantized"),
        (compressed(num_bits=2), "config_groups.group_0.weights: num_bits is 2; supported are 4, 8"),
        (compressed(strategy="token"), "config_groups.group_0.weights: strategy is 'token'; supported are group"),
        (compressed(transform_config={"config_groups": {"R1": {}}}), "transform_config is {'config_groups': {'R1'"),
        (compressed(config_groups={}), "config_groups is {}; one or more"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size is [128, 0]; two lengths"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'; only 'e4m3'"),
        ({"quant_method": "awq", "bits": 4, "zero_point": False}, "zero_point is False; only True"),
    ],
)
def test_a_format_that_is_not_read_is_named(fields: dict[str, Any], said: str, folder: Path) -> None:
    set_fields(folder, {"modules_to_not_convert": None, **fields})
    with pytest.raises(ModelLoadError) as caught:
        read_config(folder)
    assert f"config.json: quantization_config: {said}" in str(caught.value)
