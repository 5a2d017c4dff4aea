"""Mixtures of experts: a router chooses some feed-forward networks for each row (Shazeer et al. 2017,
arXiv:1701.06538).

The bits of a row depend only on that row, if the bits of its products do: experts are chosen by a stable sort, and
their outputs are summed in the order of their numbers.

Axes: rows, d, E experts, C experts chosen for a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce

import torch
from torch import Tensor

from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.mlp import Mlp
from lightwell.model.layers.norm import Norm


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Feed-forward networks and the router that chooses among them."""

    router: Linear
    """[E, d]"""
    experts: Sequence[Mlp]
    _: KW_ONLY
    num_chosen: int
    """C"""
    normalized: bool
    """Whether the weights of the chosen experts are divided by their sum."""
    softmax: Callable[[Tensor], Tensor]
    """A function over the last axis of [1, rows, E]."""
    shared: Mlp | None = None
    """An expert for every row."""
    shared_gate: Linear | None = None
    """[1, d]: the sigmoid of its product is a factor of the shared expert's output."""
    router_norm: Norm | None = None
    """The norm of the router's input, before a division by sqrt(d)."""
    scales: Tensor | None = None
    """[E]: factors of the experts' outputs."""

    @property
    def linears(self) -> list[Linear]:
        mlps = self.experts if self.shared is None else [*self.experts, self.shared]
        gates = [] if self.shared_gate is None else [self.shared_gate]
        return [self.router, *gates, *(linear for mlp in mlps for linear in (mlp.up, mlp.down))]

    def route(self, x: Tensor) -> Tensor:
        """Return the router's logits [rows, E] of x [rows, d]."""
        if self.router_norm is not None:
            x = self.router_norm(x) * x.shape[-1] ** -0.5
        return self.router(x)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of the router's logits [rows, E], float32, or float64 in float64."""
        return self.softmax(logits.to(at_least_float32(logits.dtype))[None])[0]

    def choose(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts with the largest probabilities [rows, E], largest first, and the weights of their outputs,
        both [rows, C].
        """
        ordered, experts = probabilities.sort(dim=-1, descending=True, stable=True)
        weights = ordered[:, : self.num_chosen]
        if self.normalized:
            weights = weights / reduce(torch.add, weights.unbind(-1))[:, None]
        experts = experts[:, : self.num_chosen]
        return experts, weights if self.scales is None else weights * self.scales[experts]

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the sum [rows, d] of the outputs of the chosen experts [rows, C] for x [rows, d], with their weights
        [rows, C], and of the shared expert's output.
        """
        mixed = self._mixed(x, chosen, weights)
        if self.shared is None:
            return mixed
        shared = self.shared.down(self.shared.hidden(x, None))
        if self.shared_gate is not None:  # sigmoid(g) = softmax(g, 0)[0]
            gate = self.shared_gate(x)  # [rows, 1]
            shared = shared * self.probabilities(torch.cat((gate, torch.zeros_like(gate)), -1))[:, :1].to(x.dtype)
        return mixed + shared

    def _mixed(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        pairs = chosen.flatten().argsort(stable=True)  # (row, expert) pairs, sorted by expert
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        # index_select copies few rows in this thread; x[...] would start torch's thread pool and wait for it.
        given = torch.split(x.index_select(0, pairs // self.num_chosen), counts)
        busy = [(expert, own) for expert, own in zip(self.experts, given, strict=True) if len(own)]
        made = torch.cat([expert.down(expert.hidden(own, None)) for expert, own in busy])
        made *= weights.to(x.dtype).flatten().index_select(0, pairs)[:, None]
        places = pairs.argsort().view(chosen.shape).sort(-1).values  # the outputs of each row, sorted by expert
        return reduce(torch.add, made.index_select(0, places.flatten()).view(*chosen.shape, -1).unbind(1))
