"""Runs a step on a card: one copy there, one back, and between them nothing that makes the host wait.

A step of single tokens is a graph; any other runs kernel by kernel. Either way tokens are chosen on the device, by
`DeviceSampler`. It serves batches of which hooks ask for nothing but patterns. It knows networks, batches and rows of
logits, but no queue and no requests.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.batch import Batch
from model.hooks.hooks import Hooks
from model.hooks.pattern_plan import PatternPlan
from model.kv_cache import KVCache
from model.layers import device_batch
from model.layers.device_batch import DeviceBatch, Packing
from model.network.transformer import Transformer
from model.ranks.leader import LeadingTransformer
from model.sampling.device_edits import EditCapacity, PackedEdits, RowEdits, edited
from model.sampling.device_rows import Kind, chosen_logits, num_alternatives, pack, unpack
from model.sampling.device_sampler import DeviceSampler, score_type
from model.sampling.sampler import SampledToken, SamplerRow
from server.engine.config import EngineConfig
from server.engine.execution.cuda_graphs import DecodeGraphs, has_graphs, num_words, row_words, sampling_words

if TYPE_CHECKING:  # a CPU has no need of Triton
    from model.network.triton_step import TritonStep


class SampledRow(NamedTuple):
    """A row of a batch that a token is chosen from."""

    row: int
    owner: Hashable
    """The sequence, by which it is known from step to step."""
    options: SamplerRow


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
        """Wait until the device is done."""
        if self._done is not None:
            self._done.synchronize()

    def sampled(self) -> tuple[list[SampledToken], list[float]]:
        """Return the chosen tokens of `rows`, and their logits, which are no number if a row holds one that is none.
        The device must be done.
        """
        if self._chosen is None:
            return [], []
        found = self._chosen[: len(self.rows)].numpy()
        return unpack(found, [each.options for each in self.rows]), chosen_logits(found, len(self.rows))

    def deliver(self) -> None:
        """Hand out the patterns. The device must be done."""
        if self._patterns is not None:
            self._plan.deliver(self._patterns)


class DeviceRunner:
    """Runs the steps of one network and one cache."""

    def __init__(
        self,
        model: Transformer,
        step: "TritonStep",
        cache: KVCache,
        last_tokens: Tensor,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """Prepare for the network whose decoder is `step`. Without graphs all steps run kernel by kernel.

        last_tokens: room [n] int64 for the tokens that a step chooses, with which the next one may begin before the
        host has heard of them.
        """
        self._model, self._step, self._cache, self._graphs = model, step, cache, graphs
        self._last_tokens = last_tokens
        self._sampler = DeviceSampler(model.config.vocab_size)
        self._edits: dict[Hashable, RowEdits] = {}

    @torch.inference_mode()
    def run(self, batch: Batch, hooks: Hooks | None, rows: Sequence[SampledRow]) -> DevicePass | None:
        """Start a step, and choose a token of each of `rows`. Returns None if hooks ask for more than patterns."""
        plan = self._step.plan(batch, hooks)
        if plan is None:
            return None
        packing = None
        if self._graphs is not None and [each.row for each in rows] == list(range(batch.num_rows)):
            packing = self._graphs.packing(batch, plan.rooms, plan.size)
        if packing is not None:
            return self._run_graph(packing, plan, rows)
        packing = Packing.of(batch, plan.rooms, words=num_words(len(rows)))
        return self._run_kernels(packing, plan, rows)

    def _run_graph(self, packing: Packing, plan: PatternPlan, rows: Sequence[SampledRow]) -> DevicePass:
        assert self._graphs is not None
        num_rows = packing.shape.rows
        choice = self._choice(packing.batch, rows, num_rows)
        numbers = self._upload(packing, choice)
        kind = choice.kind if choice.is_plain else Kind.GREEDY
        chosen = self._graphs.run(numbers[: packing.size], num_rows, kind)
        if not choice.is_plain:
            inputs = DeviceBatch(numbers, packing.shape)
            chosen = choice.sample(self._sampler, self._graphs.logits[:num_rows], inputs, numbers[packing.size :])
        return self._finish(self._graphs.hidden[: len(rows)], rows, chosen, plan, self._graphs.patterns)

    def _run_kernels(self, packing: Packing, plan: PatternPlan, rows: Sequence[SampledRow]) -> DevicePass:
        choice = self._choice(packing.batch, rows, len(rows))
        numbers = self._upload(packing, choice)
        inputs = DeviceBatch(numbers, packing.shape, batch=packing.batch, last_tokens=self._last_tokens)
        patterns = numbers.new_empty(plan.size, dtype=torch.float32) if plan.size else None
        hidden = self._step.run(inputs, self._cache.layers, packing.longest, patterns)
        chosen = None
        if rows:
            places = row_words(inputs.words, len(rows)).view(torch.int64)
            logits = self._model.logits(hidden.index_select(0, places), widen=False)
            chosen = choice.sample(self._sampler, logits, inputs, numbers[packing.size :])
        return self._finish(hidden, rows, chosen, plan, patterns)

    def _choice(self, batch: Batch, rows: Sequence[SampledRow], num_rows: int) -> "_Choice":
        vocab_size = self._model.config.vocab_size
        return _Choice(rows, self._edits_of(rows), batch, self._last_tokens, vocab_size=vocab_size, num_rows=num_rows)

    def _upload(self, packing: Packing, choice: "_Choice") -> Tensor:
        """Bring a batch to the device, and behind it the edits of its logits."""

        def write(numbers: np.ndarray) -> None:
            words = packing.write(numbers[: packing.size])
            choice.write(words, numbers[packing.size :])

        return device_batch.upload(packing.size + choice.edits_size, write, self._model.device)

    def _edits_of(self, rows: Sequence[SampledRow]) -> list[RowEdits | None]:
        """Return the edits of each row, as far as its sequence's last step knew them, or None if it has none."""
        found: list[RowEdits | None] = []
        kept: dict[Hashable, RowEdits] = {}
        for _, owner, (params, _, token_ids, num_prompt_tokens) in rows:
            edits = None
            if params.edits_logits(len(token_ids) - num_prompt_tokens):
                edits = self._edits.get(owner) or RowEdits(params, self._model.config.vocab_size, num_prompt_tokens)
                kept[owner] = edits
            found.append(edits)
        self._edits = kept
        return found

    def _finish(
        self,
        hidden: Tensor,
        rows: Sequence[SampledRow],
        chosen: Tensor | None,
        plan: PatternPlan,
        patterns: Tensor | None,
    ) -> DevicePass:
        """Send for what the step has found, and keep its tokens for the next one."""
        if chosen is not None and rows:
            self._last_tokens[: len(rows)] = chosen[: len(rows), 0]
        wanted = [chosen if rows else None, patterns[: plan.size] if patterns is not None and plan.size else None]
        (found, seen), done = download(wanted)
        return DevicePass(hidden, rows, found, plan, seen, done)


