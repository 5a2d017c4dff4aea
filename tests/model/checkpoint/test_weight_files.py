"""Weights out of every file format; names of weights that do not fit are reported."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from tests import tiny


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.make_variant("llama-mqa-untied", tmp_path / "llama")


def load(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, torch.Tensor]:
    return load_weights(folder, read_config(folder), dtype, **options)


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def test_shards_give_the_same_as_one_file(llama: Path, tmp_path: Path) -> None:
    whole = load(llama)
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    assert_same(load(tmp_path / "sharded"), whole)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_file_of_parameters_gives_the_same_as_safetensors_without_gradients(llama: Path, zipped: bool) -> None:
    whole = load(llama)
    parameters = {name: torch.nn.Parameter(each) for name, each in load_file(llama / "model.safetensors").items()}
    (llama / "model.safetensors").unlink()
    torch.save(parameters, llama / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_same(load(llama), whole)
    assert not any(tensor.requires_grad for tensor in load(llama).values())


def test_sharded_torch_files_are_read_through_their_index(llama: Path) -> None:
    whole = load(llama)
    tensors = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    places = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        torch.save({name: tensor for name, tensor in tensors.items() if places[name] == file}, llama / file)
    (llama / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    assert_same(load(llama), whole)


def test_a_torch_file_that_would_run_code_is_refused(llama: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "exploded",)

    (llama / "model.safetensors").unlink()
    (llama / "pytorch_model.bin").write_bytes(pickle.dumps({"lm_head.weight": Bomb()}, protocol=2))
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin: torch\.load\(weights_only=True\) cannot read it"):
        load(llama)
    assert not (tmp_path / "exploded").exists()


def test_gpt2_files_without_the_prefix_and_with_old_buffers_are_read(tmp_path: Path) -> None:
    gpt2 = tiny.make_variant("gpt2", tmp_path)
    whole = load(gpt2)
    tensors = load_file(gpt2 / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    bare["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    save_file(bare, gpt2 / "model.safetensors")
    assert_same(load(gpt2), whole)


def test_old_llama_files_with_rotary_buffers_are_read(llama: Path) -> None:
    whole, tensors = load(llama), load_file(llama / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, llama / "model.safetensors")
    assert_same(load(llama), whole)


def test_everything_that_does_not_fit_is_named_in_one_error(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors["model.layers.7.oddity"] = torch.ones(1)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(3, 4)
    tensors["lm_head.weight"] = torch.ones(tiny.VOCAB_SIZE, 48, dtype=torch.int8)
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(ModelLoadError) as caught:
        load(llama)
    message = str(caught.value)
    assert "1 missing: model.norm.weight" in message
    assert "1 unexpected: model.layers.7.oddity" in message
    assert "model.layers.0.mlp.up_proj.weight [3, 4] (config.json says [100, 48])" in message
    assert "1 not of F64, F32, F16, BF16: lm_head.weight I8" in message
    assert "LlamaForCausalLM" in message
    assert "\n" not in message


def test_a_long_list_of_missing_tensors_is_cut_and_counted(llama: Path) -> None:
    save_file({"lm_head.weight": torch.ones(tiny.VOCAB_SIZE, 48)}, llama / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"20 missing: model\.embed_tokens\.weight, .* and 12 more"):
        load(llama)


@pytest.mark.parametrize("left", [0, 4, 100, 5000, -1])
def test_a_truncated_file_is_named(llama: Path, left: int) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: not a complete safetensors file") as caught:
        load(llama)
    assert "\n" not in str(caught.value)


def test_a_truncated_torch_file_is_named(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    torch.save(tensors, llama / "pytorch_model.bin")
    data = (llama / "pytorch_model.bin").read_bytes()
    (llama / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin"):
        load(llama)


@pytest.mark.parametrize(
    "held",
    [
        {"a": torch.ones(2, 2).to_sparse()},
        {"a": torch.ones(2, 2, device="meta")},
        {5: torch.ones(1)},
        {"a": [torch.ones(1)]},
        [torch.ones(1)],
    ],
    ids=range(5),
)
def test_a_torch_file_of_other_values_is_refused(llama: Path, held: object) -> None:
    (llama / "model.safetensors").unlink()
    torch.save(held, llama / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"dense tensors by name is expected|only tensors are accepted"):
        load(llama)


def test_a_folder_without_weights_says_what_was_looked_for(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with pytest.raises(
        ModelLoadError, match=r"contains no weights; expected model\.safetensors or .*pytorch_model\.bin"
    ):
        load(llama)


@pytest.mark.parametrize("named", ["gone.safetensors", "../llama/model.safetensors", "a" * 9999, "a\nb"], ids=range(4))
def test_an_index_may_only_name_files_beside_it(llama: Path, tmp_path: Path, named: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(llama / "config.json", other)
    index = other / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": named}}), encoding="utf-8")
    with pytest.raises(
        ModelLoadError, match=re.escape(f"names files that are not in its folder: {repr(named[:99])[1:-1]}") + "$"
    ):
        load(other)
    index.write_text("{}", encoding="utf-8")
    with pytest.raises(ModelLoadError, match="not a weight index"):
        load(other)


def test_progress_grows_to_the_size_of_the_tensors(llama: Path) -> None:
    seen: list[tuple[int, int]] = []
    load(llama, progress=lambda done, total: seen.append((done, total)))
    size = sum(tensor.nbytes for tensor in load_file(llama / "model.safetensors").values())
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
