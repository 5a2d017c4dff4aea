"""Computes a gated delta net, which stands in place of attention in three layers of four of Qwen3.5 (Yang et al. 2024,
arXiv:2412.06464, equation 10).

Each head of values keeps a matrix S, in float32, which each position decays, corrects and reads, with a query q and a
key k of length 1, a value v, a strength beta and a decay:

    S = decay S,    S = S + k (beta (v - k S)),    z = q S / sqrt(d_key)

It runs position by position, and every product has the same shape: a row's bits depend on its own sequence alone,
however that was cut into steps. The price is a few passes over S for each position, prompts included: with 16 heads of
128 x 128 some tenths of a millisecond of one core in each layer.

Axes: T rows that need this layer, d model width, K heads of keys, V heads of values, k and v their numbers.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from model.batch import Batch
from model.config import DeltaNetConfig
from model.hooks.hooks import LayerHooks, hooked
from model.layers.dense_weight import activate
from model.layers.fixed_shapes import row_sums, whole_vectors
from model.layers.linear import Linear
from model.layers.lora import multiply
from model.layers.norm import RmsNorm
from model.network.convolution import Convolution
from model.network.sublayers import BlockInputs

_EPS = 1e-6
"""Added to the squared length of a query or key before it is divided by its length."""


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNet:
    """The delta net with its points."""

    sizes: DeltaNetConfig
    into: Linear
    """Rows of q, k and v, which are convolved, of z, of the strengths and of the steps."""
    convolution: Convolution
    a_log: Tensor
    """[V]: the logarithm of the rate of decay."""
    step_bias: Tensor
    """[V]"""
    norm: RmsNorm
    """Over v."""
    out: Linear
    """[d, V v]"""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return what the net adds: x [T, d] -> [T, d]; what it keeps is written to the states."""
        z, gate = self._read(x, step, layer_hooks)
        normed = self.norm(z.reshape(-1, z.shape[-1])).view(z.shape)
        wide = torch.promote_types(z.dtype, torch.float32)
        y = (normed * activate(gate.reshape(z.shape).to(wide), "silu", batch_invariant=True)).to(z.dtype)
        y = hooked(layer_hooks, "delta.hook_out", y)
        return multiply(self.out, y.flatten(1), step.adapted)

    def write_kv(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Write what is kept of x [T, d] to the states, and do no more."""
        self._read(x, step, layer_hooks)

    @property
    def linears(self) -> dict[str, Linear]:
        """Return its matrices by our names of their weights."""
        return {"delta_in": self.into, "delta_out": self.out}

    def _read(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> tuple[Tensor, Tensor]:
        """Return what the queries of x [T, d] read, [T, V, v], and the gate [T, V v] that it goes through."""
        sizes, states, kept = self.sizes, step.cache.states, step.kept
        assert states is not None
        assert states.memory is not None
        assert kept is not None
        parts = [sizes.convolved_width, sizes.values_width, sizes.num_value_heads, sizes.num_value_heads]
        mixed, gate, strengths, steps = torch.split(multiply(self.into, x, step.adapted), parts, -1)

        convolved = self.convolution(hooked(layer_hooks, "delta.hook_in", mixed), kept, states).to(x.dtype)
        keys = sizes.num_key_heads * sizes.key_dim
        q, k, v = torch.split(activate(convolved, "silu", batch_invariant=True), [keys, keys, sizes.values_width], -1)
        q = hooked(layer_hooks, "delta.hook_q", q.reshape(len(x), -1, sizes.key_dim))
        k = hooked(layer_hooks, "delta.hook_k", k.reshape(len(x), -1, sizes.key_dim))
        v = hooked(layer_hooks, "delta.hook_v", v.reshape(len(x), -1, sizes.value_dim))
        beta = hooked(layer_hooks, "delta.hook_beta", whole_vectors(torch.sigmoid, strengths))
        decay = hooked(layer_hooks, "delta.hook_decay", self._decays(steps, states.memory.dtype))
        z = self._remember((q, k, v, beta, decay), step.batch, states.memory)
        return hooked(layer_hooks, "delta.hook_z", z.to(x.dtype)), gate

    def _decays(self, steps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what each head's matrix is multiplied by, [T, V], from the steps [T, V]."""
        rates = whole_vectors(torch.exp, self.a_log.to(dtype))
        return whole_vectors(torch.exp, -rates * whole_vectors(F.softplus, steps.to(dtype) + self.step_bias.to(dtype)))

    def _remember(self, rows: tuple[Tensor, ...], batch: Batch, memory: Tensor) -> Tensor:
        """Return what the queries read [T, V, v], and write each span's matrices to `memory` [state, V, k, v].

        rows: queries and keys [T, K, k], values [T, V, v], strengths and decays [T, V].
        """
        q, k, v, beta, decay = (each.to(memory.dtype) for each in rows)
        shared = self.sizes.num_value_heads // self.sizes.num_key_heads
        q, k = (each.repeat_interleave(shared, 1) for each in (_unit(q) / self.sizes.key_dim**0.5, _unit(k)))
        both, overlap = torch.stack((k, q), 2), row_sums(q * k)
        beta, decay = beta[..., None], decay[..., None, None]
        out, pair = torch.empty_like(v), torch.empty_like(both[0])  # which a product finds at one alignment
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


def _unit(x: Tensor) -> Tensor:
    """Return x [..., n] divided by its length."""
    return x / torch.sqrt(row_sums(x * x) + _EPS)
