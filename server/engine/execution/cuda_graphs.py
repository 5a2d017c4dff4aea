"""Runs steps in which every sequence has one token as CUDA graphs, so that the device does not wait for Python.

A graph has fixed shapes, so there is one for each number of rows and of blocks, in powers of two, captured before the
first request. A step is copied into the graph's input, padded with rows that belong to no sequence, and replayed. Every
layer's queries stay where the graph wrote them: attention rows for captures are computed from these queries and the
cached keys, outside the graph. On other devices the same function is called instead of captured, which lets tests on a
CPU check it.

It knows networks and batches, but no sequences and no requests.
"""

import inspect
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, cast

import torch

from model.batch import Batch
from model.hooks.attention_hooks import Attended, apply_hooks
from model.hooks.hooks import AttentionTap, Hooks
from model.kv_cache import KVCache
from model.layers.batched_attention import BatchedAttention, rows_at_a_time
from model.layers.decode_batch import DecodeBatch, most_blocks, pack, packed_size
from model.network.block import Block
from model.network.sublayers import SelfAttention
from model.network.transformer import Transformer
from model.ranks.leader import LeadingTransformer
from server.engine.config import EngineConfig

logger = logging.getLogger(__name__)

DEVICE_TYPES = ("cuda",)
"""Device types on which steps run as graphs unless that is turned off."""
BACKEND = "inductor"
"""The `torch.compile` backend."""
_COMPILED_ROWS = (1, 8, 32, 64, 128, 256, 512, 1024)
LEAST_KEYS = 256
"""Keys of the smallest graph; fewer would save little."""


class Shape(NamedTuple):
    """The shape of a step as its graph has it."""

    rows: int
    blocks: int


@dataclass(slots=True, eq=False)
class DecodePass:
    """The result of a step; the next step of the same shape overwrites it."""

    hidden: torch.Tensor
    """Hidden states [R, d]."""
    logits: torch.Tensor
    """Logits [R, vocab], as `Transformer.logits` gives them."""
    queries: list[torch.Tensor]
    """Rotated queries [R', H, D] of each layer, R' >= R."""
    hooks: Hooks = field(default_factory=Hooks)
    """The hooks that ran; their captures wait for `deliver`."""
    _seen: list[Callable[[], None]] = field(default_factory=list)

    def deliver(self) -> None:
        """Deliver the captures, now that nothing else waits for the device."""
        for each in self._seen:
            each()
        self._seen.clear()

    def hook(self, batch: Batch, cache: KVCache, blocks: list[Block], hooks: Hooks) -> None:
        """Compute the attention rows asked for, without making the device wait."""

        def later(tap: AttentionTap) -> AttentionTap:
            def keep(layer: int, i: int, rows: torch.Tensor) -> None:
                self._seen.append(partial(tap.deliver, layer, i, rows))

            return replace(tap, deliver=keep)

        self.hooks = Hooks(attention=[later(tap) for tap in hooks.attention])
        for block, layer_cache, q in zip(blocks, cache.layers, self.queries, strict=True):
            hook = self.hooks.at(block.index)
            if hook is not None:
                own = _self_attention(block)
                key_range = batch.key_range(own.causal, own.window)
                heads = own.heads
                apply_hooks(
                    Attended(heads.attention, heads.rule, q, layer_cache, key_range, False, batch.check), q, hook
                )


