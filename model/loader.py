"""From a model folder to a network that runs. Knows how the parts fit together; refuses to know who will use them."""

from collections.abc import Callable
from pathlib import Path

import torch

from model.checkpoint import load_weights
from model.config import ModelConfig
from model.decoder import Decoder, DecoderLayer
from model.folder import ModelLoadError
from model.layers.attention import attention_for
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import take_norm
from model.layers.rope import Rope

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def resolve_device(name: str) -> torch.device:
    """auto is the first GPU, or the CPU where there is none.

    Raises ModelLoadError when the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device is {name!r}, but torch finds no GPU here; use 'cpu' or 'auto'")
    return device


def resolve_dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """auto is the checkpoint's own dtype, except that a CPU computes float16 checkpoints in float32, which holds them
    exactly.

    Raises ModelLoadError for a dtype we do not know.
    """
    wanted = config.dtype if name == "auto" else name
    if name == "auto" and wanted == "float16" and device.type == "cpu":
        wanted = "float32"
    if wanted not in DTYPES:
        raise ModelLoadError(f"dtype is {wanted!r}; expected one of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def load_decoder(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_model_len: int | None = None,
    batch_invariant: bool = True,
    float32_casts: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """Load a decoder-only checkpoint.

    `max_model_len` picks the frequencies of length-dependent rotary embeddings; `float32_casts` makes a float64 network
    imitate transformers, which normalises in float32; `progress` is called with (bytes read, bytes in all).

    Raises ModelLoadError for a checkpoint that does not fit its config.
    """
    weights = load_weights(folder, config, dtype, device, progress)
    context = max_model_len or config.max_model_len
    packed = batch_invariant
    embed = weights.pop("embed.weight")
    layers = []
    for i in range(config.num_layers):
        prefix = f"layers.{i}"
        layers.append(
            DecoderLayer(
                index=i,
                attn_norm=take_norm(weights, f"{prefix}.attn_norm", config, float32_casts=float32_casts),
                qkv=Linear.take(weights, f"{prefix}.qkv", packed=packed),
                attn_out=Linear.take(weights, f"{prefix}.attn_out", packed=packed),
                mlp_norm=take_norm(weights, f"{prefix}.mlp_norm", config, float32_casts=float32_casts),
                mlp=Mlp.take(weights, prefix, config, packed=packed),
            )
        )
    head = weights.pop("head.weight", embed)  # tied: the packed copy beside the table that tokens are looked up in
    return Decoder(
        config,
        embed=embed,
        pos_embed=weights.pop("pos_embed.weight", None),
        rope=None if config.rope is None else Rope(config.rope, config.head_dim, context, dtype, device),
        layers=layers,
        final_norm=take_norm(weights, "final_norm", config, float32_casts=float32_casts),
        head=Linear(head, packed=packed),
        attention=attention_for(dtype, device, batch_invariant=batch_invariant),
    )
