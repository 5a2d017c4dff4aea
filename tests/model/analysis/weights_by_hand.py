"""Small networks, and their matrices by the plain definitions."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from model.analysis.live_weights import LiveWeights
from model.analysis.weights import answer
from model.checkpoint.registry import read_config
from model.checkpoint.weight_files import load_weights
from model.config import ModelConfig
from model.loading.loader import build_model
from tests import tiny

Numbers = dict[str, np.ndarray]

SOME = ("llama-gqa", "gpt2", "gemma2", "olmo2", "bert", "t5-gated-untied", "bart", "opt-post")


@cache
def network(name: str) -> tuple[ModelConfig, dict[str, torch.Tensor], LiveWeights]:
    """Return the config of a tiny checkpoint, its weights as loaded, and the weights of a running, packed network."""
    folder = tiny.make_variant(name, Path(mkdtemp()))
    config = read_config(folder)
    weights = load_weights(folder, config, torch.float32)
    copies = {key: tensor.clone() for key, tensor in weights.items()}
    return config, weights, LiveWeights(build_model(config, copies, context=config.max_model_len))


def ask(name: str, question: str, **options: Any) -> Numbers:
    config, _, lookup = network(name)
    found = answer(config, lookup, question, options, lambda: None)
    return {key: tensor.numpy() for key, tensor in found.items()}


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def matrix_by_hand(name: str, full: str) -> np.ndarray:
    """Return TransformerLens's [in, out] matrix from the loaded tensors, step by step."""
    config, weights, _ = network(name)
    stack, _, rest = full.rpartition("blocks.")
    own = config.encoder if stack == "encoder." and config.encoder is not None else config
    prefix = "encoder." if stack == "encoder." else ""
    if full.endswith("W_E"):
        return wide(weights["embed.weight"])
    if full.endswith("W_U"):
        return wide(weights.get("head.weight", weights["embed.weight"])).T
    if full.endswith("W_pos"):
        prefix = "encoder." if full.startswith("encoder.") else ""
        own = config.encoder if prefix and config.encoder is not None else config
        return wide(weights[f"{prefix}pos_embed.weight"])[own.position_offset :]
    layer, _, matrix = rest.partition(".")
    at = f"{prefix}layers.{layer}."
    q, kv = own.num_heads * own.head_dim, own.num_kv_heads * own.head_dim
    if matrix.startswith("mlp"):
        if matrix == "mlp.W_out":
            return wide(weights[f"{at}down.weight"]).T
        if not own.gated_mlp:
            return wide(weights[f"{at}up.weight"]).T
        fused = wide(weights[f"{at}gate_up.weight"])
        half = len(fused) // 2
        return (fused[:half] if matrix == "mlp.W_gate" else fused[half:]).T
    if matrix.startswith("cross"):
        table = {
            "W_Q": lambda: weights[f"{at}cross_q.weight"],
            "W_K": lambda: weights[f"{at}cross_kv.weight"][:kv],
            "W_V": lambda: weights[f"{at}cross_kv.weight"][kv:],
            "W_O": lambda: weights[f"{at}cross_out.weight"],
        }
    else:
        table = {
            "W_Q": lambda: weights[f"{at}qkv.weight"][:q],
            "W_K": lambda: weights[f"{at}qkv.weight"][q : q + kv],
            "W_V": lambda: weights[f"{at}qkv.weight"][q + kv :],
            "W_O": lambda: weights[f"{at}attn_out.weight"],
        }
    return wide(table[matrix.rpartition(".")[2]]()).T