class _Choice:
    """How the tokens of some rows are chosen."""

    def __init__(
        self,
        rows: Sequence[SampledRow],
        edits: Sequence[RowEdits | None],
        batch: Batch,
        last_tokens: Tensor,
        *,
        vocab_size: int,
        num_rows: int,
    ) -> None:
        """Prepare for rows of logits of a batch, of which `num_rows` are there with the padding. last_tokens are as in
        `DeviceBatch`.
        """
        self._last_tokens = last_tokens
        self._rows = rows
        self._num_rows = num_rows
        self._options = [each.options for each in rows]
        self.kind = Kind.of(self._options)
        self._num_alternatives = num_alternatives(self._options)
        self._packed = PackedEdits(vocab_size)
        for row, each in enumerate(edits):
            if each is not None:
                token_ids, newest = rows[row].options.token_ids, int(batch.token_ids_array[rows[row].row])
                self._packed.add(row, each, token_ids, None if newest >= 0 else -1 - newest)
        self._capacity: EditCapacity | None = None
        if any(each is not None for each in edits):
            self._capacity = self._packed.least_capacity(num_rows)

    @property
    def is_plain(self) -> bool:
        """Return whether there are neither edits nor log-probabilities."""
        return self._capacity is None and self._num_alternatives is None

    @property
    def edits_size(self) -> int:
        """Return how many numbers the edits are, as int32."""
        return 0 if self._capacity is None else 2 * self._capacity.packed_size

    def write(self, words: np.ndarray, edits: np.ndarray) -> None:
        """Write the words of a batch [num_words] int32, and the edits [edits_size] int32."""
        pack(self._options, sampling_words(words, self._num_rows).view(np.int64))
        rows = row_words(words, self._num_rows).view(np.int64)
        rows[: len(self._rows)] = [each.row for each in self._rows]
        if self._capacity is not None:
            self._packed.pack(edits.view(np.int64), self._capacity)

    def sample(self, sampler: DeviceSampler, logits: Tensor, inputs: DeviceBatch, edits: Tensor) -> Tensor:
        """Return the chosen tokens of logits [R, V]: what `DeviceSampler` returns."""
        changed = None
        if self._capacity is not None:
            edits = edits.view(torch.int64)
            changed = edited(logits, edits, self._capacity, score_type(logits), self._last_tokens)
        words = sampling_words(inputs.words, self._num_rows).view(torch.int64)
        return sampler.sample(self.kind, logits, words, edited=changed, logprobs=self._num_alternatives)


def download(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], torch.cuda.Event | None]:
    """Return copies on the host, and what tells when they are there, or None if they are."""
    if all(each is None or each.device.type == "cpu" for each in tensors):
        return [None if each is None else each.clone() for each in tensors], None
    found: list[Tensor | None] = []
    for each in tensors:
        if each is not None:
            host = torch.empty(each.shape, dtype=each.dtype, pin_memory=True)
            found.append(host.copy_(each, non_blocking=True))
        else:
            found.append(None)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return found, done


def device_runner_for(model: Transformer, cache: KVCache, config: EngineConfig, max_len: int) -> DeviceRunner | None:
    """Return the runner of a network that a card's kernels run, with captured graphs unless they are turned off; None
    if there is no such network here. `max_len` is as in `DecodeGraphs`.
    """
    step = None if model.decoder is None else model.decoder.triton_step
    if step is None or isinstance(model, LeadingTransformer):
        return None
    last_tokens = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=model.device)
    graphs = None
    if has_graphs(model, config):
        graphs = DecodeGraphs(model, step, cache, last_tokens, max_rows=config.max_num_seqs, max_len=max_len)
        graphs.prepare()
    return DeviceRunner(model, step, cache, last_tokens, graphs)
