"""Rank 0 of a network in several processes. Its callers use it like any other `Transformer`, from one thread.

It sends each call to the other ranks first; then all ranks compute it together.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import count
from pathlib import Path

import numpy as np
import torch

from lightwell.model.batch import Batch
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.lora import AdaptedRows
from lightwell.model.network.transformer import Transformer
from lightwell.model.ranks.commands import DropCache, Encode, Forward, Load, Logits, NewCache, WriteCrossKV
from lightwell.model.ranks.hooks import Leading, requests_of
from lightwell.model.ranks.whole_weights import WholeWeights
from lightwell.model.sampling.row_search import largest
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import shares_of

Tell = Callable[[object], None]
"""Sends a command to every other rank. If one of them has ended, it raises ModelLoadError before the model is loaded,
and RanksApart after that.
"""


class RanksApart(BaseException):
    """A pass of all ranks failed on this rank, and the others wait for it; or another rank has ended. No rank can
    continue.

    It is not an Exception, since code that isolates failures must not run the step again: the process must end.
    """


class LeadingTransformer(Transformer):
    """Rank 0's network, which leads all ranks."""

    def __init__(
        self, own: Transformer, folder: Path, group: Group, send: Tell, before_apart: Callable[[], object]
    ) -> None:
        """Keep the parts. own: rank 0's share, which `load_model` read from `folder`. before_apart: called before
        RanksApart is raised, to report first why a rank has ended.
        """
        super().__init__(**{each.name: getattr(own, each.name) for each in fields(own) if each.init})
        self.whole_weights = WholeWeights(own, folder)
        self.share = own
        """Rank 0's share, to run within `lead`."""
        self.group = group
        self._send = send
        self._before_apart = before_apart
        self._shares = shares_of(own.config, group)
        self._caches: weakref.WeakKeyDictionary[KVCache, int] = weakref.WeakKeyDictionary()
        self._numbers = count()
        self._dropped: list[int] = []
        self._is_running = False

    def forward(self, batch: Batch, cache: KVCache, hooks: Hooks | None = None) -> torch.Tensor:
        """Run `Transformer.forward`, but call `batch.check` before the pass instead of within it."""
        if self.decoder is None:
            return super().forward(batch, cache, hooks)  # which raises the error
        number = self.number_of(cache)
        with self._together(hooks, "", batch) as requested:
            self._send(Forward(batch.spans, batch.block_size, number, requested))
            return super().forward(batch, cache, hooks)

    def encode(self, batch: Batch, hooks: Hooks | None = None) -> torch.Tensor:
        """Run `Transformer.encode`, but call `batch.check` before the pass instead of within it."""
        if self.encoder is None:
            return super().encode(batch, hooks)
        with self._together(hooks, "" if self.config.encoder is None else "encoder.", batch) as requested:
            self._send(Encode(batch.spans, batch.block_size, requested))
            return super().encode(batch, hooks)

    @torch.inference_mode()
    def write_cross_kv(
        self,
        hidden: torch.Tensor,
        cache: KVCache,
        slots: np.ndarray,
        hooks: Hooks | None = None,
        adapted: AdaptedRows | None = None,
    ) -> None:
        assert adapted is None, "a network that ranks share has no adapters"
        if not self.config.cross_attention:
            super().write_cross_kv(hidden, cache, slots, hooks)
        number = self.number_of(cache)
        with self._together(hooks, "") as requested:
            self._send(WriteCrossKV(hidden.shape, hidden.dtype, number, slots, requested))
            super().write_cross_kv(self.group.from_leader(hidden), cache, slots, hooks)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, *, widen: bool = True) -> torch.Tensor:
        if self.head is None:
            return super().logits(hidden)
        with self._together(None, ""):
            self._send(Logits(hidden.shape, hidden.dtype))
            return super().logits(self.group.from_leader(hidden), widen=widen)

    @torch.inference_mode()
    def largest_logits(self, hidden: torch.Tensor) -> tuple[list[int], list[float]]:
        return largest(self.logits(hidden, widen=False), self.kernels)

    @contextmanager
    def lead(self, command: object, batch: Batch | None = None) -> Iterator[None]:
        """Send a command that all ranks execute together, this one by the code in the context. The check of a batch is
        called before the context instead of within it.
        """
        with self._together(None, "", batch):
            self._send(command)
            yield

    @contextmanager
    def _together(self, hooks: Hooks | None, prefix: str, batch: Batch | None = None) -> Iterator[Hooks | None]:
        """Run one pass of all ranks, which no rank may leave before the others."""
        assert not self._is_running, "a pass began within another, which the other ranks cannot follow"
        leading, requested = Leading(self.group), None
        if batch is not None:
            batch.check()
            batch.check = lambda: None  # a check between two layers might end the pass
        if hooks is not None:
            requested = requests_of(hooks)
            leading.take(hooks, self._shares[prefix])
        self._is_running = True
        try:
            yield requested
        except Exception as error:
            self._before_apart()
            raise RanksApart(f"rank 0 left a pass: {type(error).__name__}: {error}") from error
        self._is_running = False
        leading.finish()

    def number_of(self, cache: KVCache) -> int:
        """Return the number of a cache on the other ranks."""
        while self._dropped:
            self._send(DropCache(self._dropped.pop()))
        if cache not in self._caches:
            number = self._caches[cache] = next(self._numbers)
            weakref.finalize(cache, self._dropped.append, number)
            self._send(NewCache(number, cache.num_blocks, cache.block_size))
        return self._caches[cache]


def load_leading(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: Group,
    send: Tell,
    *,
    max_model_len: int | None = None,
    kernels: KernelConfig = AUTO,
    batch_invariant: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    before_apart: Callable[[], object] = lambda: None,
) -> LeadingTransformer:
    """Run `load_model` on all ranks. Raises ModelLoadError for errors on this rank; the others report their own."""
    shares_of(config, group)  # raises before any rank reads a weight
    command = Load(folder, dtype, max_model_len, batch_invariant, kernels)
    send(command)
    return LeadingTransformer(command.run(config, device, group, progress), folder, group, send, before_apart)
