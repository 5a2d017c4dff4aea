"""Estimates of `lightwell size`, compared with checkpoints and with the memory of the engine's parts."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader
from safetensors.torch import load_file

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve_config
from lightwell.model.checkpoint.weight_maps import weights_of
from lightwell.model.config import ModelConfig
from lightwell.model.kernels.int8_rows import Int8Rows
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.loading.lora_loader import load_adapter
from lightwell.model.quantized import GroupedRows
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import shares_of, weight_parts
from lightwell.server.cli import main
from lightwell.server.config.memory_estimate import (
    as_table,
    kv_bytes_per_token,
    largest_weight_bytes,
    sizes,
    weight_bytes,
)
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.info import engine_info
from lightwell.server.engine.memory.kv_cache_size import num_cache_blocks
from tests import quantized_files as files
from tests.gguf_files import make_network, write_gguf
from tests.tiny import make, make_variant
from tests.tiny.adapters import make_adapter


@pytest.mark.every_family
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "granite_moe_shared", "gpt_oss", "t5"])
def test_weights_and_cache_take_what_is_foretold(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path, dtype=torch.bfloat16)
    config = read_config(folder)
    stored = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert weight_bytes(config, "bfloat16", "none") == stored
    assert weight_bytes(config, "float32", "none") == 2 * stored
    settings = Settings(max_num_seqs=3, block_size=16, max_model_len=40)  # three blocks per context
    found = sizes(config, settings)
    assert 16 * found.kv_per_token == KVCache.bytes_per_block(config, 16, torch.bfloat16)
    engine = EngineConfig(model=folder, max_num_seqs=3, block_size=16)
    num_blocks = num_cache_blocks(engine, config, torch.bfloat16, torch.device("cpu"), 40) - 1  # without the null block
    assert found.kv_cache == num_blocks * KVCache.bytes_per_block(config, 16, torch.bfloat16)


@pytest.mark.every_family
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_int8_keeps_a_byte_and_a_scale_a_row_but_for_the_embedding_and_routers(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path, dtype=torch.bfloat16, tie_word_embeddings=False)
    stored = load_file(folder / "model.safetensors")
    expected = 0
    for name, tensor in stored.items():
        if tensor.dim() == 2 and "embed_tokens" not in name and not name.endswith("mlp.gate.weight"):
            rows = Int8Rows.quantize(tensor)
            expected += rows.values.nbytes + rows.scales.nbytes
        else:
            expected += tensor.nbytes
    assert weight_bytes(read_config(folder), "bfloat16", "int8") == expected


@pytest.mark.parametrize("intermediate_size", [80, 90])
def test_int4_keeps_half_a_byte_and_scales_of_groups(intermediate_size: int, tmp_path: Path) -> None:
    folder = make("llama", tmp_path, dtype=torch.bfloat16, hidden_size=64, intermediate_size=intermediate_size)
    expected = 0
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.dim() != 2 or "embed_tokens" in name:
            expected += tensor.nbytes
        elif tensor.shape[1] % 16:
            expected += tensor.numel() + 4 * len(tensor)
        else:
            grouped = GroupedRows.quantize(tensor)
            expected += grouped.codes.nbytes // 2 + grouped.scales.nbytes
    config = read_config(folder)
    head = GroupedRows.quantize(torch.randn(config.vocab_size, 64))  # tied, but with its own memory
    expected += head.codes.nbytes // 2 + head.scales.nbytes
    assert weight_bytes(config, "bfloat16", "int4") == expected


@pytest.mark.parametrize(
    "made",
    [
        files.awq(),
        files.gptq(is_symmetric=True),
        files.packed(64, is_symmetric=False),
        files.int_quantized(),
        files.mxfp4(),
        files.fp8(),
        None,
    ],
    ids=lambda made: made.fields["quant_method"] if made else "gguf",
)
def test_matrices_that_stay_as_they_are_stored_are_counted_so(
    made: files.Format | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes_of_layers = {"head_dim": 32, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
    if made is None:
        write_gguf(make_network("qwen2", **sizes_of_layers), "qwen2", Type.Q4_1, tmp_path / "a.gguf")
    else:
        files.write_checkpoint(make_network("llama", **sizes_of_layers), made, tmp_path)
    file = resolve_config(str(tmp_path / "a.gguf" if made is None else tmp_path))
    config, cpu = read_config(file), torch.device("cpu")
    found = sizes(config, Settings(dtype="float32"), file)
    model = load_model(file.parent, config, torch.float32, cpu)
    info = engine_info(model, KVCache(config, 2, 16, torch.float32, cpu), 16)
    assert (
        found.quantized <= info.grouped_bytes <= 1.05 * found.quantized
    )  # blocks begin with a line, and are filled up
    assert (found.quantized > 0) == (made is None or made.fields["quant_method"] != "fp8")
    widened = sizes(config, Settings(dtype="float32", kernels="torch"), file)
    assert (widened.quantized, widened.weights) == (0, weight_bytes(config, "float32", "none"))
    assert found.weights < widened.weights or found == widened
    assert f"stored as {config.stored_as}, " in as_table(found, Settings(), config.stored_as).splitlines()[0]


def test_a_gpu_keeps_the_matrices_of_float16_models_as_large_as_in_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_gguf(make_network("qwen2"), "qwen2", Type.Q5_0, tmp_path / "a.gguf")
    file = resolve_config(str(tmp_path / "a.gguf"))
    tensors = GGUFReader(tmp_path / "a.gguf").tensors
    stored = sum(each.n_bytes for each in tensors if each.tensor_type == Type.Q5_0)
    settings = (Settings(dtype="float16", device="cuda"), Settings(dtype="float32", device="cuda"))
    assert [sizes(read_config(file), each, file).quantized for each in settings] == [stored, 0]


def test_each_worker_has_its_own_and_ranks_share_one(tmp_path: Path) -> None:
    config = read_config(make("llama", tmp_path))  # four key heads
    one, three = sizes(config, Settings()), sizes(config, Settings(devices=3))
    shared = sizes(config, Settings(tensor_parallel=2))
    assert (three.weights, three.kv_cache, three.captures) == (3 * one.weights, 3 * one.kv_cache, one.captures)
    assert (shared.kv_per_token, shared.kv_cache) == (one.kv_per_token, one.kv_cache)
    assert one.weights < shared.weights < 1.01 * one.weights  # only norms are stored on both
    assert one.processes < shared.processes < three.processes
    with pytest.raises(SettingsError, match="--devices all"):
        sizes(config, Settings(devices="all"))


@pytest.mark.every_family
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["llama-mqa-untied", "llama-biases", "olmo2", "gpt2", "bert", "t5"])
def test_what_stands_on_several_ranks_is_counted_on_each(name: str, ranks: int, tmp_path: Path) -> None:
    config = read_config(make_variant(name, tmp_path))
    stacks = [shares_of(config, Group(rank, ranks)) for rank in range(ranks)]
    parts = [weight_parts(stack) for stack in stacks]
    whole = {weight.name: torch.empty(weight.shape, device="meta") for weight in weights_of(config)}
    held = sum(part(name, weight).nbytes for part in parts for name, weight in whole.items())
    settings = Settings(tensor_parallel=ranks, max_num_seqs=3, block_size=16, max_model_len=40)
    found = sizes(config, settings)
    assert found.weights == held
    assert found.loading == held + ranks * max(weight.nbytes for weight in whole.values())
    engine = settings.engine_config(tmp_path)
    caches = [cache_bytes(engine, stack[""].own_config) for stack in stacks]
    assert found.kv_cache == sum(caches)
    given = sizes(config, replace(settings, kv_cache_memory=1 << 20)).kv_cache
    assert given == (1 << 20 if config.kind != "encoder" else 0)  # which the ranks share


def cache_bytes(engine: EngineConfig, own: ModelConfig) -> int:
    """Return the bytes that one process keeps for three contexts of 40 tokens."""
    if own.kind == "encoder":
        return 0
    num_blocks = num_cache_blocks(engine, own, torch.float32, torch.device("cpu"), 40) - 1  # without the null block
    return num_blocks * KVCache.bytes_per_block(own, engine.block_size, torch.float32)


def test_one_key_head_stands_on_every_rank() -> None:
    config = replace(read_config(PACKAGED), num_heads=12, num_kv_heads=1)
    one, four = (sizes(config, Settings(tensor_parallel=ranks)) for ranks in (1, 4))
    assert (four.kv_per_token, four.kv_cache) == (4 * one.kv_per_token, 4 * one.kv_cache)
    five = replace(config, num_kv_heads=5)  # over two ranks, one has two heads and an unused place
    assert kv_bytes_per_token(five, "float32", 2) == 6 * kv_bytes_per_token(config, "float32")


def test_gate_and_up_are_read_and_packed_as_one(tmp_path: Path) -> None:
    config = read_config(make("llama", tmp_path, intermediate_size=4096))
    assert largest_weight_bytes(config, "bfloat16") == 2 * 2 * 4096 * config.hidden_size


def test_a_load_that_takes_more_than_serving_is_what_counts(tmp_path: Path) -> None:
    """Load with int8 weights, which are quantized from weights that are read as a whole."""
    config = read_config(make("llama", tmp_path, hidden_size=1024, intermediate_size=4096, dtype=torch.bfloat16))
    settings = Settings(dtype="bfloat16", quantize="int8", kv_cache_memory=1 << 20, max_capture_bytes=1)
    found = sizes(config, settings)
    assert found.loading == weight_bytes(config, "bfloat16", "none") + weight_bytes(config, "bfloat16", "int8")
    assert found.most == found.loading + found.processes > found.idle + found.captures


def test_the_command_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--dtype", "float32", "--kv-cache-memory", "1GiB", "--max-capture-bytes", "100MiB"]) == 0
    lines = dict(line.rsplit("  ", 1) for line in capsys.readouterr().out.splitlines())
    mebibytes = {name.strip().split(" (")[0]: float(size.split()[0].replace(",", "")) for name, size in lines.items()}
    assert mebibytes["KV cache"] == 1024
    assert mebibytes["captures"] == 200
    assert mebibytes["weights"] == pytest.approx(5.8e6 * 4 / 2**20, rel=0.01)
    parts = ("weights", "KV cache", "API process and worker", "captures")
    assert mebibytes["most: a limit for the container"] == pytest.approx(
        sum(mebibytes[part] for part in parts), abs=0.3
    )


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
def test_adapters_take_what_their_tensors_have(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "model", intermediate_size=96)
    make_adapter(folder, tmp_path / "adapter", 0, r=3)
    model = load_model(folder, read_config(folder), torch.float32, torch.device("cpu"))
    changes = load_adapter(tmp_path / "adapter", model, max_rank=3).changes.values()
    numbers = sum(linear.in_features * linear.out_features for change in changes for linear in change)
    loaded = Settings(dtype="float32", lora=(("a", "somewhere"),), max_lora_rank=3)
    assert sizes(model.config, loaded).adapters == 4 * numbers
    at_run_time = replace(loaded, lora_root="somewhere", max_loras=5)
    assert sizes(model.config, at_run_time).adapters == 5 * 4 * numbers
    assert sizes(model.config, Settings()).adapters == 0


def test_what_is_no_model_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


def test_ranks_that_serve_would_refuse_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--tensor-parallel", "7"]) == 1
    assert re.search(r"--tensor-parallel 7: .* attention heads, .* is accepted\n$", capsys.readouterr().err)
