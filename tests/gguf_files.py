"""Writes networks of `transformers` as GGUF files, as llama.cpp's converter does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"attention_bias": True}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 32}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 7}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 7, "num_hidden_layers": 7},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"sliding_window": 9, "pad_token_id": 0}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 64, "n_head": 4, "n_inner": 160, "n_positions": 128}),
    "bert": ("BertConfig", "BertModel", {"num_key_value_heads": 4}),
}
"""By llama.cpp's name the classes of `transformers`, and options that show errors."""
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def make_network(architecture: str, **options: Any) -> transformers.PreTrainedModel:
    """Return a small network with large random weights, norms and biases."""
    config_class, model_class, own = ARCHITECTURES[architecture]
    config = getattr(transformers, config_class)(**(_SIZES | own | options))
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 4 + (1 if parameter.ndim == 1 else 0))
    assert isinstance(model, transformers.PreTrainedModel)
    return model


def write_gguf(
    model: transformers.PreTrainedModel, architecture: str, kind: Type, path: Path, vectors: Type = Type.F32
) -> None:
    """Write a network with its matrices and its vectors in a format, and set its weights to the file's numbers."""
    writer = gguf.GGUFWriter(path, architecture)
    _write_fields(writer, model.config.to_dict(), architecture)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    is_tied = bool(model.config.tie_word_embeddings) and architecture != "bert"
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if (
                (name == "lm_head.weight" and is_tied)
                or name.endswith(("position_ids", ".attn.bias"))
                or "pooler" in name
            ):
                continue
            stored = _as_stored(name, tensor.float(), architecture, model.config)
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert theirs is not None, name
            own = kind if stored.ndim > 1 and "position" not in theirs and "token_types" not in theirs else vectors
            data = stored.contiguous().numpy() if own == Type.F32 else gguf.quants.quantize(stored.numpy(), own)
            writer.add_tensor(theirs, data, raw_dtype=own)
            read = torch.from_numpy(data.copy() if own == Type.F32 else gguf.quants.dequantize(data, own))
            tensor.copy_(_as_stored(name, read, architecture, model.config, undo=True))
    finish(writer, {}, {})


def finish(writer: gguf.GGUFWriter, fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Add fields, each by the type of its value, and tensors in float32, and write the file."""
    add: dict[type, Any] = {
        **{int: writer.add_uint32, bool: writer.add_bool, float: writer.add_float32},
        **{str: writer.add_string, list: writer.add_array},
    }
    for name, value in fields.items():
        add[type(value)](name, value)
    for name, numbers in tensors.items():
        writer.add_tensor(name, np.asarray(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_stored(name: str, tensor: torch.Tensor, architecture: str, config: Any, *, undo: bool = False) -> torch.Tensor:
    """Return a tensor as llama.cpp's converter writes it, or back."""
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        by_head = tensor.view(heads, *((-1, 2) if undo else (2, -1)), *tensor.shape[1:])
        return by_head.transpose(1, 2).reshape(tensor.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return tensor - 1 if undo else tensor + 1
    if architecture == "gpt2" and tensor.ndim > 1 and ".h." in name:
        return tensor.T.contiguous()
    return tensor


def _write_fields(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    def first(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), None)

    heads, width = first("num_attention_heads", "n_head"), first("n_embd", "hidden_size")
    writer.add_embedding_length(width)
    writer.add_block_count(first("num_hidden_layers", "n_layer"))
    writer.add_context_length(first("max_position_embeddings", "n_positions"))
    writer.add_feed_forward_length(first("n_inner", "intermediate_size"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads if architecture == "bert" else first("num_key_value_heads") or heads)
    if architecture in ("gpt2", "bert"):
        writer.add_layer_norm_eps(first("layer_norm_epsilon", "layer_norm_eps"))
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_key_length(first("head_dim") or width // heads)
        rope = config["rope_parameters"]
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        writer.add_rope_dimension_count(first("head_dim") or width // heads)
    if first("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if first(name):
            getattr(writer, f"add_{name}")(config[name])
    writer.add_tokenizer_model("gpt2")
    tokens = [chr(number) for number in range(33, 32 + config["vocab_size"])]
    writer.add_token_list([*tokens, tokens[0] + tokens[1]])
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_eos_token_id(2)
