"""The metadata of GGUF files, compared with the config.json files that `transformers` writes of the same networks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.config import ModelConfig
from tests.gguf_files import finish

pytestmark = pytest.mark.every_family  # each architecture has fields of its own

_EPSILON = 2.0**-17
"""A number that is exact in float32, as in the files."""
_FIELDS = {
    "embedding_length": 64, "block_count": 6, "context_length": 4096, "feed_forward_length": 160, "rope.freq_base": 5e4,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": _EPSILON,
}  # fmt: skip
_CONFIG = {
    "hidden_size": 64, "num_hidden_layers": 6, "max_position_embeddings": 4096, "intermediate_size": 160,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": _EPSILON, "vocab_size": 7,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "dtype": "float32",
}  # fmt: skip
_LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024,
}  # fmt: skip
_LONG, _SHORT = [float(count) for count in range(2, 8)], [1.0 + count / 4 for count in range(6)]
_LONGROPE = {
    "rope.dimension_count": 12, "rope.scaling.original_context_length": 1024,
    "rope.scaling.attn_factor": math.sqrt(1.2), "attention.sliding_window": 512,
}  # fmt: skip


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def write(path: Path, architecture: str, fields: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a file that has the fields of an architecture, a vocabulary of 7 tokens, and of its tensors a few."""
    writer = gguf.GGUFWriter(path, architecture)
    named = {f"{architecture}.{name}": value for name, value in {**_FIELDS, **fields}.items() if "split" not in name}
    named |= {name: value for name, value in fields.items() if "split" in name}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*"abcdef", "ab"])
    writer.add_token_merges(["a b"])
    named |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    finish(writer, named, {"token_embd.weight": np.zeros((7, 64)), **tensors})
    return path


def theirs(folder: Path, name: str, **options: Any) -> ModelConfig:
    """Return our reading of the config.json that `transformers` writes. name: prefix of its class names."""
    kind = getattr(transformers, f"{name}Config")
    whole = kind(**{**_CONFIG, "architectures": [f"{name.removesuffix('Text')}ForCausalLM"], **options})
    whole.save_pretrained(folder)
    return read_config(folder)


def rope(kind: str, theta: float = 5e4, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


def llama3(factor: float) -> dict[str, Any]:
    return rope(
        "llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )


def divisors(factor: float) -> torch.Tensor:
    """Return what `transformers` divides the frequencies of Llama 3 by."""
    config = transformers.LlamaConfig(**{**_CONFIG, **llama3(factor)})
    stretched: torch.Tensor = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]
    plain = 5e4 ** -(torch.arange(0, 16, 2) / 16)
    return plain / stretched


@pytest.mark.parametrize(
    ("architecture", "fields", "tensors", "name", "options"),
    [
        ("llama", {}, {}, "Llama", rope("default")),
        ("llama", {}, {"output.weight": np.zeros((7, 64))}, "Llama", {**rope("default"), "tie_word_embeddings": False}),
        ("llama", _LINEAR, {}, "Llama", rope("linear", factor=8.0)),
        ("llama", {"rope.dimension_count": 16}, {"rope_freqs.weight": 8.0}, "Llama", llama3(8.0)),
        ("llama", {"rope.dimension_count": 16}, {"rope_freqs.weight": 32.0}, "Llama", llama3(32.0)),
        ("qwen2", _YARN, {}, "Qwen2", rope("yarn", factor=4.0, original_max_position_embeddings=1024)),
        ("qwen3", {}, {}, "Qwen3", rope("default")),
        (
            "phi3",
            _LONGROPE,
            {"rope_factors_long.weight": _LONG, "rope_factors_short.weight": _SHORT},
            "Phi3",
            {"sliding_window": 512, "original_max_position_embeddings": 1024}
            | rope(
                "longrope",
                long_factor=_LONG,
                short_factor=_SHORT,
                partial_rotary_factor=0.75,
                attention_factor=float(np.float32(math.sqrt(1.2))),
            ),
        ),
        (
            "gemma2",
            {"attention.sliding_window": 33, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0},
            {},
            "Gemma2",
            {"sliding_window": 33, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0}
            | {"query_pre_attn_scalar": 16, **rope("default")},
        ),
        (
            "gemma3",
            {"attention.sliding_window": 33, **_LINEAR},
            {},
            "Gemma3Text",
            {"sliding_window": 33, "query_pre_attn_scalar": 16, "sliding_window_pattern": 6}
            | {
                "rope_parameters": {
                    "full_attention": rope("linear", factor=8.0)["rope_parameters"],
                    "sliding_attention": rope("default", 1e4)["rope_parameters"],
                }
            },
        ),
    ],
)
def test_metadata_mean_what_config_json_says(
    architecture: str, fields: Any, tensors: Any, name: str, options: Any, tmp_path: Path
) -> None:
    if "rope_freqs.weight" in tensors:
        tensors = {"rope_freqs.weight": divisors(tensors["rope_freqs.weight"])}
    found = read_config(resolve(str(write(tmp_path / "a.gguf", architecture, fields, tensors))))
    expected = theirs(tmp_path / "theirs", name, **options)
    assert found == replace(expected, architecture=found.architecture, stored_as="gguf")


@pytest.mark.parametrize(
    ("architecture", "fields", "tensors", "said"),
    [
        ("mamba", {}, {}, "general.architecture is 'mamba'; llama, qwen2"),
        ("llama", {"split.count": 3}, {}, "one of 3 parts"),
        ("llama", {"attention.head_count": [4, 4]}, {}, "llama.attention.head_count"),
        ("llama", {"attention.head_count_kv": [2, 0, 2]}, {}, "llama.attention.head_count_kv"),
        ("llama", {"attention.head_count": 0, "attention.key_length": 0}, {}, "attention.head_count"),
        ("llama", {"context_length": 0}, {}, "llama.context_length is 0; a positive number is expected"),
        ("llama", {"block_count": "six"}, {}, "llama.block_count is 'six'"),
        ("llama", {"rope.scaling.type": "longrope"}, {}, "llama.rope.scaling"),
        ("llama", {"rope.scaling.type": [1, 2]}, {}, "llama.rope.scaling.type"),
        ("llama", {"rope.dimension_count": 16}, {"rope_freqs.weight": [3.0] * 8}, "rope_freqs.weight"),
        ("llama", {"rope.dimension_count": 8}, {}, "partial_rotary_factor"),
    ],
)
def test_what_is_not_served_is_refused_by_name_in_one_line(
    architecture: str, fields: Any, tensors: Any, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.gguf", architecture, fields, tensors)
    with pytest.raises(ModelLoadError) as caught:
        read_config(resolve(str(path)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
