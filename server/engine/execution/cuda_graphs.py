"""CUDA graphs of steps, one for each number of rows, so that a GPU does not wait for Python.

The graph's input on the device (`model.layers.device_batch`) holds everything that differs from step to step: tokens,
lengths of texts, places of keys, places of patterns. So a graph needs no other shapes: missing rows are padding, which
reads and writes no key. In Triton's interpreter on a CPU, the same function is called instead of captured, for tests.

A step of decodes is one graph, and another one if tokens are drawn. A mixed step, with pieces of prompts, has any
number of rows and of tokens to choose: one graph for the network's rows, and one for the head's tokens.
"""

import gc
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import ModelConfig
from lightwell.model.kernels.cuda.attention_shapes import TILE_ROWS
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.device_batch import BatchShape, DeviceBatch, Packing, PatternRoom, aligned_size
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.device_rows import Kind, packed_size, result_width
from lightwell.model.sampling.device_sampler import DeviceSampler
from lightwell.server.engine.config import EngineConfig

if TYPE_CHECKING:  # a CPU has no need of Triton
    from lightwell.model.network.gpu_program import GpuProgram

logger = logging.getLogger(__name__)

PATTERN_BYTES = 64 << 20
"""Most bytes of a step's patterns: eight sequences of 2,000 tokens at 32 heads of 32 layers."""
_DRAWING = (Kind.RANDOM, Kind.RANDOM | Kind.TOP_P, Kind.RANDOM | Kind.TOP_K | Kind.TOP_P)
"""The captured ways of drawing tokens, the cheapest first."""
Numbers = TypeVar("Numbers", np.ndarray, Tensor)
_GRAPH_BYTES, _TOKEN_BYTES = 1 << 23, 1 << 20
"""Estimates of the driver's bytes for a graph of a network, and for a graph of a head or a draw."""
_STEP = 8
"""Difference in rows between the graphs of decodes, above the smallest ones."""
MIXED_ROWS = (*range(64, 512, 64), *range(512, 1024, 128), *range(1024, 2048 + 1, 256))
"""Rows of the graphs of mixed steps. With more rows the device takes longer than Python."""
_MORE_TILES = 32
"""Tiles of several rows that a mixed step may have above its full tiles, mostly one for each piece of a prompt."""


