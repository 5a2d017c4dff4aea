"""Captures steps of single tokens as CUDA graphs, one for each number of rows, so that a card does not wait for Python.

All that differs from step to step is in the graph's input, which lies on the device (`model.layers.device_batch`): the
tokens, how long the texts are, where their keys are, whose patterns go where. So nothing else has a shape: rows that a
step lacks are padding, which reads no key and writes none. Interpreted on a CPU, the same function is called instead of
captured, which lets tests check it.

It knows networks and batches, but no sequences and no requests.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from model.batch import Batch
from model.config import ModelConfig
from model.kv_cache import KVCache
from model.layers.device_batch import BatchShape, DeviceBatch, Packing, PatternRoom, aligned_size
from model.network.transformer import Transformer
from model.sampling.device_rows import Kind, packed_size, result_width
from model.sampling.device_sampler import DeviceSampler
from server.engine.config import EngineConfig

if TYPE_CHECKING:  # a CPU has no need of Triton
    from model.network.triton_step import TritonStep

logger = logging.getLogger(__name__)

PATTERN_BYTES = 64 << 20
"""Bytes of the patterns that a step may write: those of eight sequences of 2,000 tokens at 32 heads of 32 layers."""
_DRAWING = (Kind.RANDOM, Kind.RANDOM | Kind.TOP_P, Kind.RANDOM | Kind.TOP_K | Kind.TOP_P)
"""The ways to draw tokens that are captured, the cheapest first."""
Numbers = TypeVar("Numbers", np.ndarray, Tensor)
_GRAPH_BYTES, _DRAW_BYTES = 1 << 23, 1 << 20
"""Estimates of the bytes that the driver keeps for a graph of a network, and for one of a draw."""
_STEP = 8
"""Rows from one graph to the next, above the smallest."""


class DecodeGraphs:
    """The graphs of one network and one cache."""

    def __init__(
        self,
        model: Transformer,
        step: "TritonStep",
        cache: KVCache,
        last_tokens: Tensor,
        *,
        max_rows: int,
        max_len: int,
    ) -> None:
        """Prepare for up to `max_rows` sequences at once and `max_len` tokens in the longest. `step` is the network's
        decoder; last_tokens [n] int64 are as in `DeviceBatch`.
        """
        self._model, self._step, self._cache = model, step, cache
        self._sampler = DeviceSampler(model.config.vocab_size)
        self._max_len = max_len
        self.rows = _sizes(max_rows)
        most, device = self.rows[-1], model.device
        tables = -(-max_len // cache.block_size) + model.config.num_layers * model.config.num_heads
        self._numbers = torch.zeros(_shape(most).tail + aligned_size(most * tables), dtype=torch.int32, device=device)
        self.patterns = torch.zeros(PATTERN_BYTES // 4, dtype=torch.float32, device=device)
        # What all graphs leave: only one runs at a time, and each would keep a tensor of its own.
        self.hidden = torch.zeros(most, model.config.hidden_size, dtype=model.dtype, device=device)
        self.logits = torch.zeros(0, model.config.vocab_size, device=device)
        self._chosen = torch.zeros(most, result_width(None), dtype=torch.int64, device=device)
        self._last_tokens = last_tokens
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._captured: dict[tuple[int, Kind | None], Callable[[], None]] = {}

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture all graphs. The largest come first: the others then fit into the memory that these took."""
        began = time.monotonic()
        for rows in reversed(self.rows):
            for kind in (None, *_DRAWING):
                self._graph(rows, kind)
        logger.info("captured %d decode graphs in %.1f s", len(self._captured), time.monotonic() - began)

    def packing(self, batch: Batch, rooms: Sequence[PatternRoom], num_patterns: int) -> Packing | None:
        """Return how a batch fits a graph, or None if it does not: it must be single tokens that need all layers.

        rooms: where the patterns that are asked for go, `num_patterns` numbers in all.
        """
        num_rows, last = batch.num_rows, self._model.config.num_layers - 1
        if num_rows > self.rows[-1] or num_rows != len(batch.spans) or num_patterns > len(self.patterns):
            return None
        if batch.num_rows_at(last) != num_rows or not batch.needs_output_of(last):
            return None
        return Packing(batch, _shape(self.rows[bisect_left(self.rows, num_rows)]), rooms)

    @torch.inference_mode()
    def run(self, packed: Tensor, rows: int, kind: Kind) -> Tensor:
        """Run a step of so many rows, and return the tokens that `DeviceSampler` chooses of them: [rows, 2].

        packed: [n] int32 on the device, which a `Packing` of these graphs wrote. `hidden`, `logits` and `patterns` then
        hold the step's, until the next one.
        """
        self._numbers[: len(packed)] = packed
        self._graph(rows, None)()
        if kind:
            self._graph(rows, next(each for each in _DRAWING if kind in each))()
        return self._chosen[:rows]

    def _graph(self, rows: int, kind: Kind | None) -> Callable[[], None]:
        """Return the graph of the network and of the largest logit, or with a kind that of a draw from its logits."""
        if (rows, kind) not in self._captured:
            run = partial(self._run_network, rows) if kind is None else partial(self._draw, rows, kind)
            self._captured[rows, kind] = self._capture(run)
        return self._captured[rows, kind]

    def _run_network(self, rows: int) -> None:
        inputs = DeviceBatch(self._numbers, _shape(rows), last_tokens=self._last_tokens)
        hidden = self._step.run(inputs, self._cache.layers, self._max_len, self.patterns)
        logits = self._model.logits(hidden, widen=False)
        if len(self.logits) < rows:
            self.logits = torch.empty_like(logits)
        self.hidden[:rows] = hidden
        self.logits[:rows] = logits
        self._draw(rows, Kind.GREEDY)

    def _draw(self, rows: int, kind: Kind) -> None:
        words = sampling_words(DeviceBatch(self._numbers, _shape(rows)).words, rows).view(torch.int64)
        self._chosen[:rows] = self._sampler.sample(kind, self.logits[:rows], words)

    def _capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return the function as a graph on a card; on a CPU return itself."""
        if self._pool is None:
            return run
        run()  # at the first call libraries set themselves up and kernels are compiled, which cannot be captured
        torch.cuda.synchronize(self._model.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay


def has_graphs(model: Transformer, config: EngineConfig) -> bool:
    """Return whether steps of this network run as graphs: those of decoders alone that a card's kernels run."""
    if config.cuda_graphs == "off" or model.config.kind != "decoder":
        return False
    if model.batch_invariant and config.quantize == "fp8":  # made of thousands of small products a step
        return False
    return model.decoder is not None and model.decoder.triton_step is not None


