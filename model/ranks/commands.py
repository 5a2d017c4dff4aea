"""Defines what rank 0 asks the other ranks to do, as plain data. It knows no processes.

A command is sent, and then all ranks run the same method of `Transformer`: what passes between them on the way is up to
`model.sharding.group`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from model.batch import Batch, Span
from model.checkpoint.registry import read_config
from model.hooks.hooks import Hooks
from model.kernels.choice import AUTO, KernelConfig
from model.kv_cache import KVCache
from model.loading.loader import load_model
from model.network.transformer import Transformer
from model.ranks.hooks import followed
from model.sharding.group import Group
from model.sharding.shares import shares_of


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape and dtype of a tensor that is to come."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, x: torch.Tensor) -> "TensorSpec":
        return cls(tuple(x.shape), x.dtype)


@dataclass(frozen=True, slots=True)
class Load:
    """A command to load a share of a model, in place of the last one."""

    folder: Path
    dtype: torch.dtype
    max_model_len: int | None
    batch_invariant: bool | None
    kernels: KernelConfig = AUTO


@dataclass(frozen=True, slots=True)
class NewCache:
    """A command to make a cache with that number."""

    number: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class DropCache:
    """A command to free a cache that is no longer used."""

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
    """A command to run `Transformer.write_cross_kv` on hidden states, which rank 0 sends."""

    hidden: TensorSpec
    cache: int
    slots: np.ndarray
    requested: Hooks | None


@dataclass(frozen=True, slots=True)
class Logits:
    """A command to run `Transformer.logits` on hidden states, which rank 0 sends."""

    hidden: TensorSpec


Command = Load | NewCache | DropCache | Forward | Encode | WriteCrossKV | Logits


class Follower:
    """A rank other than 0, which carries out commands."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group = group
        self._device = device
        self._model: Transformer | None = None
        self.caches: dict[int, KVCache] = {}
        """The caches by their numbers."""

    @property
    def model(self) -> Transformer:
        """Return the share of the model that was loaded last."""
        assert self._model is not None, "received a command without a model"
        return self._model

    def do(self, command: Command) -> None:
        """Carry out a command. Raises what the network raises: this rank is then of no more use to the others."""
        if isinstance(command, Load):
            self._load(command)
            return
        model = self.model
        match command:
            case NewCache(number, num_blocks, block_size):
                config = model.cache_config
                self.caches[number] = KVCache(
                    config, num_blocks, block_size, model.dtype, model.device, keys_in_rows=model.keys_in_rows
                )
            case DropCache(number):
                self.caches.pop(number, None)
            case Forward(spans, block_size, number, requested):
                batch = Batch(spans, block_size, model.device)
                model.forward(batch, self.caches[number], self._hooks(requested, ""))
            case Encode(spans, block_size, requested):
                prefix = "" if model.config.encoder is None else "encoder."
                model.encode(Batch(spans, block_size, model.device), self._hooks(requested, prefix))
            case WriteCrossKV(hidden, number, slots, requested):
                model.write_cross_kv(self._received(hidden), self.caches[number], slots, self._hooks(requested, ""))
            case Logits(hidden):
                model.logits(self._received(hidden))

    def _load(self, command: Load) -> None:
        self._model, self.caches = None, {}
        config = read_config(command.folder)
        self._model = load_model(
            command.folder,
            config,
            command.dtype,
            self._device,
            max_model_len=command.max_model_len,
            kernels=command.kernels,
            batch_invariant=command.batch_invariant,
            group=self.group,
        )
        self._shares = shares_of(config, self.group)

    def _hooks(self, requested: Hooks | None, prefix: str) -> Hooks | None:
        return None if requested is None else followed(requested, self.group, self._shares[prefix])

    @torch.inference_mode()
    def _received(self, kind: TensorSpec) -> torch.Tensor:
        return self.group.from_leader(torch.empty(kind.shape, dtype=kind.dtype, device=self._device))
