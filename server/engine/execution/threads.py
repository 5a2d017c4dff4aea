"""The number of compute threads, for torch and for the native kernels."""

import logging
import os

import torch

from lightwell.model.kernels import library
from lightwell.server.engine.memory.cgroups import cpu_quota, within_quota

logger = logging.getLogger(__name__)

SMALL_MODEL, _MOST_FOR_SMALL = 16_000_000, 2
"""Number of weights below which a model is small, and the most threads of a small model. A step of the built-in model
waits for its threads about a hundred times in a few milliseconds: on two idle cores, two threads give 1.1 to 1.3 times
the tokens of one; next to another busy process, half to two thirds of them. More threads were not measured.
"""


def use_threads(count: int | None, num_parameters: int, num_ranks: int = 1, num_workers: int = 1) -> None:
    """Use `count` threads within an operation. None means OMP_NUM_THREADS or, without it, one thread for each core that
    this process may use and has CPU time for; at most two for a small model. `num_ranks` processes share the threads;
    `num_workers` workers share the CPU time of a container's quota.
    """
    count = max(1, (count or _num_threads(num_parameters, num_workers)) // num_ranks)
    library.set_num_threads(count)
    torch.set_num_threads(count)


def _num_threads(num_parameters: int, num_workers: int) -> int:
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told):
        count = int(told)
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = within_quota(cores, num_workers)
        if count < cores:
            logger.info("%d of %d cores compute: the container's quota is %g CPUs", count, cores, cpu_quota())
    return min(count, _MOST_FOR_SMALL) if num_parameters < SMALL_MODEL else count
