"""What `lightwell size` foretells, against checkpoints and what the engine's own parts take."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model.kv_cache import KVCache
from model.layers.int8_rows import Int8Rows
from model.registry import read_config
from server.cli import main
from server.engine.config import EngineConfig
from server.engine.memory import num_cache_blocks
from server.settings import Settings, SettingsError
from server.sizing import kv_bytes_per_token, sizes, weight_bytes
from tests.tiny import make


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "t5"])
def test_weights_and_cache_take_what_is_foretold(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path, dtype=torch.bfloat16)
    config = read_config(folder)
    stored = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert weight_bytes(config, "bfloat16", "none") == stored
    assert weight_bytes(config, "float32", "none") == 2 * stored
    settings = Settings(max_num_seqs=3, block_size=16, max_model_len=40)  # three blocks a context
    found = sizes(config, settings)
    assert 16 * found.kv_per_token == KVCache.bytes_per_block(config, 16, torch.bfloat16)
    engine = EngineConfig(model=folder, max_num_seqs=3, block_size=16)
    num_blocks = num_cache_blocks(engine, config, torch.bfloat16, torch.device("cpu"), 40) - 1  # without the null block
    assert found.kv_cache == num_blocks * KVCache.bytes_per_block(config, 16, torch.bfloat16)


def test_int8_keeps_a_byte_and_a_scale_a_row_but_for_the_embedding(tmp_path: Path) -> None:
    folder = make("llama", tmp_path, dtype=torch.bfloat16, tie_word_embeddings=False)
    stored = load_file(folder / "model.safetensors")
    expected = 0
    for name, tensor in stored.items():
        if tensor.dim() == 2 and "embed_tokens" not in name:
            rows = Int8Rows.quantize(tensor)
            expected += rows.values.nbytes + rows.scales.nbytes
        else:
            expected += tensor.nbytes
    assert weight_bytes(read_config(folder), "bfloat16", "int8") == expected


def test_each_worker_has_its_own_and_ranks_share_one(tmp_path: Path) -> None:
    config = read_config(make("llama", tmp_path))
    one, three = sizes(config, Settings()), sizes(config, Settings(devices=3))
    shared = sizes(config, Settings(tensor_parallel=2))
    assert (three.weights, three.kv_cache, three.captures) == (3 * one.weights, 3 * one.kv_cache, one.captures)
    assert (shared.weights, shared.kv_cache) == (one.weights, one.kv_cache)
    assert one.processes < shared.processes < three.processes
    with pytest.raises(SettingsError, match="--devices all"):
        sizes(config, Settings(devices="all"))


def test_a_load_that_takes_more_than_serving_is_what_counts(tmp_path: Path) -> None:
    """int8 is made of weights that are read whole."""
    config = read_config(make("llama", tmp_path, hidden_size=1024, intermediate_size=4096, dtype=torch.bfloat16))
    settings = Settings(
        dtype="bfloat16", quantize="int8", no_compile=True, kv_cache_memory=1 << 20, max_capture_bytes=1
    )
    found = sizes(config, settings)
    assert found.loading == weight_bytes(config, "bfloat16", "none") + weight_bytes(config, "bfloat16", "int8")
    assert found.most == found.loading + found.processes > found.idle + found.captures


def test_an_encoder_keeps_no_cache(tmp_path: Path) -> None:
    config = read_config(make("bert", tmp_path))
    assert kv_bytes_per_token(config, "float32") == 0
    assert sizes(config, Settings(kv_cache_memory=1 << 30)).kv_cache == 0


def test_the_command_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--dtype", "float32", "--kv-cache-memory", "1GiB", "--max-capture-bytes", "100MiB"]) == 0
    lines = dict(line.rsplit("  ", 1) for line in capsys.readouterr().out.splitlines())
    mebibytes = {name.strip().split(" (")[0]: float(size.split()[0].replace(",", "")) for name, size in lines.items()}
    assert mebibytes["KV cache"] == 1024
    assert mebibytes["captures"] == 200
    assert mebibytes["weights"] == pytest.approx(5.8e6 * 4 / 2**20, rel=0.01)
    parts = ("weights", "KV cache", "API process and worker", "kernels, at a first start", "captures")
    assert mebibytes["most: a limit for the container"] == pytest.approx(
        sum(mebibytes[part] for part in parts), abs=0.3
    )


def test_what_is_no_model_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err
