"""Connects the processes that share one network, and sends tensors between them. It knows tensors, but not what they
mean.

All of them must make the same calls in the same order. Each call gives every rank the same bits, and an element's bits
do not depend on its place in the tensor, so that answers stay independent of the batch.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=5)
"""The time after which a rank that waits for another gives up. One that has died is noticed at once: its connections
close.
"""


class Group:
    """The ranks 0 .. size - 1 of `torch.distributed`, of which this process is one."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, store: Path, rank: int, size: int, device: torch.device) -> "Group":
        """Meet the others through the file `store`, which only they can read: by gloo between CPUs, nccl between GPUs.

        Returns when this one no longer needs the file, while others still may. Raises torch's DistError when they are
        not there in time.
        """
        if device.type == "cuda":
            torch.cuda.set_device(device)
            backend, card = "nccl", device  # without its card, nccl would look into the file only when it first sends
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # or gloo would listen where the host's name leads
            backend, card = "gloo", None
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=TIMEOUT, device_id=card
        )
        return cls(rank, size)

    def leave(self) -> None:
        """Close the connections."""
        dist.destroy_process_group()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of x, any shape, in their order; x may be written to.

        Two numbers have one sum. Of more, an all-reduce adds each piece of a tensor in another order, which would make
        a row's bits depend on the rows before it.
        """
        if self.size > 2:
            first, *others = self._all(x).unbind()
            for other in others:
                first = first + other
            return first
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def gather(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Return x of all ranks, which have the same shape, concatenated along `axis`."""
        return torch.cat(self._all(x).unbind(), axis)

    def from_leader(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of rank 0; the others pass a tensor of its shape and dtype, which may be written to."""
        x = x.contiguous()
        dist.broadcast(x, 0)
        return x

    def _all(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of all ranks, [rank, ...]."""
        found = x.new_empty(self.size, *x.shape)
        dist.all_gather(list(found.unbind()), x.contiguous())
        return found
