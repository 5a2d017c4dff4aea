"""Hooks of a network in several ranks. Only rank 0 has the callbacks of the hooks.

Every rank gets the points, rows and heads of all reads and changes, and runs the same `Hooks`. The parts of a split
point are gathered first. Only rank 0 delivers reads. It also applies changes, and sends the results to the others.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from lightwell.model.hooks.hooks import Hooks, LayerHooks, RowSink, TensorRegion
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import Shares


def requests_of(hooks: Hooks) -> Hooks:
    """Return hooks without callbacks: plain data, for the other ranks."""
    return Hooks(
        [replace(each, deliver=_nothing) for each in hooks.reads],
        [replace(each, apply=_same) for each in hooks.changes],
        [replace(each, sink=RowSink()) for each in hooks.attention],
        [replace(each, apply=_same) for each in hooks.attention_changes],
    )


def followed(hooks: Hooks, group: Group, shares: Shares) -> Hooks:
    """Return the hooks of a rank other than 0, from `requests_of` rank 0's hooks: they deliver nothing, and write the
    changes that rank 0 sends.
    """

    def receive(x: torch.Tensor, *_: slice) -> torch.Tensor:
        return group.from_leader(torch.empty(x.shape, dtype=x.dtype, device=x.device))

    changes = [replace(each, apply=receive) for each in hooks.changes]
    attention_changes = [replace(each, apply=receive) for each in hooks.attention_changes]
    own = Hooks(hooks.reads, changes, hooks.attention, attention_changes)
    own.serve_by(lambda layer_hooks: SplitLayerHooks(layer_hooks, shares))
    return own


def _nothing(*_: object) -> None:
    """Do nothing: for a rank that delivers no reads."""


def _same(x: torch.Tensor, *_: slice) -> torch.Tensor:
    """Return x: a placeholder for a rank's own function."""
    return x


class SplitLayerHooks(LayerHooks):
    """The hooks of one layer, with points that may be split over the ranks."""

    def __init__(self, layer_hooks: LayerHooks, shares: Shares) -> None:
        super().__init__(layer_hooks.layer)
        self.reads, self.changes = layer_hooks.reads, layer_hooks.changes
        self.attention, self.attention_changes = layer_hooks.attention, layer_hooks.attention_changes
        self._shares = shares

    def __call__(self, point: str, x: torch.Tensor, region: TensorRegion | None = None) -> torch.Tensor:
        share = self._shares.of_point(point)
        if share is None or not self.wants(point):
            return super().__call__(point, x, region)
        whole = share.whole(x, 1)
        changed = super().__call__(point, whole, region)
        return x if changed is whole else share.part(changed, 1)

    def derive(self, point: str, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        share = self._shares.of_point(point)
        super().derive(point, compute if share is None else lambda rows: share.whole(compute(rows), 1))


class _CatchingSink(RowSink):
    """A sink that collects the exceptions of another one."""

    def __init__(self, sink: RowSink, problems: list[Exception]) -> None:
        self._sink = sink
        self._problems = problems

    def take(self, layer: int, first: int, rows: torch.Tensor) -> None:
        try:
            self._sink.take(layer, first, rows)
        except Exception as problem:
            self._problems.append(problem)


class Leading:
    """The hooks of one pass on rank 0.

    No hook may end the pass on only this rank, or begin another pass within it. So exceptions are kept until all ranks
    have finished, and so are reads, since their receivers may run the network again (as a lens does). Rows of
    attention, which may be many, are delivered at once: none of their receivers runs the network.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._problems: list[Exception] = []
        self._found: list[tuple[Callable[[torch.Tensor], None], torch.Tensor]] = []

    def take(self, hooks: Hooks, shares: Shares) -> None:
        """Prepare the hooks for a pass of all ranks."""
        hooks.serve_by(lambda layer_hooks: self._led(SplitLayerHooks(layer_hooks, shares)))

    def finish(self) -> None:
        """Deliver the reads after the pass. Raises the first kept exception."""
        if self._problems:
            raise self._problems[0]
        for deliver, found in self._found:
            deliver(found)

    def _led(self, layer_hooks: SplitLayerHooks) -> SplitLayerHooks:
        layer_hooks.reads = {
            point: [replace(read, deliver=self._later(read.deliver)) for read in reads]
            for point, reads in layer_hooks.reads.items()
        }
        layer_hooks.changes = {
            point: [replace(change, apply=self._sent(change.apply)) for change in changes]
            for point, changes in layer_hooks.changes.items()
        }
        layer_hooks.attention = [
            replace(tap, sink=_CatchingSink(tap.sink, self._problems)) for tap in layer_hooks.attention
        ]
        layer_hooks.attention_changes = [
            replace(change, apply=self._sent(change.apply)) for change in layer_hooks.attention_changes
        ]
        return layer_hooks

    def _later(self, deliver: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        return lambda found: self._found.append((deliver, found))

    def _sent(self, apply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def sent(x: torch.Tensor, *some: slice) -> torch.Tensor:
            changed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            try:
                changed.copy_(apply(x, *some))
            except Exception as problem:
                self._problems.append(problem)
                changed.copy_(x)
            return self._group.from_leader(changed)

        return sent
