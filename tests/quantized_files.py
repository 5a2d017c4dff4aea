"""Writes networks of `transformers` as quantised checkpoints, number by number in the published formats, and sets the
networks' weights to the numbers in the files.

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
    """Write a network with its head unchanged and new random numbers in every other matrix, and return the tensors."""
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


def packed(
    group: int | None = 32, bits: int = 4, *, is_symmetric: bool = True, in_order: bool = True, old_zeros: bool = False
) -> Format:
    """Return pack-quantized. group: None for a scale for each output. old_zeros: in bytes, as early versions wrote."""

    def write(n: int, k: int) -> Part:
        width, half = group or k, 1 << bits - 1
        q, zeros = torch.randint(-half, half, (n, k)), torch.randint(-half, half, (n, k // width))
        zeros = torch.zeros_like(zeros) if is_symmetric else zeros
        scales = draw_scales(n, k // width, dtype=torch.bfloat16, bits=bits)
        order = torch.arange(k) if in_order else torch.randperm(k)
        numbers = affine(q[:, order], zeros, scales)[:, order.argsort()]
        parts = {
            "weight_packed": pack(q + half, bits),
            "weight_shape": torch.tensor([n, k]),
            "weight_scale": scales,
            "weight_zero_point": zeros.to(torch.int8) if old_zeros else pack((zeros + half).T, bits).T,
            "weight_g_idx": (order.argsort() // width).int(),
        }
        left_out = ({"weight_zero_point"} if is_symmetric else set()) | ({"weight_g_idx"} if in_order else set())
        return {name: part for name, part in parts.items() if name not in left_out}, numbers

    weights = {"type": "int", "num_bits": bits, "group_size": group, "symmetric": is_symmetric}
    return Format(compressed_fields("pack-quantized", {**weights, "strategy": "group" if group else "channel"}), write)


def int_quantized(
    dtype: torch.dtype = torch.bfloat16, *, has_zeros: bool = False, has_activations: bool = True
) -> Format:
    """Return int-quantized with a scale for each output."""

    def write(n: int, k: int) -> Part:
        q, scales = torch.randint(-127, 128, (n, k)), draw_scales(n, 1, dtype=dtype, bits=8)
        zeros = torch.randint(-128, 128, (n, 1)) if has_zeros else torch.zeros((n, 1), dtype=torch.int64)
        parts = {"weight": q.to(torch.int8), "weight_scale": scales}
        return parts | ({"weight_zero_point": zeros.to(torch.int8)} if has_zeros else {}), affine(q, zeros, scales)

    weights = {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": not has_zeros}
    return Format(compressed_fields("int-quantized", weights, has_activations=has_activations), write)


def compressed_fields(form: str, weights: dict[str, Any], *, has_activations: bool = False) -> dict[str, Any]:
    activations = {"num_bits": 8, "dynamic": True} if has_activations else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    method = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**method, "config_groups": {"group_0": group}}


def fp8(block: tuple[int, int] | None = (128, 128), form: str | None = None) -> Format:
    """Return fp8 with scales of blocks, or one for all, or float-quantized of compressed-tensors with `form` (channel,
    tensor or block).
    """

    def write(n: int, k: int) -> Part:
        rows, columns = (1, k) if form == "channel" else block or (n, k)
        codes = torch.randn(n, k).to(torch.float8_e4m3fn)
        scales = draw_scales(-(-n // rows), -(-k // columns), dtype=torch.float32)
        numbers = torch.empty(n, k, dtype=torch.float64)
        for i in range(n):
            for j in range(0, k, columns):
                scale = scales[i // rows, j // columns].double()
                numbers[i, j : j + columns] = codes[i, j : j + columns].double() * scale
        name = "weight_scale" if form else "weight_scale_inv"
        return {"weight": codes, name: scales if scales.numel() > 1 else scales[0]}, numbers

    weights = {"type": "float", "num_bits": 8, "strategy": form, "block_structure": block and list(block)}
    own = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block}
    return Format(compressed_fields("float-quantized", weights, has_activations=True) if form else own, write)


def mxfp4(*, is_compressed: bool = False) -> Format:
    def write(n: int, k: int) -> Part:
        codes, powers = torch.randint(16, (n, k)), torch.randint(120, 124, (n, k // 32))
        powers[0, 0] = 0  # a number that float16 has not
        numbers = torch.empty(n, k, dtype=torch.float64)
        for code in range(16):
            sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
            size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
            numbers[codes == code] = -size if sign else size
        for j in range(k):
            numbers[:, j] *= 2.0 ** (powers[:, j // 32] - 127).double()
        packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
        if is_compressed:
            return {"weight_packed": packed, "weight_scale": powers.to(torch.uint8)}, numbers
        return {"weight_blocks": packed.view(n, k // 32, 16), "weight_scales": powers.to(torch.uint8)}, numbers

    weights = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}
    own = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    return Format(compressed_fields("mxfp4-pack-quantized", weights) if is_compressed else own, write)
