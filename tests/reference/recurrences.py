"""Computes the layers that have a recurrence in place of attention, written to be read: one sequence, position by
position.

Axes: S positions, d width, C channels.
"""

from typing import TYPE_CHECKING

import torch

from lightwell.model.config import DeltaNetConfig
from tests.reference import formulas

if TYPE_CHECKING:
    from tests.reference.stack import Stack


def delta_net(stack: "Stack", layer: int, x: torch.Tensor, net: DeltaNetConfig) -> torch.Tensor:
    """Let each head write to its matrix and read it, position by position (Yang et al. 2024, arXiv:2412.06464)."""
    name, length = f"layers.{layer}", len(x)
    keys, values, heads = net.num_key_heads * net.key_dim, net.values_width, net.num_value_heads
    sizes = [2 * keys + values, values, heads, heads]
    mixed, gate, strength, step = torch.split(stack.linear(f"{name}.delta_in", x), sizes, dim=-1)
    mixed = convolved(stack, layer, stack.keep("delta.hook_in", mixed, layer))
    q, k, v = torch.split(formulas.activate(mixed, "silu"), [keys, keys, values], dim=-1)
    q = stack.keep("delta.hook_q", q.reshape(length, -1, net.key_dim), layer)
    k = stack.keep("delta.hook_k", k.reshape(length, -1, net.key_dim), layer)
    v = stack.keep("delta.hook_v", v.reshape(length, -1, net.value_dim), layer)
    beta = stack.keep("delta.hook_beta", torch.sigmoid(strength), layer)
    rate, step = stack.weight(f"{name}.delta_decay.weight"), cast(stack, step) + stack.weight(f"{name}.delta_step.bias")
    decay = torch.exp(-cast(stack, cast(stack, rate, widen=False).exp()) * torch.log1p(torch.exp(step)))
    stack.keep("delta.hook_decay", decay, layer)
    z = torch.stack([formulas.delta_rule(q, k, v, beta, decay, head) for head in range(heads)], 1)
    stack.keep("delta.hook_z", z, layer)
    weight = stack.weight(f"{name}.delta_norm.weight")
    normed = formulas.rms_norm(z, weight, stack.config.norm_eps, casts="llama" if stack.casts else None)
    opened = cast(stack, torch.nn.functional.silu(cast(stack, gate, widen=False)))
    y = stack.keep("delta.hook_out", normed * opened.reshape(z.shape), layer)
    return stack.linear(f"{name}.delta_out", y.flatten(1))


def cast(stack: "Stack", x: torch.Tensor, *, widen: bool = True) -> torch.Tensor:
    """Return x rounded to float32 if transformers' casts are copied, as float64 if `widen`."""
    x = x.float() if stack.casts else x
    return x.double() if widen else x


def short_convolution(stack: "Stack", layer: int, x: torch.Tensor) -> torch.Tensor:
    """Gate x [S, d], convolve each channel over positions, and gate again (Liquid AI 2025, arXiv:2511.23404)."""
    before, gate, x = stack.linear(f"layers.{layer}.conv_in", x).chunk(3, dim=-1)
    x = stack.keep("conv.hook_in", before * x, layer)
    y = gate * convolved(stack, layer, x)
    return stack.linear(f"layers.{layer}.conv_out", stack.keep("conv.hook_out", y, layer))


def convolved(stack: "Stack", layer: int, x: torch.Tensor) -> torch.Tensor:
    """Convolve x [S, C] over positions, each channel by itself, with zeros before the first position."""
    weight, out = stack.weight(f"layers.{layer}.conv.weight"), torch.zeros_like(x)
    taps = weight.shape[-1]
    for position in range(len(x)):
        for back in range(min(taps, position + 1)):
            out[position] += weight[:, 0, taps - 1 - back] * x[position - back]
    return out + stack.weight(f"layers.{layer}.conv.bias") if stack.has(f"layers.{layer}.conv.bias") else out
