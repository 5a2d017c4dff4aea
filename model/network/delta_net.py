"""Computes a gated delta net, which stands in place of attention in three layers of four of Qwen3.5 (Yang et al. 2024,
arXiv:2412.06464, equation 10).

Each head of values keeps a matrix S, in float32, which each position decays, corrects and reads, with a query q and a
key k of length 1, a value v, a strength beta and a decay:

    S = decay S,    S = S + k (beta (v - k S)),    z = q S / sqrt(d_key)

It runs position by position, all sequences of a step together: a row's bits depend on its own sequence alone, however
that was cut into steps. The price is a pass over S for each position: of 16 heads of 128 x 128 half a millisecond of
one core in each layer, so that a long prompt takes as long as if it were written.

Axes: T rows that need this layer, S spans, d model width, K heads of keys, V heads of values, k and v their numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from model.batch import Check
from model.config import DeltaNetConfig
from model.hooks.hooks import LayerHooks
from model.layers.dense_weight import activate_in_any_batch
from model.layers.fixed_shapes import row_sums, whole_vectors
from model.layers.linear import Linear
from model.layers.lora import multiply
from model.layers.norm import RmsNorm
from model.network.convolution import Convolution, KeptInputs
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
    a_log: torch.Tensor
    """[V]: the logarithm of the rate of decay."""
    step_bias: torch.Tensor
    """[V]"""
    norm: RmsNorm
    """Over v."""
    out: Linear
    """[d, V v]"""

    def __call__(self, x: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> torch.Tensor:
        """Return what the net adds: x [T, d] -> [T, d]; what it keeps is written to the states."""
        z, gate = self._read(x, step, layer_hooks)
        normed = self.norm(z.reshape(-1, z.shape[-1])).view(z.shape)
        wide = torch.promote_types(z.dtype, torch.float32)
        y = (normed * activate_in_any_batch(gate.reshape(z.shape).to(wide), "silu")).to(z.dtype)
        if layer_hooks is not None:
            y = layer_hooks("delta.hook_out", y)
        return multiply(self.out, y.flatten(1), step.adapted)

    def write_kv(self, x: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Write what is kept of x [T, d] to the states, and do no more."""
        self._read(x, step, layer_hooks)

    @property
    def linears(self) -> dict[str, Linear]:
        """Return its matrices by our names of their weights."""
        return {"delta_in": self.into, "delta_out": self.out}

    def _read(
        self, x: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the queries of x [T, d] read, [T, V, v], and the gate [T, V v] that it goes through."""
        sizes, states, kept = self.sizes, step.cache.states, step.kept
        assert states is not None
        assert states.memory is not None
        assert kept is not None
        parts = [sizes.convolved_width, sizes.values_width, sizes.num_value_heads, sizes.num_value_heads]
        mixed, gate, strengths, steps = torch.split(multiply(self.into, x, step.adapted), parts, -1)

        def hooked(name: str, numbers: torch.Tensor) -> torch.Tensor:
            return numbers if layer_hooks is None else layer_hooks(f"delta.{name}", numbers)

        convolved = self.convolution(hooked("hook_in", mixed), kept, states).to(x.dtype)
        keys = sizes.num_key_heads * sizes.key_dim
        q, k, v = torch.split(activate_in_any_batch(convolved, "silu"), [keys, keys, sizes.values_width], -1)
        q = hooked("hook_q", q.reshape(len(x), -1, sizes.key_dim))
        k = hooked("hook_k", k.reshape(len(x), -1, sizes.key_dim))
        v = hooked("hook_v", v.reshape(len(x), -1, sizes.value_dim))
        beta = hooked("hook_beta", whole_vectors(torch.sigmoid, strengths))
        decay = hooked("hook_decay", self._decays(steps, states.memory.dtype))
        z = self._remember((q, k, v, beta, decay), kept.leading(len(x)), states.memory, step.batch.check)
        return hooked("hook_z", z.to(x.dtype)), gate

    def _decays(self, steps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what each head's matrix is multiplied by, [T, V], from the steps [T, V]."""
        rates = whole_vectors(torch.exp, self.a_log.to(dtype))
        return whole_vectors(torch.exp, -rates * whole_vectors(F.softplus, steps.to(dtype) + self.step_bias.to(dtype)))

    def _remember(
        self, rows: tuple[torch.Tensor, ...], kept: KeptInputs, memory: torch.Tensor, check: Check
    ) -> torch.Tensor:
        """Return what the queries read [T, V, v], and write each span's matrices to `memory` [state, V, k, v].

        rows: queries and keys [T, K, k], values [T, V, v], strengths and decays [T, V].
        """
        q, k, v, beta, decay = (each.to(memory.dtype) for each in rows)
        shared = self.sizes.num_value_heads // self.sizes.num_key_heads
        q = (_unit(q) / self.sizes.key_dim**0.5).repeat_interleave(shared, 1)[..., None]
        k = _unit(k).repeat_interleave(shared, 1)[..., None]
        v, beta, decay = v[:, :, None], beta[..., None, None], decay[..., None, None]
        out, counts = torch.empty_like(v), np.diff(kept.first_rows)
        order = np.argsort(-counts, kind="stable")  # those that have rows left are always the first
        longest_first = torch.from_numpy(order).to(memory.device)
        matrices = kept.old(memory)[longest_first]
        for here in _by_position(kept.first_rows[:-1][order], counts[order]):
            check()
            at = here.to(memory.device)
            now = matrices[: len(at)]
            now *= decay[at]
            key = k[at]
            now += key * (beta[at] * (v[at] - _summed(now * key)))
            out[at] = _summed(now * q[at])
        memory[kept.write[longest_first]] = matrices
        return out[:, :, 0]


def _by_position(first_rows: np.ndarray, counts: np.ndarray) -> Iterator[torch.Tensor]:
    """Yield the n-th row of each span that has so many, for n = 0, 1, ...: [spans], the longest first."""
    for place in range(int(counts[0])):
        yield torch.from_numpy(first_rows[: np.count_nonzero(counts > place)] + place)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Return x [..., n] divided by its length."""
    return x / torch.sqrt(row_sums(x * x) + _EPS)


def _summed(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over the axis before the last, [..., n, v] -> [..., 1, v], in halves: an order that depends on n
    alone.
    """
    while (half := x.shape[-2] // 2) > 0:
        left = x[..., 2 * half :, :]  # one, of an odd number
        x = x[..., :half, :] + x[..., half : 2 * half, :]
        x = x if not left.shape[-2] else torch.cat((x, left), -2)
    return x
