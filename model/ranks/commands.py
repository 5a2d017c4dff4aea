"""The commands of rank 0 to the other ranks, as plain data, and their execution. Independent of processes.

After a command is sent, all ranks run the same method of `Transformer`, and exchange tensors through
`model.sharding.group`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from lightwell.model.ranks.hooks import followed
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import shares_of


@dataclass(frozen=True, slots=True)
class Load:
    """A command to load a share of a model, in place of the last one."""

    folder: Path
    dtype: torch.dtype
    max_model_len: int | None
    batch_invariant: bool | None
    kernels: KernelConfig = AUTO

    def run(
        self,
        config: ModelConfig,
        device: torch.device,
        group: Group,
        progress: Callable[[int, int], None] | None = None,
    ) -> Transformer:
        """Return this rank's share of the model. Raises what `load_model` raises."""
        return load_model(
            self.folder,
            config,
            self.dtype,
            device,
            max_model_len=self.max_model_len,
            kernels=self.kernels,
            batch_invariant=self.batch_invariant,
            progress=progress,
            group=group,
        )


@dataclass(frozen=True, slots=True)
class NewCache:
    """A command to make a cache with this number."""

    number: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class DropCache:
    """A command to free an unused cache."""

    number: int


@dataclass(frozen=True, slots=True)
class Forward:
    """A command to run `Transformer.forward`."""

    spans: Sequence[Span]
    block_size: int
    cache: int
    requested: Hooks | None


@dataclass(frozen=True, slots=True)
class Encode:
    """A command to run `Transformer.encode`."""

    spans: Sequence[Span]
    block_size: int
    requested: Hooks | None


@dataclass(frozen=True, slots=True)
class WriteCrossKV:
    """A command to run `Transformer.write_cross_kv` on hidden states of this shape and dtype, which rank 0 sends."""

    shape: torch.Size
    dtype: torch.dtype
    cache: int
    slots: np.ndarray
    requested: Hooks | None


@dataclass(frozen=True, slots=True)
class Logits:
    """A command to run `Transformer.logits` on hidden states of this shape and dtype, which rank 0 sends."""

    shape: torch.Size
    dtype: torch.dtype


Command = Load | NewCache | DropCache | Forward | Encode | WriteCrossKV | Logits


class Follower:
    """A rank other than 0, which executes commands."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group = group
        self._device = device
        self._model: Transformer | None = None
        self.caches: dict[int, KVCache] = {}
        """The caches by their numbers."""

    @property
    def model(self) -> Transformer:
        """Return this rank's share of the loaded model."""
        assert self._model is not None, "received a command without a model"
        return self._model

    def do(self, command: Command) -> None:
        """Execute a command. After an exception of the network the ranks cannot continue together."""
        if isinstance(command, Load):
            self._model, self.caches = None, {}
            config = read_config(command.folder)
            self._model = command.run(config, self._device, self.group)
            self._shares = shares_of(config, self.group)
            return
        model = self.model
        match command:
            case NewCache(number, num_blocks, block_size):
                config, dtype, device = model.cache_config, model.dtype, model.device
                self.caches[number] = KVCache(
                    config, num_blocks, block_size, dtype, device, keys_in_rows=model.keys_in_rows
                )
            case DropCache(number):
                self.caches.pop(number, None)
            case Forward(spans, block_size, number, requested):
                batch = Batch(spans, block_size, model.device)
                model.forward(batch, self.caches[number], self._hooks(requested, ""))
            case Encode(spans, block_size, requested):
                prefix = "" if model.config.encoder is None else "encoder."
                model.encode(Batch(spans, block_size, model.device), self._hooks(requested, prefix))
            case WriteCrossKV(shape, dtype, number, slots, requested):
                hidden = self._received(shape, dtype)
                model.write_cross_kv(hidden, self.caches[number], slots, self._hooks(requested, ""))
            case Logits(shape, dtype):
                model.logits(self._received(shape, dtype))

    def _hooks(self, requested: Hooks | None, prefix: str) -> Hooks | None:
        return None if requested is None else followed(requested, self.group, self._shares[prefix])

    @torch.inference_mode()
    def _received(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        return self.group.from_leader(torch.empty(shape, dtype=dtype, device=self._device))
