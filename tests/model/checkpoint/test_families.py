"""Every family's config.json and weights, compared with transformers' reading of them."""

import contextlib
import json
import math
import re
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import WeightFiles, load_weights, safetensors_entries, unstacked
from lightwell.model.checkpoint.weight_maps import table_of, weights_of
from lightwell.model.config import ModelConfig
from tests import tiny

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 6, "num_attention_heads": 4}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 50, "n_embd": 32, "n_layer": 6, "n_head": 4},
    "opt": {"vocab_size": 50, "hidden_size": 32, "ffn_dim": 40, "num_hidden_layers": 6, "num_attention_heads": 4},
    "distilbert": {"vocab_size": 50, "dim": 32, "hidden_dim": 40, "n_layers": 6, "n_heads": 4},
    "t5": {"vocab_size": 50, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 6, "num_heads": 4},
    "bart": {"vocab_size": 50, "d_model": 32},
    "marian": {"vocab_size": 50, "d_model": 32},
    **dict.fromkeys(("mistral", "lfm2"), SIZES | {"num_attention_heads": 8}),  # their default is 8 key heads
    "qwen2": SIZES | {"num_attention_heads": 32, "hidden_size": 128},
    "qwen3": SIZES | {"num_attention_heads": 32},
    "qwen2_moe": SIZES | {"num_attention_heads": 16, "num_experts": 9},
    "olmoe": SIZES | {"num_experts": 9},
    "mixtral": SIZES | {"num_attention_heads": 8},
    "granitemoehybrid": SIZES | {"num_local_experts": 0, "layer_types": ["attention"] * 6, "mamba_n_heads": 4},
    "gemma3n_text": SIZES | {"num_kv_shared_layers": 1},
    "qwen3_moe": SIZES | {"num_attention_heads": 8, "num_experts": 9},
    "gpt_oss": SIZES | {"num_attention_heads": 8, "num_local_experts": 9},
}
CLASSES = {
    **{
        f"{name}ForCausalLM": f"{name}Config"
        for name in (
            "Llama", "Mistral", "Qwen2", "Qwen3", "Qwen2Moe", "Qwen3Moe", "Olmoe", "Mixtral", "GptOss", "SmolLM3",
            "Granite", "GraniteMoe", "GraniteMoeShared", "GraniteMoeHybrid", "Lfm2", "Gemma2", "Phi3", "Olmo2", "Olmo3",
            "GPTNeoX", "OPT",
        )
    },
    **{f"{name}ForCausalLM": f"{name}TextConfig" for name in ("Gemma3", "Gemma3n", "Gemma4", "Qwen3_5")},
    **{
        f"{name}Model": f"{name}Config"
        for name in (
            "Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "MPNet", "ModernBert", "NomicBert",
            "JinaEmbeddingsV3",
        )
    },
    "GPT2LMHeadModel": "GPT2Config",
    "T5ForConditionalGeneration": "T5Config",
    "BartForConditionalGeneration": "BartConfig",
    "MarianMTModel": "MarianConfig",
}  # fmt: skip
TASKS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
Checkpoint = Callable[[str], Path]
"""Returns the folder of one of `tiny.VARIANTS`. Tests do not change it."""
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def read(folder: Path, values: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return read_config(folder)


def sizes_of(architecture: str) -> dict[str, Any]:
    config = getattr(transformers, CLASSES[architecture])
    return {**OWN_SIZES.get(config.model_type, SIZES), **IDS}


@pytest.mark.parametrize("architecture", CLASSES)
def test_what_a_file_leaves_out_is_what_transformers_takes_for_it(tmp_path: Path, architecture: str) -> None:
    sizes = sizes_of(architecture)
    config = getattr(transformers, CLASSES[architecture])(**sizes)
    whole = {**json.loads(config.to_json_string(use_diff=False)), "architectures": [architecture]}
    assert read(tmp_path, {**sizes, "architectures": [architecture]}) == read(tmp_path, whole)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return cache(lambda name: tiny.make_variant(name, tmp_path_factory.mktemp(name)))


SIZE = re.compile(r"(?:^|_)(?:size|layers?|heads?|dim|d|embd|inner|positions?|embeddings|buckets)(?:_|$)")


@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_no_size_is_believed_that_the_files_do_not_hold(checkpoint: Checkpoint, name: str, tmp_path: Path) -> None:
    """Guard against huge sizes: a billion layers made a worker grow by 110 MiB a second, and a huge context ended in
    an allocator's error.
    """
    values = json.loads((checkpoint(name) / "config.json").read_text(encoding="utf-8"))
    fields = [key for key, value in values.items() if type(value) is int and SIZE.search(key) and value > 0]
    assert len(fields) >= 3
    (tmp_path / "model.safetensors").symlink_to(checkpoint(name) / "model.safetensors")
    original = read_config(checkpoint(name))
    tracemalloc.start()
    for key in fields:
        for huge in (10**9, 10**15):
            with contextlib.suppress(ModelLoadError):
                config = read(tmp_path, {**values, key: huge})
                WeightFiles(tmp_path, config)
                assert replace(config, sliding_windows=original.sliding_windows) == original, (key, huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.every_family
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_tensor_of_a_checkpoint_is_used_once_or_left_out_by_name(checkpoint: Checkpoint, name: str) -> None:
    config = read_config(checkpoint(name))
    table = table_of(config)
    stored = unstacked(safetensors_entries(checkpoint(name) / "model.safetensors"), config, table)
    tensors = {table.short(key): tensor for key, tensor in stored.items()}
    taken: dict[str, int] = {}
    for weight in weights_of(config):
        for source in weight.sources:
            key = next(table.short(spelled) for spelled in source.names if table.short(spelled) in tensors)
            taken[key] = taken.get(key, 0) + 1
    left = {key for key in tensors if key not in taken}
    assert all(table.ignored.fullmatch(key) for key in left)
    # A token table may also be the head, where the file leaves the head out; keys may also be values.
    twice = {key for key, count in taken.items() if count > 1 and not (config.keys_are_values and "k_proj" in key)}
    assert twice <= {"shared.weight"}
    loaded = load_weights(checkpoint(name), config, torch.float32)
    numbers = sum(tensor.numel() for tensor in loaded.values())
    assert numbers == sum(math.prod(tensors[key].shape) * count for key, count in taken.items())


@pytest.mark.parametrize("prefix", ["Bert", "Roberta", "Camembert", "DistilBert", "MPNet", "ModernBert"])
def test_an_encoder_is_the_same_under_any_head(tmp_path: Path, prefix: str) -> None:
    config = getattr(transformers, f"{prefix}Config")(**sizes_of(f"{prefix}Model") | {"num_hidden_layers": 2})
    bare = getattr(transformers, f"{prefix}Model")(config)
    bare.save_pretrained(tmp_path / "bare")
    expected = load_weights(tmp_path / "bare", read_config(tmp_path / "bare"), torch.float32)
    for task in (*TASKS, "PreTraining") if prefix == "Bert" else TASKS:
        model = getattr(transformers, f"{prefix}For{task}")(config)
        model.base_model.load_state_dict(bare.state_dict(), strict=False)
        model.save_pretrained(tmp_path / task)
        read = read_config(tmp_path / task)
        assert (read.architecture, read.kind) == (f"{prefix}For{task}", "encoder")
        assert read.has_head == (task in ("MaskedLM", "PreTraining"))
        found = load_weights(tmp_path / task, read, torch.float32)
        assert [name for name in found if not name.startswith(("head", "classifier"))] == list(expected)
        assert ("classifier.weight" in found) == (task == "SequenceClassification")
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), task


@pytest.mark.every_family
@pytest.mark.parametrize("name", tiny.MASKED_LMS)
@pytest.mark.parametrize("kind", ["safetensors", "torch", "torch before 1.6"])
def test_a_head_that_is_named_and_not_in_the_files_is_none(
    checkpoint: Checkpoint, tmp_path: Path, name: str, kind: str
) -> None:
    """Read folders like all-mpnet-base-v2's: a model for embeddings that was trained from one with a head."""
    folder = checkpoint(name)
    of_head = [weight for weight in weights_of(read_config(folder)) if weight.name.startswith("head")]
    tensors = load_file(folder / "model.safetensors")
    head = {name for weight in of_head for source in weight.sources for name in source.names if name in tensors}
    assert len(head) >= len(of_head)
    body = {key: tensor for key, tensor in tensors.items() if key not in head}
    for held in (tensors, body):
        shutil.copy(folder / "config.json", tmp_path)
        if kind == "safetensors":
            save_file(held, tmp_path / "model.safetensors")
        else:
            torch.save(held, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=kind == "torch")
        config = read_config(tmp_path)
        assert (config.has_head, config.head_transform is None) == (held is tensors, held is body)
        assert len(load_weights(tmp_path, config, torch.float32)) == len(list(weights_of(config)))
    assert not any(weight.name.startswith("head") for weight in weights_of(config))


def test_the_first_checkpoints_spell_their_norms_gamma_and_beta(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint("bert")
    expected = load_weights(folder, read_config(folder), torch.float32)
    old = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for now, then in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
            name = name.replace(now, then)
        old[name] = tensor
    old["bert.embeddings.position_ids"] = torch.arange(4)[None]
    save_file(old, tmp_path / "model.safetensors")
    found = load_weights(tmp_path, read_config(folder), torch.float32)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


HEADS = {
    **dict.fromkeys(("llama", "gpt2", "bart", "t5", "opt"), "lm_head.weight"),
    **dict.fromkeys(("roberta", "mpnet", "jina_embeddings_v3"), "lm_head.decoder.weight"),
    **dict.fromkeys(("bert", "nomic_bert", "jina_bert"), "cls.predictions.decoder.weight"),
    "distilbert": "vocab_projector.weight",
}
"""The tensor that is a tied head's copy of the token table, by variant."""


@pytest.mark.every_family
@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_tied_in_words_only_is_refused(checkpoint: Checkpoint, tmp_path: Path, name: str) -> None:
    config = read_config(checkpoint(name))
    tensors = load_file(checkpoint(name) / "model.safetensors")
    table = next(tensor for tensor in tensors.values() if len(tensor) == config.vocab_size and tensor.dim() == 2)
    save_file({**tensors, HEADS[name]: table.clone()}, tmp_path / "model.safetensors")
    load_weights(tmp_path, config, torch.float32)
    save_file({**tensors, HEADS[name]: table + 1}, tmp_path / "model.safetensors")
    says = f"{re.escape(HEADS[name])} differs from the token table, .* tie_word_embeddings"
    with pytest.raises(ModelLoadError, match=says):
        load_weights(tmp_path, config, torch.float32)
