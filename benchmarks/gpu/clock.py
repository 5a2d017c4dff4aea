"""Measures time: how long a call takes on a device that works asynchronously, and how much of the run's time is
left.
"""

import statistics
import time
from collections.abc import Callable

import torch


def wait_for(device: torch.device) -> None:
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


def device_seconds(function: Callable[[], object], device: torch.device, *, repeats: int = 5) -> float:
    """Return the median time that a call's kernels take on the device, by its events: the call becomes a graph, so that
    the host does not count.
    """
    if device.type != "cuda":
        return seconds(function, device, repeats=repeats)
    function()  # at the first call kernels are compiled, which cannot be captured
    wait_for(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    graph.replay()
    times: list[float] = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        wait_for(device)
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)


class Clock:
    """The deadline of a run: measurements that no longer fit are skipped and listed."""

    def __init__(self, limit: float) -> None:
        self._began = time.monotonic()
        self._limit = limit
        self.left_out: list[str] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self._limit - self.elapsed

    def has(self, needed: float, what: str) -> bool:
        """Return whether `needed` more seconds are available; if not, add `what` to the skipped measurements."""
        if needed <= self.left:
            return True
        self.left_out.append(what)
        return False