class StepSizes(NamedTuple):
    """The largest steps."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """Most rows of a step."""
    max_model_len: int
    """Most tokens of a sequence."""


class StepGraphs:
    """The graphs of one network and one cache."""

    def __init__(
        self, model: Transformer, step: "GpuProgram", cache: KVCache, last_tokens: Tensor, sizes: StepSizes
    ) -> None:
        """Prepare for steps of at most these sizes. step: the decoder's; last_tokens: [n] int64 of `DeviceBatch`."""
        self._model, self._step, self._cache = model, step, cache
        self._sampler = DeviceSampler(model.config.vocab_size)
        self._max_len = sizes.max_model_len
        self.rows = _sizes(sizes.max_num_seqs)
        self.mixed = [self._mixed_shape(rows) for rows in mixed_sizes(sizes.max_num_batched_tokens)]
        most, device = self.rows[-1], model.device
        tables = -(-self._max_len // cache.block_size) + model.config.num_layers * model.config.num_heads
        arrays = max(shape.tail for shape in (_decode_shape(most), *self.mixed))
        self._numbers = torch.zeros(arrays + aligned_size(most * tables), dtype=torch.int32, device=device)
        self.patterns = torch.zeros(PATTERN_BYTES // 4, dtype=torch.float32, device=device)
        # The results of all graphs: one tensor for all of them, since only one graph runs at a time.
        num_rows = max(most, self.mixed[-1].rows)
        self.hidden = torch.zeros(num_rows, model.config.hidden_size, dtype=model.dtype, device=device)
        self.logits = torch.zeros(0, model.config.vocab_size, device=device)
        self._chosen = torch.zeros(most, result_width(None), dtype=torch.int64, device=device)
        self._last_tokens = last_tokens
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._captured: dict[tuple[BatchShape | int, Kind | None], Callable[[], None]] = {}

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture all graphs, the largest first: the others then fit into their memory."""
        began = time.monotonic()
        for shape in reversed(self.mixed):
            self._graph(shape, None)
        for rows in reversed(self.rows):
            self._graph(_decode_shape(rows), None)
            for kind in (Kind.GREEDY, *_DRAWING):
                self._graph(rows, kind)
        logger.info("captured %d graphs in %.1f s", len(self._captured), time.monotonic() - began)

    def packing(
        self, batch: Batch, rooms: Sequence[PatternRoom], num_patterns: int, sampled: Sequence[int]
    ) -> Packing | None:
        """Return how a batch fits a graph, or None if it does not: all its rows must need all layers.

        rooms: the places of the captured patterns, `num_patterns` numbers in all. sampled: the rows from which tokens
        are chosen.
        """
        num_rows, last = batch.num_rows, self._model.config.num_layers - 1
        if num_patterns > len(self.patterns) or batch.num_rows_at(last) != num_rows or not batch.needs_output_of(last):
            return None
        if num_rows == batch.num_spans <= self.rows[-1] and list(sampled) == list(range(num_rows)):
            return Packing(batch, _decode_shape(self.padded(num_rows)), rooms)
        least = BatchShape.of(batch)
        fitting = (shape for shape in self.mixed if shape.holds(least))
        return next((Packing(batch, shape, rooms) for shape in fitting), None)

    def padded(self, num_sampled: int) -> int:
        """Return the number of rows of the graph that chooses `num_sampled` tokens."""
        return self.rows[bisect_left(self.rows, num_sampled)] if num_sampled else 0

    @torch.inference_mode()
    def run(self, packed: Tensor, shape: BatchShape, num_sampled: int, kind: Kind) -> Tensor | None:
        """Run a step, and return the tokens that `DeviceSampler` chooses, [num_sampled, 2], if it chooses any.

        packed: [n] int32 on the device, written by a `Packing` of these graphs. num_sampled: a result of `padded`.
        `hidden`, `logits` and `patterns` then hold the step's numbers, until the next one.
        """
        self._numbers[: len(packed)] = packed
        self._graph(shape, None)()
        if not num_sampled:
            return None
        if not _is_of_decodes(shape):
            self._graph(num_sampled, Kind.GREEDY)()
        if kind:
            self._graph(num_sampled, next(each for each in _DRAWING if kind in each))()
        return self._chosen[:num_sampled]

    def _graph(self, of: BatchShape | int, kind: Kind | None) -> Callable[[], None]:
        """Return the graph of the network for a shape of batch; or, for a number of rows, the graph of the head and the
        largest logit, or of another kind of draw.
        """
        if (of, kind) not in self._captured:
            if isinstance(of, BatchShape):
                run = partial(self._run_network, of)
            else:
                run = partial(self._draw, of, kind) if kind else partial(self._run_head, of)
            self._captured[of, kind] = self._capture(run)
        return self._captured[of, kind]

    def _run_network(self, shape: BatchShape) -> None:
        inputs = DeviceBatch(self._numbers, shape, last_tokens=self._last_tokens)
        hidden = self._step.run(inputs, self._cache.layers, self._max_len, self.patterns)
        self.hidden[: shape.rows] = hidden
        if _is_of_decodes(shape):
            self._find_largest(hidden)

    def _run_head(self, rows: int) -> None:
        places = row_words(self._numbers, rows).view(torch.int64)
        self._find_largest(self.hidden.index_select(0, places))

    def _find_largest(self, hidden: Tensor) -> None:
        rows, logits = len(hidden), self._model.logits(hidden, widen=False)
        if len(self.logits) < rows:
            self.logits = torch.empty_like(logits)
        self.logits[:rows] = logits
        self._draw(rows, Kind.GREEDY)

    def _draw(self, rows: int, kind: Kind) -> None:
        words = sampling_words(self._numbers, rows).view(torch.int64)
        self._chosen[:rows] = self._sampler.sample(kind, self.logits[:rows], words)

    def _mixed_shape(self, rows: int) -> BatchShape:
        spans = min(rows, self.rows[-1])
        return BatchShape(rows, spans, spans, -(-rows // TILE_ROWS) + _MORE_TILES, num_words(self.padded(spans)))

    def _capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return the function as a CUDA graph; on a CPU return the function itself."""
        if self._pool is None:
            return run
        run()  # the first call sets up libraries and compiles kernels, which cannot be captured
        torch.cuda.synchronize(self._model.device)
        graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: destroying an unused graph would end the current capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def has_graphs(model: Transformer, config: EngineConfig) -> bool:
    """Return whether steps of this network run as graphs: it must be a decoder with a head, run by GPU kernels."""
    if config.cuda_graphs == "off" or model.config.kind != "decoder" or not model.config.has_head:
        return False
    if model.batch_invariant and config.quantize == "fp8":  # thousands of small products in each step
        return False
    return model.decoder is not None and model.decoder.gpu_program is not None


def kept_bytes(model: ModelConfig, dtype: torch.dtype, max_num_seqs: int, max_num_rows: int) -> int:
    """Return an estimate of the bytes that all graphs keep: their results, and the driver's part of each. The working
    memory of the largest graph, which the others share, is not included.
    """
    sizes, mixed = _sizes(max_num_seqs), mixed_sizes(max_num_rows)
    hidden = max(sizes[-1], mixed[-1]) * model.hidden_size * dtype.itemsize
    logits = sizes[-1] * model.vocab_size * torch.float32.itemsize
    of_networks, of_tokens = len(sizes) + len(mixed), len(sizes) * (1 + len(_DRAWING))
    return PATTERN_BYTES + hidden + logits + of_networks * _GRAPH_BYTES + of_tokens * _TOKEN_BYTES


def sampling_words(words: Numbers, num_rows: int) -> Numbers:
    """Return the part of a batch's words, or of all its numbers, for the output of `device_rows.pack`."""
    return words[: 2 * packed_size(num_rows)]


def row_words(words: Numbers, num_rows: int) -> Numbers:
    """Return the part for the indices of the sampled rows: two words each, as int64."""
    return words[2 * packed_size(num_rows) : num_words(num_rows)]


def num_words(num_rows: int) -> int:
    """Return the number of words in a batch with this number of sampled rows."""
    return 2 * (packed_size(num_rows) + num_rows)


def _decode_shape(rows: int) -> BatchShape:
    return BatchShape(rows, rows, rows, 0, num_words(rows))


def _is_of_decodes(shape: BatchShape) -> bool:
    return not shape.long


def mixed_sizes(most: int) -> list[int]:
    """Return the numbers of rows of the mixed graphs, for steps of up to `most` rows."""
    sizes = [size for size in MIXED_ROWS if size < most]
    return sizes if most > MIXED_ROWS[-1] else [*sizes, most]


def _sizes(most: int) -> list[int]:
    """Return the numbers of rows of the decode graphs, up to the first that is not below `most`."""
    sizes = [1, 2, 4, _STEP]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + _STEP)
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < most]
