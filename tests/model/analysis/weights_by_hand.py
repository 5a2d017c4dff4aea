"""Small networks, and their matrices by the plain definitions."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.weights import answer
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import ModelConfig
from lightwell.model.loading.loader import build_model
from tests import tiny

Numbers = dict[str, np.ndarray]


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
    """Return TransformerLens's [in, out] matrix of a decoder, or of the only stack, from the loaded tensors."""
    config, weights, _ = network(name)
    if full == "embed.W_E":
        return wide(weights["embed.weight"])
    layer, _, matrix = full.rpartition("blocks.")[2].partition(".")
    at = f"layers.{layer}."
    if matrix == "mlp.W_in":
        return wide(weights[f"{at}gate_up.weight"].chunk(2)[1]).T
    kv = config.num_kv_heads * config.head_dim
    if matrix.startswith("cross"):
        q, out = weights[f"{at}cross_q.weight"], weights[f"{at}cross_out.weight"]
        k, v = weights[f"{at}cross_kv.weight"].chunk(2)
    else:
        q, k, v = weights[f"{at}qkv.weight"].split((config.num_heads * config.head_dim, kv, kv))
        out = weights[f"{at}attn_out.weight"]
    return wide({"W_Q": q, "W_K": k, "W_V": v, "W_O": out}[matrix.rpartition(".")[2]]).T
