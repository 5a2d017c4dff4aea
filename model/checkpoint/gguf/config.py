"""Converts the metadata of a GGUF file to a config.json of `transformers`.

It adds properties of an architecture that the metadata lack, because llama.cpp has them in its code, such as Gemma's
windows in some layers. github.com/ggml-org/ggml/blob/master/docs/gguf.md lists the metadata.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.gguf.header import Header

_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
"""The rotary fields that Llama 3.1 to 3.3 share. Only the factor of low frequencies differs."""
_LLAMA3_FACTORS = (8.0, 32.0)


class _Fields:
    """The metadata of an architecture."""

    def __init__(self, header: Header) -> None:
        self.header, self.metadata, self.tensors = header, header.metadata, header.tensors
        self.architecture = str(header.metadata.get("general.architecture"))
        """llama.cpp's name of the architecture."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field of the architecture. Raises ModelLoadError for a list of one value for each layer."""
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if isinstance(value, list | np.ndarray):
            raise ModelLoadError(
                f"GGUF metadata: {self.architecture}.{name} is a list of {len(value)}; one value is expected"
            )
        return value

    def need(self, name: str) -> Any:
        """Return a positive number. Raises ModelLoadError for any other value, and if it is absent."""
        value = self.get(name)
        if not isinstance(value, int | float) or not value > 0:
            raise ModelLoadError(
                f"GGUF metadata: {self.architecture}.{name} is {value!r}; a positive number is expected"
            )
        return value

    @property
    def head_dim(self) -> int:
        return int(
            self.get("attention.key_length") or self.need("embedding_length") // self.need("attention.head_count")
        )


def config_of(header: Header) -> dict[str, Any]:
    """Return the object of config.json.

    Raises ModelLoadError for an architecture that is not supported, and for incomplete metadata.
    """
    fields = _Fields(header)
    if fields.architecture not in _ARCHITECTURES:
        accepted = ", ".join(_ARCHITECTURES)
        raise ModelLoadError(f"GGUF metadata: general.architecture is {fields.architecture!r}; {accepted} are accepted")
    name, model_type, own = _ARCHITECTURES[fields.architecture]
    if fields.metadata.get("split.count", 1) not in (0, 1):
        raise ModelLoadError(
            f"the GGUF file is one of {fields.metadata['split.count']} parts (split.count); a complete file is "
            "accepted; join the parts with llama.cpp's `gguf-split --merge`"
        )
    if "token_embd.weight" not in fields.tensors:
        raise ModelLoadError("the GGUF file has no tensor token_embd.weight")
    formats = {entry.type.name for entry in fields.tensors.values() if len(entry.shape) > 1}
    shared = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": fields.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in fields.tensors,
        # Quantised and mixed numbers are computed in the dtype in which most models are trained.
        "dtype": "float32" if formats == {"F32"} else "float16" if formats == {"F16"} else "bfloat16",
    }
    for theirs, ours in (("bos", "bos"), ("eos", "eos"), ("padding", "pad")):
        token_id = fields.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if token_id is not None:
            shared[f"{ours}_token_id"] = token_id
    return shared | own(fields)


def _sizes(fields: _Fields) -> dict[str, Any]:
    """Return the sizes that have the same names for most networks."""
    return {
        "hidden_size": fields.need("embedding_length"),
        "intermediate_size": fields.need("feed_forward_length"),
        "num_hidden_layers": fields.need("block_count"),
        "num_attention_heads": fields.need("attention.head_count"),
        "max_position_embeddings": fields.need("context_length"),
    }


