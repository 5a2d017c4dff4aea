"""The layers of a network that is split over ranks, with their communication.

Each block has two sums over the ranks (of the attention's and the mlp's output). The embedding has one sum, and the
logits have one gather. Each point that a hook reads or changes has one gather.

Axes: T rows, H query heads, D head dimension, S keys of one sequence; H' of these on this rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lightwell.model.batch import KeyRange
from lightwell.model.hooks.attention_hooks import Attended, apply_hooks, deliver_results, deliver_rows
from lightwell.model.hooks.hooks import LayerHooks
from lightwell.model.layers.attention import AttentionRows, AttentionRule, CachedKV
from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.norm import Norm
from lightwell.model.layers.token_table import TokenTable
from lightwell.model.network.sublayers import AttentionHeads, BlockInputs
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import Share, Shares


class SummedLinear(Linear):
    """A matrix with its columns split over the ranks: y = sum over ranks (x W^T) + b, with each rank's columns of x."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, group: Group, **options: Any) -> None:
        """Keep weight [out, own in] and bias [out], the same on every rank. options: of `Linear`."""
        super().__init__(weight, bias, **options)
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output: x [rows, own in] -> [rows, out], the same on every rank."""
        y = self._group.sum(self.product(x))
        return y if self.bias is None else y + self.bias

    def product_of_whole(self, x: torch.Tensor, share: Share) -> torch.Tensor:
        """Return x W^T of the whole matrix, without the bias: x [rows, in], the same on every rank -> [rows, out]."""
        own = share.part(x.view(len(x), share.total, -1), 1).flatten(1)
        return self._group.sum(self.product(own))


class GatheredLinear(Linear):
    """A matrix with its rows split over the ranks and its output on all: the head."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, share: Share, **options: Any) -> None:
        """Keep weight [own out, in] and bias [own out]. options: of `Linear`."""
        super().__init__(weight, bias, **options)
        self._share = share

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._share.whole(super().__call__(x), 1)

    def find_largest(self, x: torch.Tensor) -> None:
        """Return None: a rank has only some rows of the matrix."""


class SplitTokenTable(TokenTable):
    """A table with its rows split over the ranks."""

    def __init__(self, weight: torch.Tensor, share: Share, tied: Linear | None = None) -> None:
        """Keep weight [own words, e]. tied: as in `TokenTable`, with the same rows."""
        super().__init__(weight, tied)
        self._share = share

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        own = ids - self._share.start
        is_ours = (ids >= self._share.start) & (ids < self._share.stop)
        rows = super().__call__(own.clamp(0, self._share.stop - self._share.start - 1))
        return self._share.group.sum(rows.masked_fill(~is_ours[:, None], 0))


class NormOfAllHeads:
    """A norm over all heads at once, which are split over the ranks. It gathers all heads, to keep the same bits."""

    def __init__(self, norm: Norm, share: Share) -> None:
        """Keep norm, with a weight [all heads D]."""
        self._norm = norm
        self._share = share
        self._size = norm.weight.shape[0] // share.total
        self.weight = share.part(norm.weight, 0, self._size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed rows: x [T, own heads D] -> the same shape."""
        return self._share.part(self._norm(self._whole(x)), 1, self._size)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm's scale: x [T, own heads D] -> [T, 1]."""
        return self._norm.scale(self._whole(x))

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised rows: x [T, own heads D] -> the same shape."""
        return self._share.part(self._norm.normalized(self._whole(x)), 1, self._size)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        return self._share.whole(x.view(len(x), -1, self._size), 1).flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class SplitHeads(AttentionHeads):
    """This rank's heads of an attention."""

    are_all: ClassVar[bool] = False
    shares: Shares

    def _attend_with_hooks(
        self, q: torch.Tensor, step: BlockInputs, key_range: KeyRange, layer_hooks: LayerHooks, *, cross: bool
    ) -> torch.Tensor:
        """Return z [T, H', D] of q [T, H', D]. Changes of scores or patterns apply to z of all heads, on every rank."""
        z = self.attention.attend(q, step.cache, step.batch, key_range, self.rule)
        if not (layer_hooks.attention or layer_hooks.attention_changes):
            return z
        attended = self.attended(q, step, key_range, cross=cross)
        if not any(change.cross == cross for change in layer_hooks.attention_changes):
            deliver_rows(attended, layer_hooks)
            return z
        heads = self.shares.heads
        return heads.part(apply_hooks(attended, heads.whole(z, 1), layer_hooks), 1)

    def attended(self, q: torch.Tensor, step: BlockInputs, key_range: KeyRange, *, cross: bool) -> Attended:
        attention = AttentionOfAll(self.attention, self.shares.heads)
        return Attended(attention, self.rule, q, step.cache, key_range, cross, step.batch.check)

    def deliver_results(
        self, z: torch.Tensor, out: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks
    ) -> torch.Tensor:
        point, heads = f"{self.name}.hook_result", self.shares.heads
        if not layer_hooks.wants(point):
            return out
        assert isinstance(self.out, SummedLinear)
        projection = self.out
        return deliver_results(
            point, lambda x, rows: projection.product_of_whole(x, heads), heads.whole(z, 1), out, layer_hooks
        )


class AttentionOfAll:
    """Attention of any head on every rank, for hooks: each rank computes its own heads, and all are summed."""

    def __init__(self, own: AttentionRows, share: Share) -> None:
        self._own = own
        self._share = share

    def rows(
        self, q: torch.Tensor, rows: Sequence[int], heads: Sequence[int], span: CachedKV, rule: AttentionRule, kind: str
    ) -> torch.Tensor:
        """Return the attention of any of the H heads: q [T, H', D] -> [heads, rows, S]."""
        places, own = self._ours(heads)
        shape = len(heads), len(rows), span.num_keys
        whole = torch.zeros(shape, dtype=at_least_float32(q.dtype), device=q.device)
        if own:
            whole[places] = self._own.rows(q, rows, own, span, rule, kind)
        return self._share.group.sum(whole)

    def softmax(self, scores: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        return self._own.softmax(scores, sinks)

    def mix(self, pattern: torch.Tensor, heads: Sequence[int], num_heads: int, span: CachedKV) -> torch.Tensor:
        """Return pattern [heads, rows, S] of any of the H heads times their values: [heads, rows, D]."""
        places, own = self._ours(heads)
        values = span.cache.values
        whole = values.new_zeros(*pattern.shape[:2], values.shape[3])
        if own:
            whole[places] = self._own.mix(pattern[places], own, self._share.width, span)
        return self._share.group.sum(whole)

    def _ours(self, heads: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the places in `heads` of this rank's heads, and their numbers on this rank."""
        first, stop = self._share.start, self._share.stop
        places = [i for i, head in enumerate(heads) if first <= head < stop]
        return places, [heads[i] - first for i in places]
