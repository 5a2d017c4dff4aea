"""LoRA adapters of an engine, by number; they can be loaded while requests run."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.layers.lora import Adapter
from lightwell.model.loading.lora_loader import load_adapter
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.config import AdapterFolder

logger = logging.getLogger(__name__)

_NICENESS = 10
"""Niceness of the loading threads: steps have priority."""


class Adapters:
    """The adapters of one network. `begin` loads in its own thread; the other methods are for the engine's thread."""

    def __init__(self, model: Transformer, folders: Sequence[AdapterFolder], max_rank: int) -> None:
        """Load the first adapters. Raises ModelLoadError for an adapter that cannot be served."""
        self._model = model
        self._max_rank = max_rank
        self._loaded = {each.number: load_adapter(each.folder, model, max_rank=max_rank) for each in folders}
        self._dropped: set[int] = set()
        """Numbers of adapters that were dropped; a number is never used again."""
        self._one_by_one = threading.Lock()

    def of(self, number: int) -> Adapter | None:
        """Return the adapter of a number, or None for 0. Raises ValueError if it is not loaded."""
        if number == 0:
            return None
        if number not in self._loaded:
            raise ValueError(f"there is no adapter {number}; it was unloaded")
        return self._loaded[number]

    def begin(self, number: int, folder: Path, done: Callable[[str | None], None], *, root: Path | None = None) -> None:
        """Load an adapter, then call `done`, from another thread, with None or with the reason of a failure, in one
        line. root: a folder that must contain the adapter's files.
        """
        args = (number, folder, root, done)
        thread = threading.Thread(target=self._load, args=args, name="adapter-loader", daemon=True)
        thread.start()

    def drop(self, number: int) -> None:
        """Remove an adapter. Its memory is free when its requests have ended."""
        self._dropped.add(number)
        self._loaded.pop(number, None)

    def _load(self, number: int, folder: Path, root: Path | None, done: Callable[[str | None], None]) -> None:
        torch.set_num_threads(1)  # only of this thread
        with contextlib.suppress(OSError, AttributeError):  # a system that has no niceness of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with self._one_by_one:
            try:
                self._loaded[number] = load_adapter(folder, self._model, max_rank=self._max_rank, root=root)
            except ModelLoadError as error:
                done(str(error))
                return
            except BaseException as error:  # other requests continue
                logger.exception("the adapter in %s could not be loaded", folder)
                done(f"the adapter in {folder} could not be loaded ({type(error).__name__})")
                return
        if number in self._dropped:
            self._loaded.pop(number, None)
        done(None)
