"""Writes networks of `transformers` as quantised checkpoints, number by number as their formats are published, and lets
the networks have the numbers that the files hold.

Axes: N outputs, K inputs, G groups of inputs.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

Part = tuple[dict[str, Tensor], Tensor]
"""The tensors of a matrix by the last part of their names, and its numbers [N, K] float64."""


@dataclass(frozen=True)
class Format:
    """A format of checkpoints."""

    fields: Mapping[str, Any]
    """The quantization_config."""
    write: Callable[[int, int], Part]
    """Draws a matrix [N, K]."""


def write_checkpoint(network: transformers.PreTrainedModel, made: Format, folder: Path) -> dict[str, Tensor]:
    """Write a network, its head as it is and every other matrix of a product drawn anew, and return the tensors."""
    tensors = dict[str, Tensor]()
    weights = network.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            if tensor.ndim == 2 and name.endswith("_proj.weight"):
                parts, numbers = made.write(*tensor.shape)
                tensors |= {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
                tensor.copy_(numbers)
            else:
                tensors[name] = tensor.clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    network.config.save_pretrained(folder)
    set_fields(folder, made.fields)
    return tensors


def set_fields(folder: Path, fields: Mapping[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": dict(fields)}))


def pack(numbers: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Return words of 32 bits [..., n * bits / 32] of whole numbers [..., n]: place i of a word holds its number
    order[i].
    """
    each = 32 // bits
    words = torch.zeros((*numbers.shape[:-1], numbers.shape[-1] // each), dtype=torch.int64)
    for word in range(words.shape[-1]):
        for place in range(each):
            number = word * each + (place if order is None else order[place])
            words[..., word] += numbers[..., number] << bits * place
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def draw_scales(*shape: int, dtype: torch.dtype, bits: int = 4) -> Tensor:
    return ((torch.rand(shape) + 0.2) / (1 << bits)).to(dtype)


def affine(q: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """Return (q - zero) * scale for q [N, K], zeros and scales [N, G]."""
    found = torch.empty(q.shape, dtype=torch.float64)
    for k in range(q.shape[1]):
        g = k * scales.shape[1] // q.shape[1]
        found[:, k] = (q[:, k] - zeros[:, g]).double() * scales[:, g].double()
    return found


def awq(group: int = 32, dtype: torch.dtype = torch.float16) -> Format:
    def write(n: int, k: int) -> Part:
        width = k if group == -1 else group
        q, zeros = torch.randint(16, (n, k)), torch.randint(16, (n, k // width))
        scales = draw_scales(n, k // width, dtype=dtype)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts = {"qweight": pack(q.T, 4, order), "qzeros": pack(zeros.T, 4, order), "scales": scales.T}
        return parts, affine(q, zeros, scales)

    fields = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Format(fields, write)


def gptq(
    group: int = 32, bits: int = 4, *, version: str = "gptq", is_symmetric: bool = False, in_order: bool = True
) -> Format:
    def write(n: int, k: int) -> Part:
        width = k if group == -1 else group
        q = torch.randint(1 << bits, (n, k))
        zeros = torch.randint(1, 1 << bits, (n, k // width))  # AutoGPTQ cannot write a zero that is 0
        zeros = torch.full_like(zeros, 1 << bits - 1) if is_symmetric else zeros
        scales = draw_scales(n, k // width, dtype=torch.float16, bits=bits)
        order = torch.arange(k) if in_order else torch.randperm(k)
        numbers = affine(q[:, order], zeros, scales)[:, order.argsort()]
        parts = {
            "qweight": pack(q, bits).T,
            "qzeros": pack(zeros.T - (1 if version == "gptq" else 0), bits),
            "scales": scales.T,
            "g_idx": (order.argsort() // width).int(),
        }
        return parts, numbers

    fields = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version}
    return Format(fields | {"desc_act": not in_order, "sym": is_symmetric}, write)