def kept_bytes(model: ModelConfig, dtype: torch.dtype, max_rows: int) -> int:
    """Return an estimate of the bytes that all graphs keep: what they leave, and the driver's part of each. What they
    need while they run is the memory of the largest one, which the others share.
    """
    sizes = _sizes(max_rows)
    row = model.hidden_size * dtype.itemsize + model.vocab_size * torch.float32.itemsize
    return PATTERN_BYTES + sizes[-1] * row + len(sizes) * (_GRAPH_BYTES + len(_DRAWING) * _DRAW_BYTES)


def sampling_words(words: Numbers, num_rows: int) -> Numbers:
    """Return the place of what `device_rows.pack` writes, among the words of a batch with so many sampled rows."""
    return words[: 2 * packed_size(num_rows)]


def row_words(words: Numbers, num_rows: int) -> Numbers:
    """Return the place of the sampled rows' indices: two words each, as int64."""
    return words[2 * packed_size(num_rows) :]


def num_words(num_rows: int) -> int:
    """Return how many words of a batch so many sampled rows take."""
    return 2 * (packed_size(num_rows) + num_rows)


def _shape(rows: int) -> BatchShape:
    return BatchShape(rows, rows, rows, 0, num_words(rows))


def _sizes(most: int) -> list[int]:
    """Return the numbers of rows that have graphs, up to the first that is not below `most`."""
    sizes = [1, 2, 4, _STEP]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + _STEP)
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < most]
