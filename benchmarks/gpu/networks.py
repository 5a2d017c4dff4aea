"""Makes the networks that are measured: Llama-shaped, with random weights that are drawn on the device itself."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_maps import weights_of
from lightwell.model.config import ModelConfig
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.loading.loader import build_model, load_model
from lightwell.model.network.transformer import Transformer


@dataclass(frozen=True)
class Network:
    """A name for tables, and LlamaConfig's sizes."""

    name: str
    sizes: dict[str, Any]


def llama(
    name: str, width: int, inner: int, layers: int, heads: int, key_heads: int, vocabulary: int, **more: Any
) -> Network:
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocabulary}
    return Network(name, sizes | {"num_attention_heads": heads, "num_key_value_heads": key_heads} | more)


TINY = llama("tiny", 256, 512, 3, 8, 2, 1000, initializer_range=0.15)  # large, so that attention decides the next token
SMALL = llama("1.2B", 2048, 8192, 16, 32, 8, 128256)
LARGE = llama("8B", 4096, 14336, 32, 32, 8, 128256, tie_word_embeddings=False)


def make_theirs(network: Network, dtype: torch.dtype, device: torch.device, context: int) -> Any:
    torch.manual_seed(0)
    config = _config(network, context)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model: Any = LlamaForCausalLM(config)
        return model.eval()
    finally:
        torch.set_default_dtype(before)


def write_checkpoint(theirs: Any, folder: Path) -> None:
    theirs.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))


def read_ours(
    folder: Path, dtype: torch.dtype, device: torch.device, kernels: KernelConfig, *, batch_invariant: bool = False
) -> Transformer:
    config = read_config(folder)
    return load_model(folder, config, dtype, device, kernels=kernels, batch_invariant=batch_invariant)


@torch.inference_mode()
def make_ours(
    network: Network, dtype: torch.dtype, device: torch.device, context: int, kernels: KernelConfig
) -> Transformer:
    """Return our network with random weights, without a file."""
    with tempfile.TemporaryDirectory() as folder:
        _config(network, context).save_pretrained(folder)
        config = read_config(Path(folder))
    draw = torch.Generator(device).manual_seed(0)
    weights = {}
    for weight in weights_of(config):
        made = torch.ones(weight.shape, dtype=dtype, device=device)
        weights[weight.name] = made if made.dim() == 1 else made.normal_(0, 0.02, generator=draw)
    return build_model(config, weights, context=context, kernels=kernels, batch_invariant=False)


def _config(network: Network, context: int) -> LlamaConfig:
    sizes = {"tie_word_embeddings": True} | network.sizes
    return LlamaConfig(
        **sizes, max_position_embeddings=context, bos_token_id=0, eos_token_id=0, architectures=["LlamaForCausalLM"]
    )


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of weights that a decode step reads: the blocks' matrices and the head; of a token table that
    is not the head a few rows are read, which do not count.
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
