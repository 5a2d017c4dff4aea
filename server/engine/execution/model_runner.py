"""Model runner: runs one step of the network, that is the encoder's inputs, a batch of chunks, captures and
sampling.
"""

from collections.abc import Mapping
from collections.abc import Sequence as ReadOnlySequence
from operator import attrgetter

import numpy as np
import torch

from lightwell.model.batch import Batch, Check, Span
from lightwell.model.hooks.hooks import Hook, Hooks
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.lora import AdaptedRows
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.logprobs import prompt_logprobs
from lightwell.model.sampling.sampler import SamplerRow
from lightwell.server.engine.captures.attention_sink import AttentionSink
from lightwell.server.engine.captures.point_sinks import EmbeddingSink
from lightwell.server.engine.captures.request_captures import NOTHING, RequestCaptures
from lightwell.server.engine.captures.window import Window
from lightwell.server.engine.execution.device_runner import DevicePass, DeviceRunner, SampledRow
from lightwell.server.engine.execution.started_step import StartedStep, seconds_of
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.execution.token_choice import Placed, TokenChoice, not_finite
from lightwell.server.engine.messages.outputs import TokenLogprobs
from lightwell.server.engine.scheduling.block_manager import NULL_BLOCK
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.steady_rows import SteadyRows
from lightwell.server.engine.sequence import Chunk, Sequence

_LOGIT_ROWS = 256
"""Most prompt rows with logits in memory at a time."""


