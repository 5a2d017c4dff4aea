"""Steps of several ranks on their GPUs: each gets the same numbers and runs the same kernels or graphs on its part of
the network. All compute the same logits; rank 0 chooses the tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers import device_batch
from lightwell.model.ranks.commands import Command, DropCache, Follower, Load
from lightwell.model.ranks.leader import LeadingTransformer
from lightwell.model.sharding.group import Group
from lightwell.server.engine.execution.cuda_graphs import StepSizes
from lightwell.server.engine.execution.device_executor import DeviceExecutor, DeviceResult, DeviceStep


@dataclass(frozen=True, slots=True)
class PrepareDevice:
    """A command to prepare for the steps of a cache, with arguments of `DeviceExecutor`."""

    cache: int
    sizes: StepSizes
    has_graphs: bool


@dataclass(frozen=True, slots=True)
class RunOnDevice:
    """A command to run a step. numbers: [n] int32."""

    cache: int
    step: DeviceStep
    numbers: np.ndarray


class LeadingExecutor(DeviceExecutor):
    """Rank 0's executor, which sends each step to the other ranks."""

    def __init__(self, model: LeadingTransformer, cache: KVCache, sizes: StepSizes, has_graphs: bool) -> None:
        """Prepare all ranks, as `DeviceExecutor` does."""
        self._leading, self._number = model, model.number_of(cache)
        with model.lead(PrepareDevice(self._number, sizes, has_graphs)):
            super().__init__(model.share, cache, sizes, has_graphs, model.group)

    def run(self, step: DeviceStep, numbers: Tensor, batch: Batch | None = None) -> DeviceResult:
        with self._leading.lead(RunOnDevice(self._number, step, numbers.numpy()), batch):
            return super().run(step, numbers, batch)


class DeviceFollower(Follower):
    """A rank other than 0."""

    def __init__(self, group: Group, device: torch.device) -> None:
        super().__init__(group, device)
        self._executors: dict[int, DeviceExecutor] = {}

    def do(self, command: Command | PrepareDevice | RunOnDevice) -> None:
        match command:
            case PrepareDevice(number, sizes, has_graphs):
                cache = self.caches[number]
                self._executors[number] = DeviceExecutor(self.model, cache, sizes, has_graphs, self.group)
            case RunOnDevice(number, step, numbers):
                on_host = device_batch.on_host(len(numbers), self.model.device)
                on_host.numpy()[:] = numbers
                self._executors[number].run(step, on_host)
            case _:
                if isinstance(command, Load):
                    self._executors.clear()
                elif isinstance(command, DropCache):
                    self._executors.pop(command.number, None)
                super().do(command)
