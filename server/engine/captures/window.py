"""Windows: the places of one sequence's rows in one pass of the network, and the keys that its rows see."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.engine.messages.request import Part

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """The rows of one span: positions start .. start + num_rows of its sequence."""

    span: int
    first_row: int
    start: int
    num_rows: int
    captured: int = 0
    """Positions below this one were captured before (the request was preempted since)."""

    def find(self, positions: Positions, *, again: bool = False) -> Positions:
        """Return the indices of the `positions` with rows in this span that, unless `again`, were never captured."""
        first = self.start if again else max(self.start, self.captured)
        return np.flatnonzero((positions >= first) & (positions < self.start + self.num_rows))

    def rows(self, positions: Positions) -> list[int]:
        """Return the batch rows of these positions."""
        rows: list[int] = (positions - self.start + self.first_row).tolist()
        return rows


def seen_keys(
    config: ModelConfig, part: Part, layer: int, positions: Sequence[int] | Positions, keys: torch.Tensor
) -> torch.Tensor:
    """Return whether each query sees each key: positions [n], keys [m] (positions too) -> bool [n, m]."""
    queries = torch.as_tensor(np.asarray(positions, np.int64), device=keys.device)[:, None]
    distance = keys - queries
    seen = torch.ones_like(distance, dtype=torch.bool)
    if part == "cross":
        return seen
    own = stack_config(config, part)
    if own.causal:
        seen &= distance <= 0
    window = own.window_of(layer)
    return seen if window is None else seen & (distance.abs() < window)