def _like_llama(fields: _Fields) -> dict[str, Any]:
    return _sizes(fields) | {
        "num_key_value_heads": fields.get("attention.head_count_kv") or fields.need("attention.head_count"),
        "head_dim": fields.head_dim,
        "rms_norm_eps": fields.need("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(fields),
    }


def _rope(fields: _Fields) -> dict[str, Any]:
    """Return the rotary embedding. Raises ModelLoadError for a scaling that is not supported."""
    found = {"rope_theta": fields.get("rope.freq_base", 10_000.0), "rope_type": "default"}
    kind = fields.get("rope.scaling.type", "none")
    dims = fields.get("rope.dimension_count", fields.head_dim)
    if dims != fields.head_dim:
        found["partial_rotary_factor"] = dims / fields.head_dim
    if "rope_factors_long.weight" in fields.tensors and "rope_factors_short.weight" in fields.tensors:
        return found | _longrope(fields)
    if "rope_freqs.weight" in fields.tensors:
        return found | _LLAMA3 | {"factor": _llama3_factor(fields, found["rope_theta"])}
    if kind == "none":
        return found
    scaling = {"rope_type": kind, "factor": fields.need("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = fields.need("rope.scaling.original_context_length")
    elif kind != "linear":
        accepted = "none, linear and yarn"
        raise ModelLoadError(
            f"GGUF metadata: {fields.architecture}.rope.scaling.type is {kind!r}; {accepted} are accepted"
        )
    return found | scaling


def _longrope(fields: _Fields) -> dict[str, Any]:
    """Return Phi-3's two lists of divisors of frequencies, and the factor of cosines and sines."""
    return {
        "rope_type": "longrope",
        "long_factor": fields.header.floats("rope_factors_long.weight").tolist(),
        "short_factor": fields.header.floats("rope_factors_short.weight").tolist(),
        "attention_factor": fields.get("rope.scaling.attn_factor"),
        "original_max_position_embeddings": fields.need("rope.scaling.original_context_length"),
    }


def _llama3_factor(fields: _Fields, theta: float) -> float:
    """Return the factor of Llama 3's scaling. Files contain only the resulting divisors of the frequencies.

    The formula is in `transformers`' modeling_rope_utils. Raises ModelLoadError if no factor results in these divisors.
    """
    found = fields.header.floats("rope_freqs.weight")
    dims = fields.need("rope.dimension_count")
    lengths = 2 * np.pi * theta ** (np.arange(0, dims, 2) / dims)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    share = np.clip((_LLAMA3["original_max_position_embeddings"] / lengths - low) / (high - low), 0, 1)
    for factor in _LLAMA3_FACTORS:
        if len(found) == len(share) and np.allclose(found, 1 / ((1 - share) / factor + share), rtol=1e-3):
            return factor
    raise ModelLoadError(
        "the tensor rope_freqs.weight of the GGUF file is not supported; only Llama 3's factors are supported"
    )


def _llama(fields: _Fields) -> dict[str, Any]:
    has_bias = "blk.0.attn_q.bias" in fields.tensors
    return _like_llama(fields) | {"hidden_act": "silu", "attention_bias": has_bias}


def _phi3(fields: _Fields) -> dict[str, Any]:
    return _like_llama(fields) | {
        "hidden_act": "silu",
        "sliding_window": fields.get("attention.sliding_window") or None,
        "original_max_position_embeddings": fields.get("rope.scaling.original_context_length")
        or fields.need("context_length"),
    }


def _gemma(fields: _Fields, window: int, layers_of_27b: int) -> dict[str, Any]:
    """Return the fields of both Gemmas. window: of files without one. layers_of_27b: for its own scale of queries."""
    width, heads = fields.need("embedding_length"), fields.need("attention.head_count")
    is_27b = fields.need("block_count") == layers_of_27b
    return _like_llama(fields) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": fields.get("attention.sliding_window", window),
        "query_pre_attn_scalar": width // heads if is_27b else fields.head_dim,
    }


def _gemma2(fields: _Fields) -> dict[str, Any]:
    return _gemma(fields, 4096, 46) | {
        "attn_logit_softcapping": fields.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.get("final_logit_softcapping", 30.0),
    }


def _gemma3(fields: _Fields) -> dict[str, Any]:
    found = _gemma(fields, 1024, 62)
    whole = found.pop("rope_parameters")
    if fields.get("rope.freq_base") is None:
        whole["rope_theta"] = 1_000_000.0
    return found | {
        "sliding_window_pattern": 6,
        "rope_parameters": {
            "full_attention": whole,
            "sliding_attention": {"rope_theta": fields.get("rope.freq_base_swa", 10_000.0), "rope_type": "default"},
        },
    }


def _gpt2(fields: _Fields) -> dict[str, Any]:
    return {
        "n_embd": fields.need("embedding_length"),
        "n_inner": fields.need("feed_forward_length"),
        "n_layer": fields.need("block_count"),
        "n_head": fields.need("attention.head_count"),
        "n_positions": fields.need("context_length"),
        "layer_norm_epsilon": fields.need("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _bert(fields: _Fields) -> dict[str, Any]:
    types = fields.tensors.get("token_types.weight")
    return _sizes(fields) | {
        "layer_norm_eps": fields.need("attention.layer_norm_epsilon"),
        "type_vocab_size": 0 if types is None else types.shape[0],
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
    }


_ARCHITECTURES: Mapping[str, tuple[str, str, Callable[[_Fields], dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", "llama", _llama),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", _llama),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", _llama),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": ("Phi3ForCausalLM", "phi3", _phi3),
    "gpt2": ("GPT2LMHeadModel", "gpt2", _gpt2),
    "bert": ("BertModel", "bert", _bert),
}
"""By llama.cpp's name: the class and model_type of `transformers`, and the function that returns the fields."""
