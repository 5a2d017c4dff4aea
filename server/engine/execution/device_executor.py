"""Device executor: runs a step on a GPU, as a graph or kernel by kernel, and chooses tokens. It never makes the host
wait.

A step is plain data, which ranks that share a network can send (`server.engine.tensor_parallel.device_steps`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lightwell.model.batch import Batch, Span
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers import device_batch
from lightwell.model.layers.device_batch import BatchShape, DeviceBatch
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.device_edits import EditCapacity, edited
from lightwell.model.sampling.device_rows import Kind
from lightwell.model.sampling.device_sampler import DeviceSampler, score_type
from lightwell.model.sharding.group import Group
from lightwell.server.engine.execution.cuda_graphs import StepGraphs, StepSizes, row_words, sampling_words


class Choice(NamedTuple):
    """The way in which the tokens of a step's rows are chosen."""

    num_rows: int
    """Rows from which a token is chosen, padding included."""
    kind: Kind
    num_alternatives: int | None
    """The largest number of alternatives of any row, or None if no row needs log-probabilities."""
    edits: EditCapacity | None
    """The room of the edits of logits, or None if there are none."""

    @property
    def is_plain(self) -> bool:
        """Return True if there are no edits and no log-probabilities."""
        return self.edits is None and self.num_alternatives is None


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The description of a step. Its numbers, int32, are the output of a `Packing`, followed by the edits."""

    shape: BatchShape
    num_packed: int
    """Count of the `Packing`'s numbers."""
    choice: Choice
    spans: Sequence[Span]
    """The spans of a step that runs kernel by kernel; none if a graph serves it."""
    block_size: int
    longest: int
    """The most keys of any span."""
    num_patterns: int
    """Count of the numbers of the patterns that attention writes."""


class DeviceResult(NamedTuple):
    """The results of a step on the device. A graph's next run overwrites them."""

    hidden: Tensor
    """[T, d] of the rows that need all layers."""
    chosen: Tensor | None
    """The chosen tokens, in the form of `DeviceSampler.sample`, or None if the step chooses none."""
    patterns: Tensor | None
    """[num_patterns] float32, or None."""


class DeviceExecutor:
    """The network, the cache and the graphs of one card."""

    def __init__(
        self, model: Transformer, cache: KVCache, sizes: StepSizes, has_graphs: bool, group: Group | None = None
    ) -> None:
        """Prepare for a network with a decoder that GPU kernels run, and capture its graphs. group: the ranks that
        share the network.
        """
        self._group = group
        assert model.decoder is not None
        assert model.decoder.gpu_program is not None
        self._model, self._cache = model, cache
        self._step = model.decoder.gpu_program
        self._sampler = DeviceSampler(model.config.vocab_size)
        # The tokens of a step: the next one may begin before the host knows them.
        self._last_tokens = torch.zeros(sizes.max_num_seqs, dtype=torch.int64, device=model.device)
        self.graphs: StepGraphs | None = None
        if has_graphs:
            self.graphs = StepGraphs(model, self._step, cache, self._last_tokens, sizes)
            self.graphs.prepare()

    @torch.inference_mode()
    def run(self, step: DeviceStep, numbers: Tensor, batch: Batch | None = None) -> DeviceResult:
        """Start a step. numbers: [n] int32 on the host, pinned for a GPU. batch: of `step.spans`, if there is one."""
        numbers = device_batch.upload(numbers, self._model.device)
        if step.spans:
            batch = Batch(step.spans, step.block_size, self._model.device) if batch is None else batch
            result = self._run_kernels(step, numbers, batch)
        else:
            result = self._run_graph(step, numbers)
        if result.chosen is not None:
            num_kept = min(len(result.chosen), len(self._last_tokens))  # padding may exceed it
            self._last_tokens[:num_kept] = result.chosen[:num_kept, 0]
            if self._group is not None:  # cards of two kinds might draw differently
                self._last_tokens.copy_(self._group.from_leader(self._last_tokens))
        return result

    def _run_graph(self, step: DeviceStep, numbers: Tensor) -> DeviceResult:
        graphs, choice = self.graphs, step.choice
        assert graphs is not None
        kind = choice.kind if choice.is_plain else Kind.GREEDY
        chosen = graphs.run(numbers[: step.num_packed], step.shape, choice.num_rows, kind)
        if not choice.is_plain:
            inputs = DeviceBatch(numbers, step.shape)
            chosen = self._choose(choice, graphs.logits[: choice.num_rows], inputs, numbers[step.num_packed :])
        return DeviceResult(graphs.hidden[: step.shape.rows], chosen, graphs.patterns[: step.num_patterns])

    def _run_kernels(self, step: DeviceStep, numbers: Tensor, batch: Batch) -> DeviceResult:
        inputs = DeviceBatch(numbers, step.shape, batch=batch, last_tokens=self._last_tokens)
        patterns = numbers.new_empty(step.num_patterns, dtype=torch.float32) if step.num_patterns else None
        hidden = self._step.run(inputs, self._cache.layers, step.longest, patterns)
        chosen = None
        if step.choice.num_rows:
            places = row_words(inputs.words, step.choice.num_rows).view(torch.int64)
            logits = self._model.logits(hidden.index_select(0, places), widen=False)
            chosen = self._choose(step.choice, logits, inputs, numbers[step.num_packed :])
        return DeviceResult(hidden, chosen, patterns)

    def _choose(self, choice: Choice, logits: Tensor, inputs: DeviceBatch, edits: Tensor) -> Tensor:
        """Return the tokens chosen from logits [R, V], in the form of `DeviceSampler.sample`. edits: [n] int32."""
        changed = None
        if choice.edits is not None:
            packed = edits.view(torch.int64)
            changed = edited(logits, packed, choice.edits, score_type(logits), self._last_tokens)
        words = sampling_words(inputs.words, choice.num_rows).view(torch.int64)
        return self._sampler.sample(choice.kind, logits, words, edited=changed, logprobs=choice.num_alternatives)
