"""Serves the hooks of a network that several ranks hold: only rank 0 knows what is done with the numbers.

Every rank gets the points that are read and changed, and where, and runs the same `Hooks`. At a point of which each has
a part, all parts are put together first. What is read is delivered by rank 0 alone; what is changed is changed there
and sent to the others. Without hooks nothing of this runs.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from model.hooks.hooks import Hooks, LayerHooks, RowSink, TensorRegion
from model.sharding.group import Group
from model.sharding.shares import Shares


def requests_of(hooks: Hooks) -> Hooks:
    """Return hooks without what is done with the numbers: plain data, for the other ranks."""
    return Hooks(
        [replace(each, deliver=_nothing) for each in hooks.reads],
        [replace(each, apply=_same) for each in hooks.changes],
        [replace(each, sink=RowSink()) for each in hooks.attention],
        [replace(each, apply=_same) for each in hooks.attention_changes],
    )


def followed(hooks: Hooks, group: Group, shares: Shares) -> Hooks:
    """Return what a rank other than 0 runs for the `requests_of` rank 0's hooks: it delivers nothing and writes the
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
    """Do nothing: for a rank that only helps to compute the numbers."""


def _same(x: torch.Tensor, *_: slice) -> torch.Tensor:
    """Return x: a placeholder until the rank that runs it puts its own function in."""
    return x


class SplitLayerHooks(LayerHooks):
    """The hooks of one layer, of whose points this rank may have a part."""

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
    """Serves the hooks of one pass on rank 0. No hook may end the pass on this rank alone, or begin one within it:
    exceptions are kept until all ranks are through, and so is what was read, since its receiver may run the network
    again (a lens does). Rows of attention, which may be many, are delivered at once: no receiver does so with them.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._problems: list[Exception] = []
        self._found: list[tuple[Callable[[torch.Tensor], None], torch.Tensor]] = []

    def take(self, hooks: Hooks, shares: Shares) -> None:
        """Have the ranks serve the hooks together."""
        hooks.serve_by(lambda layer_hooks: self._led(SplitLayerHooks(layer_hooks, shares)))

    def finish(self) -> None:
        """Deliver what was read, after the pass. Raises the first exception that was kept."""
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
