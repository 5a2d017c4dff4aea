"""Kernels of gated delta nets on a CPU: `cpu/delta.h`, and the states of layers without attention.

Axes: T rows, K key heads, V value heads (a multiple of K), k and v their widths.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.kernels.checks import check_numbers, check_tensor
from lightwell.model.kernels.library import fields, kernels

_FLOAT32 = (torch.float32,)
RowSpan = tuple[int, int, int, int, bool]
"""The first row of a sequence and the row after its last, its states before and after them, and whether it begins here.
"""


@dataclass(frozen=True, slots=True, eq=False)
class StateCache:
    """The states of a layer without attention."""

    inputs: Tensor
    """The inputs that a convolution keeps, [state, n, channels]."""
    memory: Tensor | None = None
    """The matrices of a delta net, [state, V, k, v] float32, or None."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of one state: n, channels, V, k and v."""
        return (*self.inputs.shape[1:], *(() if self.memory is None else self.memory.shape[1:]))


class CSpan(ctypes.Structure):
    """`Span` of delta.h."""

    _fields_ = fields("l", "first", "end", "read", "write", "is_first")


class CDeltaSizes(ctypes.Structure):
    """`DeltaSizes` of delta.h."""

    _fields_ = fields("l", "num_key_heads", "num_value_heads", "key_dim", "value_dim")


def spans_of(spans: Sequence[RowSpan], num_rows: int, num_states: int | None = None) -> "ctypes.Array[CSpan]":
    """Return spans in the kernels' form. Raises ValueError unless they hold all rows in order, and existing states."""
    bounds = [0, *(end for _, end, *_ in spans)]
    if [first for first, *_ in spans] != bounds[:-1] or bounds[-1] != num_rows or bounds != sorted(bounds):
        raise ValueError(f"spans end at {bounds[1:]}; all of the {num_rows} rows in order are accepted")
    states = [state for _, _, *both, _ in spans for state in both]
    if min(states, default=0) < 0 or (num_states is not None and max(states, default=-1) >= num_states):
        raise ValueError(f"spans have states {states}; 0 to {num_states} (excluded) are accepted")
    return (CSpan * len(spans))(*(CSpan(*each) for each in spans))


def delta_factors(strengths: Tensor, steps: Tensor, rates: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
    """Return sigmoid(strengths), and the decays exp(-rates * softplus(steps + biases)) in float32: [T, V] each.

    strengths, steps [T, V]; rates, biases [V] float32.
    """
    kind = check_numbers("strengths", strengths, 2)
    num_rows, heads = strengths.shape
    check_tensor("steps", steps, (strengths.dtype,), (num_rows, heads))
    for name, each in (("rates", rates), ("biases", biases)):
        check_tensor(name, each, _FLOAT32, (heads,))
    beta, decay = torch.empty_like(strengths), torch.empty(num_rows, heads)
    addresses = (each.data_ptr() for each in (strengths, steps, rates, biases))
    kernels().call(f"delta_factors_{kind}", "ppppllpp", *addresses, num_rows, heads, beta.data_ptr(), decay.data_ptr())
    return beta, decay


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, memory: Tensor, spans: Sequence[RowSpan]
) -> Tensor:
    """Apply the delta rule with q, k [T, K, k] divided by their lengths, and return z [T, V, v].

    v [T, V, v] and beta [T, V] have the dtype of q. decay [T, V] and memory [state, V, k, v] are float32; the spans'
    states in `memory` are read and written.
    """
    kind = check_numbers("q", q, 3)
    (num_rows, key_heads, key_dim), (heads, value_dim) = q.shape, v.shape[1:]
    if key_heads < 1 or heads % key_heads:
        raise ValueError(f"v has {heads} heads for {key_heads} key heads; a multiple is accepted")
    check_tensor("k", k, (q.dtype,), (num_rows, key_heads, key_dim))
    check_tensor("v", v, (q.dtype,), (num_rows, heads, value_dim))
    check_tensor("beta", beta, (q.dtype,), (num_rows, heads))
    check_tensor("decay", decay, _FLOAT32, (num_rows, heads))
    check_tensor("memory", memory, _FLOAT32, (len(memory), heads, key_dim, value_dim))
    sizes, given = CDeltaSizes(key_heads, heads, key_dim, value_dim), spans_of(spans, num_rows, len(memory))
    z = torch.empty_like(v)
    addresses = (each.data_ptr() for each in (q, k, v, beta, decay))
    places = ctypes.addressof(given), len(given), ctypes.addressof(sizes), memory.data_ptr(), z.data_ptr()
    kernels().call(f"delta_rule_{kind}", "pppppplppp", *addresses, *places)
    return z
