"""Measures time: how long a call takes on a device that works asynchronously, and how much of the run's time is
left.
"""

import statistics
import time
from collections.abc import Callable

import torch


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(function: Callable[[], object], device: torch.device, *, repeats: int = 5, calls: int = 1) -> float:
    """Return the median time of a call, of `calls` in a row, after one warm-up call."""
    function()
    times = []
    for _ in range(repeats):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(calls):
            function()
        wait_for(device)
        times.append((time.perf_counter() - began) / calls)
    return statistics.median(times)


class Clock:
    """A run that must end in time: what no longer fits is left out and named."""

    def __init__(self, limit: float) -> None:
        """Set the limit in seconds."""
        self._began = time.monotonic()
        self._limit = limit
        self.left_out: list[str] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def has(self, needed: float, what: str) -> bool:
        """Return whether `needed` more seconds are available; if not, `what` is left out."""
        if self.elapsed + needed <= self._limit:
            return True
        self.left_out.append(what)
        return False
