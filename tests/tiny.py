"""Makes two-layer checkpoints of each family in a folder, with transformers, so that errors show.

Weights are large and random, biases and norms random too, sizes odd where they may be, head_dim apart from d /
heads. The tokenizer is a byte-level BPE trained here on a few sentences. Making one takes about a tenth of a
second: cache per session.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 320
CONTEXT = 128
BOS, EOS = "<|begin|>", "<|end|>"

_SENTENCES = (
    "Once upon a time there was a little girl who lived in a house beside the wood.",
    "The wolf said: little pig, little pig, let me come in!",
    "There were 3 bears, and they had 12 bowls of porridge; the porridge was too hot.",
    "Übermut tut selten gut. Où est le château ? 茨姫は眠っている。 🐺🌲",
)
_LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "n_inner": 100,
}


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}}


_SHORT, _LONG = [1.0 + i / 16 for i in range(8)], [2.0 + i for i in range(8)]
ROPE_VARIANTS: dict[str, dict[str, Any]] = {
    "linear": _rope("linear", factor=2.5),
    "dynamic": _rope("dynamic", factor=2.0),
    "llama3": _rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    "yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "longrope": _rope("longrope", short_factor=_SHORT, long_factor=_LONG, original_max_position_embeddings=32),
}
"""Options of each rope scaling, for head_dim 16 and a context of 128."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-gqa": ("llama", {"num_key_value_heads": 2}),
    "llama-mqa-untied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2, "head_dim": 20}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh", "head_dim": None}),
    **{f"llama-{name}": ("llama", options) for name, options in ROPE_VARIANTS.items()},
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2-relu-unscaled": ("gpt2", {"activation_function": "relu", "scale_attn_weights": False, "n_inner": None}),
}
"""Family and options of every kind of checkpoint the tests should cover."""


def make(family: str, path: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Path:
    """Write a checkpoint of `family` ("llama" or "gpt2") to folder `path` and return it.

    `overrides` are fields of the transformers config, e.g. `num_key_value_heads=2`.
    """
    config, build = _FAMILIES[family](overrides)
    generator = torch.Generator().manual_seed(seed)
    model = build(config)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data = _spread(name, noise, _GAIN[family])
    model.to(dtype).save_pretrained(path)
    _make_tokenizer(path)
    ends = {"bos_token_id": 0, "eos_token_id": [1]}
    (path / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return path


def make_variant(name: str, path: Path, **more: Any) -> Path:
    """Write the checkpoint that VARIANTS calls `name`."""
    family, options = VARIANTS[name]
    return make(family, path, **{**options, **more})


_GAIN = {"llama": 1.5, "gpt2": 2.0}
"""How much matrices amplify: enough for sharp patterns, but float32's own noise in them must stay under 1e-5."""


def _spread(name: str, noise: torch.Tensor, gain: float) -> torch.Tensor:
    """Standard normal noise -> a parameter: norms around 1, biases around 0, matrices far larger than trained ones."""
    if noise.dim() == 2:
        return noise * (0.5 if "wte" in name or "wpe" in name or "embed" in name else gain / noise.shape[-1] ** 0.5)
    return noise * 0.3 if name.endswith("bias") else 1 + noise * 0.3


def _llama(overrides: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    config = transformers.LlamaConfig(**{**_LLAMA, "bos_token_id": 0, "eos_token_id": 1, **overrides})
    return config, transformers.LlamaForCausalLM


def _gpt2(overrides: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    config = transformers.GPT2Config(**{**_GPT2, "bos_token_id": 0, "eos_token_id": 1, **overrides})
    return config, transformers.GPT2LMHeadModel


_FAMILIES: dict[str, Callable[[dict[str, Any]], tuple[Any, Callable[[Any], Any]]]] = {"llama": _llama, "gpt2": _gpt2}


def _make_tokenizer(path: Path) -> None:
    """A byte-level BPE with two special tokens, all 256 bytes and a few merges; BOS is put before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(path / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    (path / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
