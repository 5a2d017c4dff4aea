"""Reader of one network's weights by their names, as plain matrices; it splits fused weights.

A weight is returned as the network uses it, unpacked and on the CPU. The last whole weight is cached, since questions
about heads read one layer after another.
"""

from typing import Protocol

import torch

from lightwell.model.analysis.circuits import Head
from lightwell.model.analysis.matrices import NamedWeight
from lightwell.model.config import ModelConfig


class Lookup(Protocol):
    """Weights by the names of `model.analysis.live_weights`."""

    def __call__(self, name: str, /) -> torch.Tensor | None:
        """Return a weight, [out, in] or [out], or None if there is no such weight."""

    def stored_as(self, name: str) -> str | None:
        """Return the format in which a weight is stored, as readable text, or None if there is no such weight."""


_SHARED = ("embed", "embed_out", "head", "transform_dense", "transform_norm", "classifier_dense", "classifier_norm",
           "classifier")  # fmt: skip
"""Owners of weights that belong to the whole model, not to a stack."""


class WeightReader:
    """The weights of one stack, by their names without the stack's."""

    def __init__(self, lookup: Lookup, prefix: str = "") -> None:
        """Read the stack with this prefix: "encoder." for the encoder of an encoder-decoder."""
        self._lookup = lookup
        self._prefix = prefix
        self._last: tuple[str, torch.Tensor | None] = ("", None)

    def get(self, name: str) -> torch.Tensor | None:
        full = name if name.rpartition(".")[0] in _SHARED else self._prefix + name
        if self._last[0] != full:
            weight = self._lookup(full)
            self._last = (full, None if weight is None else weight.cpu())
        return self._last[1]

    def need(self, name: str) -> torch.Tensor:
        """Return a weight. Raises ValueError when the network has no such weight."""
        weight = self.get(name)
        if weight is None:
            raise ValueError(f"this network has no weight {name!r}")
        return weight

    def heads_of_output(self, name: str, head_dim: int) -> torch.Tensor:
        """Return W_O of every head, [head, D, d_model], from [d_model, heads D]."""
        weight = self.need(name)
        return weight.T.reshape(-1, head_dim, weight.shape[0])

    def matrix(self, weight: NamedWeight, head: int | None = None) -> torch.Tensor:
        """Return a matrix with its heads side by side, or one head's part of it; a view of the weight if possible."""
        if head is not None:
            return self.named(weight, head)
        part = self._rows(weight)
        return part.T if weight.is_turned else part

    def named(self, weight: NamedWeight, head: int | None = None) -> torch.Tensor:
        """Return a weight with TransformerLens's axes, or one head of it, without the axis of heads; a view of the
        weight if possible.
        """
        part = self._rows(weight)
        if weight.num_heads is None or len(weight.shape) == 2:  # a matrix or vector, or a bias of heads
            whole = (part.T if weight.is_turned else part).reshape(weight.shape)
        elif weight.axes[-1] == "d_head":
            whole = part.reshape(weight.num_heads, -1, part.shape[1]).transpose(1, 2)
        else:
            whole = part.T.reshape(weight.shape)
        return whole if head is None else whole[head]

    def _rows(self, weight: NamedWeight) -> torch.Tensor:
        return self.need(weight.weight.removeprefix(self._prefix))[weight.first : weight.last]

    def head(self, config: ModelConfig, layer: int, head: int, *, is_cross: bool = False) -> Head:
        """Return the factors of one query head, with its key head's W_K and W_V, in float64.

        Raises ValueError for NaN and infinite numbers, since they have no singular values.
        """
        kv_layer, config = config.kv_layer(layer), config.at(layer)
        size, group = config.head_dim, head // (config.num_heads // config.num_kv_heads)
        q, kv = config.num_heads * size, config.num_kv_heads * size
        name = f"layers.{layer}."
        if is_cross:
            queries, keys = self.need(f"{name}cross_q.weight"), self.need(f"{name}cross_kv.weight")
            start = 0
        else:
            queries = self.need(f"{name}qkv.weight")
            keys = self.need(f"layers.{kv_layer}.qkv.weight")  # with heads of the same sizes
            start = 2 * q if config.attention_gate else q  # gates are in between

        def wide(part: torch.Tensor) -> torch.Tensor:
            if not part.isfinite().all():
                raise ValueError(
                    f"the weights of layer {layer}, head {head}, are damaged: they contain NaN or infinite numbers"
                )
            return part.to(torch.float64)

        def rows(weight: torch.Tensor, first: int) -> torch.Tensor:
            return wide(weight[first : first + size].T)

        outputs = self.heads_of_output(f"{name}{'cross_out' if is_cross else 'attn_out'}.weight", size)
        return Head(
            w_q=rows(queries, head * size),
            w_k=rows(keys, start + group * size),
            w_v=rows(keys, start + kv + group * size),
            w_o=wide(outputs[head]),
        )
