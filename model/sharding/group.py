"""Connections between the processes of one network, which exchange tensors.

All processes must make the same calls in the same order. Each call gives every rank the same bits, and the bits of an
element do not depend on its place in the tensor, so that answers are independent of the batch.
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=5)
"""The longest wait of a rank for another. The end of a process is detected at once, since its connections close."""


class Group:
    """This process as one of the ranks 0 .. size - 1 of `torch.distributed`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, store: Path, rank: int, size: int, device: torch.device) -> "Group":
        """Connect to the other ranks through the file `store`, which only they can read: by gloo between CPUs, by nccl
        between GPUs.

        Returns when this rank no longer needs the file; the others may still need it. Raises torch's DistError after
        `TIMEOUT`.
        """
        if device.type == "cuda":
            torch.cuda.set_device(device)
            backend, card = "nccl", device  # without a device, nccl would read the file only before it first sends
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # or gloo would listen at the host name's address
            backend, card = "gloo", None
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=TIMEOUT, device_id=card
        )
        return cls(rank, size)

    def leave(self) -> None:
        """Close the connections."""
        dist.destroy_process_group()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over all ranks, any shape, in the order of ranks. x may be overwritten.

        The sum of two numbers has one order. With more ranks an all-reduce adds each piece of a tensor in another
        order, and the bits of a row would depend on the rows before it.
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
        """Return x of all ranks, of one shape, concatenated along `axis`."""
        return torch.cat(self._all(x).unbind(), axis)

    def from_leader(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of rank 0. Other ranks pass a tensor of its shape and dtype, which may be overwritten."""
        x = x.contiguous()
        dist.broadcast(x, 0)
        return x

    def _all(self, x: torch.Tensor) -> torch.Tensor:
        """Return x of all ranks, [rank, ...]."""
        found = x.new_empty(self.size, *x.shape)
        dist.all_gather(list(found.unbind()), x.contiguous())
        return found