class DecodeGraphs:
    """The graphs of one network and one cache."""

    def __init__(
        self, model: Transformer, cache: KVCache, max_rows: int, max_len: int, *, compiled: bool = False
    ) -> None:
        """Prepare for up to `max_rows` sequences at once and `max_len` tokens in the longest. `compiled` uses
        `torch.compile`, which fuses many small kernels into one but takes some seconds for each number of rows, so
        there are fewer of these.

        Raises ValueError if `why_no_graphs` gives a reason.
        """
        why_not = why_no_graphs(model)
        if why_not is not None:
            raise ValueError(why_not)
        assert model.decoder is not None
        self._model = model
        self._cache = cache
        self._decoder = model.decoder
        self._logits = inspect.unwrap(Transformer.logits)  # its own inference mode is not for a compiler
        self._blocks = list(model.decoder.blocks)
        most = -(-max_len // cache.block_size)
        self.compiled = compiled
        self._rows = [n for n in _powers_of_two(1, max_rows) if not compiled or n in _COMPILED_ROWS or n >= max_rows]
        self._widths = [*_powers_of_two(-(-LEAST_KEYS // cache.block_size), most)[:-1], most]
        size = packed_size(self._rows[-1], self._widths[-1])
        is_cuda = model.device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=is_cuda)
        self._packed = torch.zeros(size, dtype=torch.int64, device=model.device)
        self._pool = torch.cuda.graph_pool_handle() if is_cuda else None
        self._network = self._through_network
        if compiled:
            self._network = torch.compile(self._through_network, fullgraph=True, backend=BACKEND)
        self._graphs: dict[Shape, Callable[[], DecodePass]] = {}

    @property
    def shapes(self) -> list[Shape]:
        """Return the shapes of all graphs, the largest first."""
        every = (Shape(rows, width) for rows in reversed(self._rows) for width in reversed(self._widths))
        return [shape for shape in every if self._is_one_piece(shape)]

    def _is_one_piece(self, shape: Shape) -> bool:
        """Return whether the attention of this shape is one operation per layer. Other graphs would be large and
        gain little.
        """
        size = self._cache.block_size
        return shape.rows <= rows_at_a_time(shape.blocks * size, self._cache.layers[0])

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture all graphs. The largest come first: the others then fit into the memory that these took."""
        # Only where it is needed: to load the compiler takes a second.
        compiling = torch._dynamo.config.patch(recompile_limit=len(self._rows) + 8) if self.compiled else nullcontext()
        with compiling:
            for shape in self.shapes:
                self._graph(shape)

    @torch.inference_mode()
    def run(self, batch: Batch, hooks: Hooks | None = None) -> DecodePass | None:
        """Run a step of single tokens, with the attention rows asked for; return None if there is no graph for it."""
        if not self._can_serve(batch, hooks):
            return None
        shape = self._shape_of(batch)
        if shape is None:
            return None
        graph, size = self._graph(shape), packed_size(*shape)
        # The last step's copy is done: its tokens were waited for.
        pack(batch, *shape, self._host[:size].numpy())
        self._packed[:size].copy_(self._host[:size], non_blocking=True)
        whole = graph()
        passed = DecodePass(whole.hidden[: batch.num_rows], whole.logits[: batch.num_rows], whole.queries)
        if hooks is not None:
            passed.hook(batch, self._cache, self._blocks, hooks)
        return passed

    def _can_serve(self, batch: Batch, hooks: Hooks | None) -> bool:
        """Return whether each row is a sequence's next token and the hooks ask for nothing but attention rows."""
        if hooks is not None and (hooks.reads or hooks.changes or hooks.attention_changes):
            return False
        num_rows = batch.num_rows
        return num_rows == len(batch.spans) and batch.num_rows_at(self._model.config.num_layers - 1) == num_rows

    def _shape_of(self, batch: Batch) -> Shape | None:
        row, width = bisect_left(self._rows, batch.num_rows), bisect_left(self._widths, most_blocks(batch))
        if row == len(self._rows) or width == len(self._widths):
            return None
        shape = Shape(self._rows[row], self._widths[width])
        return shape if self._is_one_piece(shape) else None

    def _graph(self, shape: Shape) -> Callable[[], DecodePass]:
        if shape not in self._graphs:
            self._graphs[shape] = self._captured(partial(self._step, shape))
        return self._graphs[shape]

    def _step(self, shape: Shape) -> DecodePass:
        """Run the packed step through the network; a graph holds exactly this."""
        lines = self._packed[: packed_size(*shape)].view(-1, shape.rows)
        if self.compiled:  # once for each number of rows, for any number of blocks
            torch._dynamo.mark_static(lines, 1)
            torch._dynamo.maybe_mark_dynamic(lines, 0)
        return DecodePass(*self._network(lines))

    def _through_network(self, lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        batch = DecodeBatch(lines, self._cache.block_size)
        hidden = self._decoder(cast(Batch, batch), self._cache.layers)  # which has all that a stack asks of a batch
        return hidden, self._logits(self._model, hidden), batch.queries

    def _captured(self, step: Callable[[], DecodePass]) -> Callable[[], DecodePass]:
        """Return the step as a graph on a GPU; on other devices, return the step itself."""
        self._packed.zero_()  # padding rows
        step()  # at the first call libraries set themselves up and code is compiled, which cannot be captured
        if self._pool is None:
            return step
        torch.cuda.synchronize(self._model.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            passed = step()

        def replay() -> DecodePass:
            graph.replay()
            return passed

        return replay


def graphs_for(model: Transformer, cache: KVCache, config: EngineConfig, max_len: int) -> DecodeGraphs | None:
    """Return the captured graphs that a configuration asks for, or None if it asks for none, the device has none, or
    the network cannot run as one. `max_len` is as in `DecodeGraphs`.
    """
    if config.cuda_graphs == "off" or model.device.type not in DEVICE_TYPES or why_no_graphs(model) is not None:
        return None
    began = time.monotonic()
    graphs = DecodeGraphs(model, cache, config.max_num_seqs, max_len, compiled=config.cuda_graphs == "compiled")
    try:
        graphs.prepare()
    except Exception as error:
        if config.cuda_graphs != "compiled":
            raise
        # What compiles wants more than torch: a C compiler, and room for files.
        logger.warning("decode graphs are not compiled, and slower for that: %s", " ".join(str(error).split()[:40]))
        return graphs_for(model, cache, replace(config, cuda_graphs="plain"), max_len)
    logger.info("captured %d decode graphs in %.1f s", len(graphs.shapes), time.monotonic() - began)
    return graphs


def why_no_graphs(model: Transformer) -> str | None:
    """Return why this network's steps cannot be graphs, or None if they can."""
    if model.config.kind != "decoder" or model.decoder is None:
        return f"graphs are of decoders that stand alone, not of an {model.config.kind}"
    attention = _self_attention(model.decoder.blocks[0])
    if isinstance(model, LeadingTransformer):
        return "graphs are of one process, not of several that hold a model together"
    if not isinstance(attention.heads.attention, BatchedAttention):
        return f"graphs need BatchedAttention, not {type(attention.heads.attention).__name__}"
    if attention.heads.rule.bias is not None:
        return "graphs know no position bias"
    return None


def _self_attention(block: Block) -> SelfAttention:
    attention = block.attention.f
    assert isinstance(attention, SelfAttention)
    return attention


def _powers_of_two(least: int, most: int) -> list[int]:
    """Return least, 2 * least, ... up to the first value that is not below `most`."""
    sizes = [least]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return sizes
