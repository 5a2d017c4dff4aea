"""Makes the networks that are measured: Llama-shaped, random weights, made by `transformers` on the device itself."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from model.checkpoint.registry import read_config
from model.config import ModelConfig
from model.loading.loader import load_model
from model.network.transformer import Transformer


@dataclass(frozen=True)
class Network:
    """A name for tables, and LlamaConfig's sizes."""

    name: str
    sizes: dict[str, Any]


SMALL = Network(
    "124M",
    {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "vocab_size": 50257,
    },
)
LARGE = Network(
    "1.2B",
    {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
)


def make_theirs(network: Network, dtype: torch.dtype, device: torch.device, context: int) -> Any:
    """Return the network as `transformers` runs it, its head tied to its token table."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **network.sizes, max_position_embeddings=context, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model: Any = LlamaForCausalLM(config)
        return model.eval()
    finally:
        torch.set_default_dtype(before)


def make_ours(theirs: Any, folder: Path, dtype: torch.dtype, device: torch.device) -> Transformer:
    """Return the same weights, through a folder, as the server reads them."""
    theirs.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return load_model(folder, read_config(folder), dtype, device, batch_invariant=False)


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of weights that a decode step reads: the blocks' matrices and the head, which is the token
    table.
    """
    width, inner = config.hidden_size, config.intermediate_size
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return (config.num_layers * width * (heads + 3 * inner) + config.vocab_size * width) * dtype.itemsize


def key_value_bytes(config: ModelConfig, dtype: torch.dtype, num_keys: int) -> int:
    """Return the bytes of cache that a decode step reads for one sequence of this length."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * num_keys * dtype.itemsize


def prefill_operations(config: ModelConfig, num_tokens: int) -> int:
    """Return the operations of a prompt, two per multiplication and addition: the blocks' matrices, causal
    attention, and the head for one row.
    """
    width = config.hidden_size
    matrices = (weight_bytes(config, torch.uint8) - config.vocab_size * width) * num_tokens
    attention = config.num_layers * config.num_heads * config.head_dim * num_tokens**2  # q.k and p.v, half of each
    return 2 * (matrices + attention + config.vocab_size * width)
