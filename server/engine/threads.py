"""Compute threads: how many, for torch and for the compiled attention alike."""

import os

import torch


def use_threads(count: int | None) -> None:
    """Use `count` threads within an operation; None is one for each core this process may run on."""
    count = count or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    try:
        import numba
    except ImportError:
        return
    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(min(count, most))
