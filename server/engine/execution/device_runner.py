"""Device runner: runs steps on a GPU. It writes a step's input once, and reads its results back once.

A step that fits a graph runs as a graph, any other kernel by kernel (`device_executor`). It serves batches with hooks
that capture only patterns.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.hooks.pattern_plan import PatternPlan
from lightwell.model.layers import device_batch
from lightwell.model.layers.device_batch import Packing
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.device_edits import PackedEdits, RowEdits
from lightwell.model.sampling.device_rows import Kind, chosen_logits, num_alternatives, pack, result_width, unpack
from lightwell.model.sampling.sampler import SampledToken, SamplerRow
from lightwell.server.engine.execution.cuda_graphs import num_words, row_words, sampling_words
from lightwell.server.engine.execution.device_executor import Choice, DeviceExecutor, DeviceStep


class SampledRow(msgspec.Struct, frozen=True, gc=False):
    """A row of a batch from which a token is chosen."""

    row: int
    owner: Hashable
    """The sequence, which identifies the row from step to step."""
    options: SamplerRow
    may_edit: bool = True
    """False if its options never change logits."""


@dataclass(slots=True, eq=False)
class DevicePass:
    """A step that runs on the device."""

    hidden: Tensor
    """[T, d] of the rows that need all layers; a graph's next run overwrites it."""
    rows: Sequence[SampledRow]
    _chosen: Tensor | None
    """[n, columns] int64 on the host, once `_done`."""
    _plan: PatternPlan
    _patterns: Tensor | None
    _done: torch.cuda.Event | None = field(default=None)

    def wait(self) -> None:
        """Wait for the end of the step."""
        if self._done is not None:
            self._done.synchronize()

    def sampled(self) -> tuple[list[int], list[float], list[SampledToken] | None]:
        """Return the chosen token of each of `rows`, its logit, NaN if a row contains NaN, and, unless no row has any,
        the tokens with their log-probabilities. Call `wait` before.
        """
        if self._chosen is None:
            return [], [], None
        found = self._chosen[: len(self.rows)].numpy()
        has_logprobs = found.shape[1] != result_width(None)
        drawn = unpack(found, [each.options for each in self.rows]) if has_logprobs else None
        return found[:, 0].tolist(), chosen_logits(found, len(self.rows)), drawn

    def deliver(self) -> None:
        """Give the taps their patterns. Call `wait` before."""
        if self._patterns is not None:
            self._plan.deliver(self._patterns)


class DeviceRunner:
    """Runs the steps of one network and one cache."""

    def __init__(self, model: Transformer, executor: DeviceExecutor) -> None:
        assert model.decoder is not None
        assert model.decoder.gpu_program is not None
        self._model, self._step, self._executor = model, model.decoder.gpu_program, executor
        self._edits: dict[Hashable, RowEdits] = {}

    @property
    def serves_patterns(self) -> bool:
        """Return whether steps may capture patterns."""
        return self._step.serves_hooks

    def run(self, batch: Batch, hooks: Hooks | None, rows: Sequence[SampledRow]) -> DevicePass | None:
        """Start a step, and choose a token of each of `rows`. Returns None if GPU kernels cannot serve the hooks."""
        plan = self._step.plan(batch, hooks)
        if plan is None:
            return None
        packing, graphs = None, self._executor.graphs
        if graphs is not None:
            packing = graphs.packing(batch, plan.rooms, plan.size, [each.row for each in rows])
        if packing is not None and graphs is not None:
            step, numbers = self._step_of(packing, plan, rows, graphs.padded(len(rows)), is_graph=True)
        else:
            packing = Packing.of(batch, plan.rooms, words=num_words(len(rows)))
            step, numbers = self._step_of(packing, plan, rows, len(rows), is_graph=False)
        result = self._executor.run(step, numbers, batch)
        found = result.patterns.to(plan.dtype) if plan.size and result.patterns is not None else None
        (chosen, patterns), done = download([result.chosen, found])
        return DevicePass(result.hidden[: batch.num_rows], rows, chosen, plan, patterns, done)

    def _step_of(
        self, packing: Packing, plan: PatternPlan, rows: Sequence[SampledRow], num_rows: int, *, is_graph: bool
    ) -> tuple[DeviceStep, Tensor]:
        """Return a step, and its numbers on the host. num_rows: the number of `rows`, padding included."""
        options = [each.options for each in rows]
        edits = self._packed_edits(packing.batch, rows)
        capacity = None if edits is None else edits.least_capacity(num_rows)
        choice = Choice(num_rows, Kind.of(options), num_alternatives(options), capacity)
        num_edits = 0 if capacity is None else 2 * capacity.packed_size
        numbers = device_batch.on_host(packing.size + num_edits, self._model.device)
        written = numbers.numpy()
        words = packing.write(written[: packing.size])
        pack(options, sampling_words(words, num_rows).view(np.int64))
        row_words(words, num_rows).view(np.int64)[:] = [each.row for each in rows] + [0] * (num_rows - len(rows))
        if edits is not None and capacity is not None:
            edits.pack(written[packing.size :].view(np.int64), capacity)
        batch, spans = packing.batch, () if is_graph else packing.batch.spans
        longest = 0 if is_graph else packing.longest
        return DeviceStep(packing.shape, packing.size, choice, spans, batch.block_size, longest, plan.size), numbers

    def _packed_edits(self, batch: Batch, rows: Sequence[SampledRow]) -> PackedEdits | None:
        vocab_size = self._model.config.vocab_size
        packed, kept = PackedEdits(vocab_size), {}
        for place, each in enumerate(rows):
            if not each.may_edit:
                continue
            row, owner, facts = each.row, each.owner, each.options
            params, token_ids, num_prompt_tokens = facts.params, facts.token_ids, facts.num_prompt_tokens
            if params.edits_logits(len(token_ids) - num_prompt_tokens):
                edits = self._edits.get(owner) or RowEdits(params, vocab_size, num_prompt_tokens)
                newest = int(batch.token_ids_array[row])
                packed.add(place, edits, token_ids, None if newest >= 0 else -1 - newest)
                kept[owner] = edits
        self._edits = kept
        return packed if kept else None


def download(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], torch.cuda.Event | None]:
    """Return copies on the host, and the event of their arrival, or None if they are complete."""
    if all(each is None or each.device.type == "cpu" for each in tensors):
        return [None if each is None else each.clone() for each in tensors], None
    found = [
        None if x is None else torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
        for x in tensors
    ]
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return found, done
