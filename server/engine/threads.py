"""Compute threads: how many, for torch and for the compiled attention alike."""

import os

import torch

from model.layers.arrays import why_not_compiled

SMALL_MODEL = 16_000_000
"""Weights below which one thread computes. A product of a few microseconds gains little from a second thread, and
waiting for it costs ten times as much as the product when something else runs on its core: the built-in model took 5 ms
a step with one thread and 35 with two beside busy processes (4 with two when they were idle).
"""


def use_threads(count: int | None, num_parameters: int) -> None:
    """Use `count` threads within an operation; None is one for each core this process may run on, one for a small
    model.
    """
    count = count or (1 if num_parameters < SMALL_MODEL else len(os.sched_getaffinity(0)))
    torch.set_num_threads(count)
    if why_not_compiled(torch.float32, torch.device("cpu")) is not None:
        return
    import numba  # here: loading it takes a fifth of a second

    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(min(count, most))
