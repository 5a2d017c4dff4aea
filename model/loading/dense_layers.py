"""Loads the dense layers that a sentence-transformers folder puts after its pooling. It never computes with them."""

from collections.abc import Sequence
from pathlib import Path

import torch

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.weight_files import stored_tensors
from model.kernels.choice import AUTO, KernelConfig
from model.layers.linear import Linear
from model.network.pooling import DenseLayer
from model.network.sentence_transformers import DenseConfig


def load_dense_layers(
    folder: Path,
    configs: Sequence[DenseConfig],
    dtype: torch.dtype,
    device: torch.device,
    *,
    kernels: KernelConfig = AUTO,
    batch_invariant: bool = True,
) -> tuple[DenseLayer, ...]:
    """Return the layers, in float32 (float64 for a network in float64): a few products a text, which cost nothing.

    Raises ModelLoadError for files that do not fit their configuration.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    layers = []
    for config in configs:
        stored = stored_tensors(folder / config.path)
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": (config.out_features, config.in_features)}
        if config.bias:
            shapes["linear.bias"] = (config.out_features,)
        found = {name: tensor.shape for name, tensor in stored.items()}
        if found != shapes:
            raise ModelLoadError(f"{config.path}: the tensors are {found}; config.json there says {shapes}")
        tensors = {name: tensor.read().detach().to(device, wide) for name, tensor in stored.items()}
        weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
        linear = Linear(weight, bias, kernels=kernels, batch_invariant=batch_invariant)
        layers.append(DenseLayer(linear, wide, config.is_tanh))
    return tuple(layers)
