"""Sublayers in place of attention, with states instead of keys and values: LFM2's short convolution and Qwen3.5's gated
delta net.

Axes: T rows that need this layer, d model width, K key heads, V value heads, k and v their widths.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import DeltaNetConfig
from lightwell.model.hooks.hooks import LayerHooks, hooked
from lightwell.model.kernels.delta import RowSpan, delta_factors, delta_rule
from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.fixed_shapes import row_sums, whole_vectors
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import multiply
from lightwell.model.layers.mlp import gated
from lightwell.model.layers.norm import RmsNorm
from lightwell.model.network.convolution import Convolution
from lightwell.model.network.sublayers import BlockInputs

_EPS = 1e-6
"""Added to the squared length of a query or key before it is divided by its length."""


@dataclass(frozen=True, slots=True, eq=False)
class ShortConvolution:
    """A gated short convolution, W_out (C * conv(B * x)), where B, C and x are parts of W_in n (LFM2: Liquid AI 2025,
    arXiv:2511.23404).
    """

    into: Linear
    """[3 d, d]: the rows of B, of C, and of x."""
    convolution: Convolution
    out: Linear
    """[d, d]"""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the addend of the stream, x [T, d] -> [T, d], and write the last inputs to the states."""
        convolved, gate = self._convolve(x, step, layer_hooks)
        y = hooked(layer_hooks, "conv.hook_out", gate * convolved.to(gate.dtype))
        return multiply(self.out, y, step.adapted)

    def write_kv(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Write the last inputs, of x [T, d], to the states."""
        self._convolve(x, step, layer_hooks)

    def _convolve(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> tuple[Tensor, Tensor]:
        """Return the convolution's output and its gate, [T, d] each."""
        before, gate, x = multiply(self.into, x, step.adapted).chunk(3, -1)
        x = hooked(layer_hooks, "conv.hook_in", before * x)
        assert step.kept is not None
        assert step.cache.states is not None
        return self.convolution(x, step.kept, step.cache.states), gate

    @property
    def linears(self) -> dict[str, Linear]:
        """Return the matrices by Lightwell's names of their weights."""
        return {"conv_in": self.into, "conv_out": self.out}


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNet:
    """A gated delta net (Yang et al. 2024, arXiv:2412.06464, equation 10).

    Each value head has a matrix S [k, v] in float32. Each position decays, corrects and reads it, with a query q and a
    key k of length 1, a value v, a strength beta and a decay:

        S = decay S,    S = S + k (beta (v - k S)),    z = q S / sqrt(d_key)

    Positions run one after another and every product has the same shape, so the bits of a row depend only on its own
    sequence, not on its division into steps. This costs two passes over S for each position, also in prompts.
    """

    sizes: DeltaNetConfig
    into: Linear
    """The rows of q, k and v, which are convolved, of the gate, of the strengths and of the steps."""
    convolution: Convolution
    rates: Tensor
    """[V]: the rates of decay, float32 (float64 in float64)."""
    step_bias: Tensor
    """[V], float32 (float64 in float64)"""
    norm: RmsNorm
    """Over v."""
    out: Linear
    """[d, V v]"""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the addend of the stream, x [T, d] -> [T, d], and write the states."""
        z, gate = self._read(x, step, layer_hooks)
        normed, wide = self.norm(z.reshape(-1, z.shape[-1])).view(z.shape), at_least_float32(z.dtype)
        both = torch.cat((gate, normed.flatten(1)), -1).to(wide)
        y = gated(both, "silu", native=self.into.native, batch_invariant=True).to(z.dtype).view(z.shape)
        y = hooked(layer_hooks, "delta.hook_out", y)
        return multiply(self.out, y.flatten(1), step.adapted)

    def write_kv(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Write the states after x [T, d]."""
        self._read(x, step, layer_hooks)

    @property
    def linears(self) -> dict[str, Linear]:
        """Return the matrices by Lightwell's names of their weights."""
        return {"delta_in": self.into, "delta_out": self.out}

    def _read(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> tuple[Tensor, Tensor]:
        """Return z [T, V, v] of x [T, d], and its gate [T, V v]."""
        sizes, states, kept = self.sizes, step.cache.states, step.kept
        assert states is not None
        assert states.memory is not None
        assert kept is not None
        parts = [sizes.convolved_width, sizes.values_width, sizes.num_value_heads, sizes.num_value_heads]
        mixed, gate, strengths, steps = torch.split(multiply(self.into, x, step.adapted), parts, -1)

        convolved = self.convolution(hooked(layer_hooks, "delta.hook_in", mixed), kept, states).to(x.dtype)
        both = torch.cat((convolved, torch.ones_like(convolved)), -1)
        convolved = gated(both, "silu", native=self.into.native, batch_invariant=True)
        keys = sizes.num_key_heads * sizes.key_dim
        q, k, v = torch.split(convolved, [keys, keys, sizes.values_width], -1)
        q = hooked(layer_hooks, "delta.hook_q", q.reshape(len(x), -1, sizes.key_dim))
        k = hooked(layer_hooks, "delta.hook_k", k.reshape(len(x), -1, sizes.key_dim))
        v = hooked(layer_hooks, "delta.hook_v", v.reshape(len(x), -1, sizes.value_dim))
        beta, decay = self._factors(strengths, steps)
        beta, decay = hooked(layer_hooks, "delta.hook_beta", beta), hooked(layer_hooks, "delta.hook_decay", decay)
        remember = self._remember_natively if self.into.native else self._remember
        z = remember((q, k, v, beta, decay), step.batch, states.memory)
        return hooked(layer_hooks, "delta.hook_z", z.to(x.dtype)), gate

    def _factors(self, strengths: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the strengths [T, V] between 0 and 1, and the decay of each head's matrix, [T, V]."""
        if self.into.native:
            return delta_factors(strengths.contiguous(), steps.contiguous(), self.rates, self.step_bias)
        steps = whole_vectors(F.softplus, steps.to(self.rates.dtype) + self.step_bias)
        return whole_vectors(torch.sigmoid, strengths), whole_vectors(torch.exp, -self.rates * steps)

    @staticmethod
    def _remember_natively(rows: tuple[Tensor, ...], batch: Batch, memory: Tensor) -> Tensor:
        """Return the result of `_remember` by our kernel."""
        q, k, v, beta, decay = (each.contiguous() for each in rows)
        spans = [each for each in row_spans(batch) if each[1] <= len(v)]
        return delta_rule(q, k, v, beta, decay, memory, spans)

    def _remember(self, rows: tuple[Tensor, ...], batch: Batch, memory: Tensor) -> Tensor:
        """Return z [T, V, v] of queries, keys [T, K, k], values [T, V, v], strengths, decays [T, V]; fill `memory`."""
        q, k, v, beta, decay = (each.to(memory.dtype) for each in rows)
        shared = self.sizes.num_value_heads // self.sizes.num_key_heads
        q, k = (each.repeat_interleave(shared, 1) for each in (_unit(q) / self.sizes.key_dim**0.5, _unit(k)))
        both, overlap = torch.stack((k, q), 2), row_sums(q * k)
        beta, decay = beta[..., None], decay[..., None, None]
        out, pair = torch.empty_like(v), torch.empty_like(both[0])  # `pair` gives every product the same alignment
        for span, (first, end) in zip(batch.spans, pairwise(batch.first_rows), strict=True):
            if first >= len(v):
                break
            matrices = torch.zeros_like(memory[0]) if span.start == 0 else memory[span.states[0]].clone()
            for row in range(first, end):
                batch.check()
                matrices *= decay[row]
                found = torch.bmm(pair.copy_(both[row]), matrices)
                change = beta[row] * (v[row] - found[:, 0])
                torch.add(found[:, 1], overlap[row] * change, out=out[row])  # q (S + k change), without a second pass
                matrices.addcmul_(k[row][..., None], change[:, None])
            memory[span.states[1]] = matrices
        return out


def row_spans(batch: Batch) -> list[RowSpan]:
    """Return the rows and states of a batch's sequences, for the kernels."""
    bounds = pairwise(batch.first_rows)
    return [(*rows, *span.states, span.start == 0) for rows, span in zip(bounds, batch.spans, strict=True)]


def _unit(x: Tensor) -> Tensor:
    """Return x [..., n] divided by its length."""
    return x / torch.sqrt(row_sums(x * x) + _EPS)
