"""Computes how many replicas there should be, with the arithmetic of Kubernetes' HorizontalPodAutoscaler
(autoscaling/v2).

It knows counts and times. It starts and ends nothing.
"""

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoscalingLimits:
    """Limits of the autoscaler. Names and defaults are Kubernetes'; `target` is the average of the metric that each
    replica should have.
    """

    target: float
    least: int = 1
    most: int = 1000
    metric: str = "unfinished"  # running and waiting requests; or "waiting"
    sync_period: float = 15.0
    tolerance: float = 0.1
    up_window: float = 0.0  # stabilizationWindowSeconds
    down_window: float = 300.0
    up_percent: float = 100.0  # a period, or
    up_pods: int = 4  # a period, whichever is more
    down_percent: float = 100.0
    period: float = 15.0

    def __post_init__(self) -> None:
        if self.target <= 0:
            raise ValueError(f"target is {self.target}; it must be above 0")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least is {self.least} and most {self.most}; they must be at least 1, in this order")
        if self.metric not in ("unfinished", "waiting"):
            raise ValueError(f"metric is {self.metric!r}; it must be unfinished or waiting")


class Autoscaler:
    """The autoscaler; call it every `sync_period`."""

    def __init__(self, limits: AutoscalingLimits) -> None:
        self.limits = limits
        self._wanted: deque[tuple[float, int]] = deque()  # what was reckoned when, as far back as the windows reach
        self._changes: deque[tuple[float, int]] = deque()  # what was changed when, as far back as a period

    def replicas(self, now: float, current: int, total: float) -> int:
        """Return how many there should be, of `current` that have `total` of the metric together."""
        limits = self.limits
        usage = total / (limits.target * current)
        wanted = current if abs(usage - 1) <= limits.tolerance else math.ceil(total / limits.target)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - max(limits.up_window, limits.down_window):
            self._wanted.popleft()
        # The least of what was wanted lately may be gone up to at once, the most of it down to.
        floor = min(count for at, count in self._wanted if at >= now - limits.up_window)
        ceiling = max(count for at, count in self._wanted if at >= now - limits.down_window)
        steady = min(max(current, floor), ceiling)
        chosen = max(limits.least, min(limits.most, self._within_rate(now, current, steady)))
        if chosen != current:
            self._changes.append((now, chosen - current))
        return chosen

    def _within_rate(self, now: float, current: int, wanted: int) -> int:
        limits = self.limits
        while self._changes and self._changes[0][0] <= now - limits.period:
            self._changes.popleft()
        if wanted > current:
            before = current - sum(change for _, change in self._changes if change > 0)
            return min(wanted, max(math.ceil(before * (1 + limits.up_percent / 100)), before + limits.up_pods))
        before = current - sum(change for _, change in self._changes if change < 0)
        return max(wanted, math.floor(before * (1 - limits.down_percent / 100)))