class ModelRunner:
    """Runs sequences through one network and one cache."""

    def __init__(self, model: Transformer, cache: KVCache, on_device: DeviceRunner | None = None) -> None:
        """on_device: runs the steps that it serves on a GPU, with this network and cache.

        Raises ValueError for a cache without states, if the network needs them.
        """
        if model.config.recurrence is not None and not cache.num_sequences:
            raise ValueError(f"{model.config.architecture} needs a cache with states of sequences")
        self.model = model
        self.cache = cache
        self._on_device = on_device
        self._tokens = TokenChoice(model)

    def run(self, schedule: Schedule, captures: Mapping[int, RequestCaptures], check: Check) -> StepResult:
        """Run the encoder's inputs and the chunks of a step. Adds their captures to `captures`, and samples for the
        chunks that reach their last token.

        check: called between pieces of the work; it may raise to end the step.
        """
        return self.start(schedule, captures, check).finish()

    @property
    def can_run_ahead(self) -> bool:
        """Return whether steps run on a device while the host continues."""
        return self._on_device is not None

    @property
    def serves_patterns(self) -> bool:
        """Return whether steps that capture patterns may run on a device while the host continues."""
        return self._on_device is not None and self._on_device.serves_patterns

    @torch.inference_mode()
    def start(
        self,
        schedule: Schedule,
        captures: Mapping[int, RequestCaptures],
        check: Check,
        after: StartedStep | None = None,
    ) -> StartedStep:
        """Start a step as `run` does. On a device it may still run on return, elsewhere it is complete.

        after: the step before, if the host does not know its tokens yet. Raises ValueError if the step needs them, and
        the device does not serve it.
        """
        step = StartedStep(captures, check)
        if schedule.encodes:
            self._encode(schedule.encodes, step)
        if schedule.chunks:
            last_tokens, rows = {} if after is None else after.places, schedule.rows
            if rows is not None and rows.is_live:
                batch, placed = self._place_rows(rows, schedule.chunks, check, last_tokens)
            else:
                batch, placed = self._place(schedule.chunks, check, last_tokens)
            is_steady = schedule.is_steady  # then no sequence captures, and all choose
            capturing = [] if is_steady else [at for at in placed if captures[at.chunk.sequence.uid] is not NOTHING]
            step.hooks, step.row_sinks = self._hooks(capturing, captures) if capturing else (None, {})
            step.sampling = placed if is_steady else [at for at in placed if at.chunk.needs_sample]
            step.passed = self._start(batch, step.hooks, step.sampling, captures)
            if step.passed is None and batch.token_ids_array.min() < 0:
                raise ValueError("a step that the device does not serve needs to know the tokens of the one before")
            hidden = self.model.forward(batch, self.cache, step.hooks) if step.passed is None else step.passed.hidden
            self._read(capturing, hidden, step)
            if step.sampling and not (step.passed and step.passed.rows):
                self._tokens.choose(step.sampling, hidden, captures, step.result)
        return step

    @torch.inference_mode()
    def check(self) -> None:
        """Run one token through the network, in the null block. Raises the network's exception if that fails."""
        model, kind = self.model, self.model.config.kind
        if kind == "encoder":
            model.encode(Batch.unchunked([[0]], self.cache.block_size, model.device, [model.config.num_layers]))
        else:
            num_cross = 1 if kind == "encoder-decoder" else 0
            span = Span([0], 0, [NULL_BLOCK], model.config.num_layers, [NULL_BLOCK], num_cross)
            model.forward(Batch([span], self.cache.block_size, model.device), self.cache)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)

    def _encode(self, encodes: ReadOnlySequence[Sequence], step: StartedStep) -> None:
        """Run whole sequences through the encoder, and compute a decoder's keys and values of its output."""
        captures = step.captures
        # Sequences with a decoder part come first, so that their rows lead the batch; they need every layer.
        ordered = sorted(
            encodes, key=lambda seq: (not seq.token_ids, -seq.num_encoder_layers_needed, seq.request.adapter)
        )
        ids = [seq.encoder_token_ids for seq in ordered]
        layers = [seq.num_encoder_layers_needed for seq in ordered]
        outputs = [seq.needs_encoder_output for seq in ordered]
        adapters = [seq.adapter for seq in ordered]
        has_types = self.model.config.num_token_types > 1
        second = [seq.request.second_segment if has_types else None for seq in ordered]
        batch = Batch.unchunked(
            ids, self.cache.block_size, self.model.device, layers, step.check, outputs, adapters, second,
            first_alone=all(not seq.token_ids and _reads_first_alone(captures[seq.uid]) for seq in ordered),
        )  # fmt: skip
        windows = [Window(i, batch.first_rows[i], 0, len(seq.encoder_token_ids)) for i, seq in enumerate(ordered)]
        inside: list[Hook] = []
        entering: list[Hook] = []
        for seq, window in zip(ordered, windows, strict=True):
            is_new = not seq.encoder_is_captured
            inside += captures[seq.uid].hooks("encoder", window, is_new=is_new)
            entering += captures[seq.uid].hooks("cross", window, is_new=is_new)
        hooks = Hooks.of(inside)
        hidden = self.model.encode(batch, hooks)
        step.result.attention_seconds += seconds_of(hooks)
        for seq, window in zip(ordered, windows, strict=True):
            if not seq.encoder_is_captured:
                _give_hidden(captures[seq.uid], window, hidden)
                if self.model.decoder is None:  # else logits are the decoder's
                    self._read_logits(seq, window, window.num_rows, hidden, step)
        followed = [seq for seq in ordered if seq.token_ids]
        if followed:
            step.check()
            slots = np.concatenate([self._cross_slots(seq) for seq in followed])
            adapted = AdaptedRows.of(batch)
            self.model.write_cross_kv(hidden[: len(slots)], self.cache, slots, Hooks.of(entering), adapted)

    def _cross_slots(self, seq: Sequence) -> np.ndarray:
        """Return the cache slot of each of the encoder's positions."""
        size = self.cache.block_size
        positions = np.arange(seq.num_cross_tokens)
        return np.array(seq.cross_block_table, np.int64)[positions // size] * size + positions % size

    def _place(
        self, chunks: ReadOnlySequence[Chunk], check: Check, last_tokens: Mapping[int, int]
    ) -> tuple[Batch, list[Placed]]:
        """Return the chunks as a batch, and the place of each in it. Chunks that need more layers come first; chunks of
        one adapter are neighbours, so that they share its products.

        last_tokens: by uid, the index of a still unknown token among the tokens of the step before.
        """
        places = [(chunk.sequence.num_layers_needed, chunk.sequence.request.adapter) for chunk in chunks]
        ordered = list(chunks)
        if places.count(places[0]) < len(places):
            ordered.sort(key=_place, reverse=True)
        spans = [
            Span(
                [-1 - last_tokens[seq.uid]]
                if (seq := chunk.sequence).awaits_token
                else chunk.token_ids
                if chunk.drafts
                else seq.token_ids[chunk.start : chunk.start + chunk.num_tokens],
                chunk.start,
                seq.block_table,
                seq.num_layers_needed,
                seq.cross_block_table,
                seq.num_cross_tokens,
                seq.needs_output,
                seq.adapter,
                seq.states,
                rotary_start=seq.rotary_start,
            )
            for chunk in ordered
        ]
        batch = Batch(spans, self.cache.block_size, self.model.device, check)
        return batch, [Placed(chunk, i, batch.first_rows[i]) for i, chunk in enumerate(ordered)]

    def _place_rows(
        self, rows: SteadyRows, chunks: ReadOnlySequence[Chunk], check: Check, places: Mapping[int, int]
    ) -> tuple[Batch, list[Placed]]:
        """Return the same for steady rows."""
        if places:
            ids = [
                -1 - places[uid] if uid in places else seq.token_ids[-1]
                for uid, seq in zip(rows.uids, rows.sequences, strict=True)
            ]
        else:
            ids = [seq.token_ids[-1] for seq in rows.sequences]
        size, depth = self.cache.block_size, self.model.config.num_layers
        batch = Batch.of_rows(np.array(ids), rows.starts, rows.tables, depth, size, self.model.device, check)
        return batch, [Placed(chunk, i, i) for i, chunk in enumerate(chunks)]

    def _hooks(
        self, capturing: ReadOnlySequence[Placed], captures: Mapping[int, RequestCaptures]
    ) -> tuple[Hooks | None, dict[int, list[AttentionSink]]]:
        hooks: list[Hook] = []
        row_sinks: dict[int, list[AttentionSink]] = {}
        for at in capturing:
            chunk, seq = at.chunk, at.chunk.sequence
            found = captures[seq.uid]
            if found.sinks or found.patches:
                hooks += found.hooks("decoder", at.window)
            if found.row_sink is not None and chunk.needs_sample:
                row_sinks[seq.uid] = sinks = [found.row_sink(chunk.end + row - at.end_row) for row in at.rows]
                hooks += [sink.tap(at.span, (row,)) for sink, row in zip(sinks, at.rows, strict=True)]
        return Hooks.of(hooks), row_sinks

    def _read(self, capturing: ReadOnlySequence[Placed], hidden: torch.Tensor, step: StartedStep) -> None:
        for at in capturing:
            chunk, seq = at.chunk, at.chunk.sequence
            found = step.captures[seq.uid]
            if found.sinks:
                _give_hidden(found, at.window, hidden)
            if found.is_gathering:
                last = min(chunk.end, seq.num_prompt_tokens)
                self._read_logits(seq, at.window, last, hidden, step)

    def _read_logits(self, seq: Sequence, window: Window, last: int, hidden: torch.Tensor, step: StartedStep) -> None:
        """Capture the logits of the window's positions before `last`, and the log-probabilities of prompts' tokens."""
        found = step.captures[seq.uid]
        sinks = found.logit_sinks if found.sinks else []
        if not sinks and found.prompt_logprobs is None:
            return
        for start in range(window.captured, last, _LOGIT_ROWS):
            end = min(last, start + _LOGIT_ROWS)
            piece = Window(window.span, 0, start, end - start)
            reads = [read for sink in sinks for read in sink.hooks(piece)]
            first = 0
            if found.prompt_logprobs is None:  # then only the rows from the first to the last captured one
                if not reads:
                    continue
                first, end = min(read.rows[0] for read in reads), start + 1 + max(read.rows[-1] for read in reads)
            step.check()
            row = window.first_row + start - window.start
            logits = self.model.logits(hidden[row + first : row + end - start])
            found.change_logits(logits, start + first)
            for read in reads:
                read.deliver(logits[[each - first for each in read.rows]])
            if found.prompt_logprobs is not None:
                unusable = (~logits.amax(-1).isfinite()).nonzero().flatten().tolist()
                if unusable:
                    step.result.failures[seq.uid] = not_finite(seq, start + unusable[0])
                    return
                self._add_prompt_logprobs(seq, start, logits, found.prompt_logprobs)

    @staticmethod
    def _add_prompt_logprobs(
        seq: Sequence, start: int, logits: torch.Tensor, found: list[TokenLogprobs | None]
    ) -> None:
        """Add the log-probabilities of the prompt's tokens after the positions `start`, ... of the logits."""
        params = seq.sampling_params
        assert params is not None
        assert params.prompt_logprobs is not None
        next_ids = seq.token_ids[start + 1 : min(start + 1 + len(logits), seq.num_prompt_tokens)]
        for scored in prompt_logprobs(logits[: len(next_ids)], next_ids, params.prompt_logprobs):
            found.append(TokenLogprobs.of(scored.token_id, scored.logprob, scored.rank, scored.top))

    def _start(
        self,
        batch: Batch,
        hooks: Hooks | None,
        sampling: ReadOnlySequence[Placed],
        captures: Mapping[int, RequestCaptures],
    ) -> DevicePass | None:
        """Start the step on a GPU, or return None if its kernels cannot serve it. The GPU chooses the tokens unless
        interventions change logits, or `Sequence.chooses_on_host`.
        """
        if self._on_device is None or batch.is_adapted:
            return None
        rows: list[SampledRow] = []
        sequences = [at.chunk.sequence for at in sampling]
        if not [seq for seq in sequences if seq.chooses_on_host or captures[seq.uid].patches]:
            # The sequence is the owner, not its uid: a request that begins again has the same uid but other tokens.
            rows = [
                SampledRow(
                    at.first_row + at.chunk.num_tokens - 1,
                    seq,
                    SamplerRow(params, at.chunk.start + at.chunk.num_tokens, seq.token_ids, seq.num_prompt_tokens),
                    seq.edits_logits,
                )
                for at, seq in zip(sampling, sequences, strict=True)
                if (params := seq.sampling_params) is not None  # always
            ]
        return self._on_device.run(batch, hooks, rows)


_place = attrgetter("sequence.num_layers_needed", "sequence.request.adapter")


def _give_hidden(found: RequestCaptures, window: Window, hidden: torch.Tensor) -> None:
    for sink in found.sinks:
        if isinstance(sink, EmbeddingSink):
            sink.take_hidden(window, hidden)


def _reads_first_alone(found: RequestCaptures) -> bool:
    """Return whether a request needs only the first row of the encoder's output."""
    return all(isinstance(sink, EmbeddingSink) and sink.reads_first_alone for sink in found.sinks)
