"""One step of the network for a set of chunks: batch, forward pass, captures, sampling. Knows sequences and tensors;
makes no policy and keeps no queue.
"""

from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field

import torch

from model.batch import Batch, Span
from model.capture import AttentionTap, ResidualTap, Taps
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.sampler import Sampler, SamplerRow, prompt_logprobs
from server.engine.outputs import Array, TokenLogprobs
from server.engine.request import AttentionTask, EmbedTask, GenerateTask
from server.engine.sequence import Chunk, Sequence
from server.engine.sinks import AttentionSink, EmbeddingSink, RowSink


@dataclass(slots=True)
class Findings:
    """What one request gathers over its steps, beside its tokens."""

    attention: AttentionSink | None = None
    """Rows of the prompt."""
    embedding: EmbeddingSink | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @classmethod
    def of(cls, seq: Sequence) -> "Findings":
        task = seq.task
        if isinstance(task, AttentionTask):
            return cls(attention=AttentionSink(task.capture, seq.num_prompt_tokens))
        if isinstance(task, EmbedTask):
            return cls(embedding=EmbeddingSink(task))
        prompt_rows = task.attention if task.attention_prompt else None
        return cls(
            attention=None if prompt_rows is None else AttentionSink(prompt_rows, seq.num_prompt_tokens),
            prompt_logprobs=None if task.sampling.prompt_logprobs is None else [None],
        )

    @property
    def num_bytes(self) -> int:
        sinks = (self.attention, self.embedding)
        return sum(sink.num_bytes for sink in sinks if sink is not None)


@dataclass(slots=True)
class StepResult:
    """Chosen tokens and the attention rows that chose them, by uid."""

    tokens: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    rows: dict[int, dict[str, Array]] = field(default_factory=dict)
    attention_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Placed:
    """A chunk and where its rows lie in the batch."""

    chunk: Chunk
    span: int
    first_row: int

    @property
    def last_row(self) -> int:
        return self.first_row + self.chunk.num_tokens - 1


class ModelRunner:
    """Runs chunks through one network and one cache."""

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self.sampler = Sampler(model.config.vocab_size, model.device)

    @torch.inference_mode()
    def run(self, chunks: ReadOnlySequence[Chunk], findings: dict[int, Findings]) -> StepResult:
        """Compute the chunks, add what they capture to `findings`, and sample for those that reach their last token."""
        ordered = sorted(chunks, key=lambda chunk: -chunk.sequence.num_layers_needed)
        batch = Batch([self._span(chunk) for chunk in ordered], self.cache.block_size, self.model.device)
        placed = [_Placed(chunk, i, batch.first_rows[i]) for i, chunk in enumerate(ordered)]
        sampling = [at for at in placed if at.chunk.needs_sample]
        taps, row_sinks = self._taps(placed, findings)
        hidden = self.model.forward(batch, self.cache, taps)
        for at in placed:
            self._add_prompt_logprobs(at, hidden, findings)
        result = StepResult(attention_seconds=taps.attention_seconds)
        result.rows = {uid: sink.arrays() for uid, sink in row_sinks.items()}
        if sampling:
            self._sample(sampling, hidden, result)
        return result

    @staticmethod
    def _span(chunk: Chunk) -> Span:
        seq = chunk.sequence
        return Span(seq.token_ids[chunk.start : chunk.end], chunk.start, seq.block_table, seq.num_layers_needed)

    def _taps(
        self, placed: ReadOnlySequence[_Placed], findings: dict[int, Findings]
    ) -> tuple[Taps, dict[int, RowSink]]:
        attention: list[AttentionTap | None] = []
        residual: list[ResidualTap | None] = []
        row_sinks: dict[int, RowSink] = {}
        for at in placed:
            chunk, seq = at.chunk, at.chunk.sequence
            found = findings[seq.uid]
            if found.attention is not None:
                attention.append(
                    found.attention.tap(at.span, at.first_row, chunk.start, chunk.num_tokens, chunk.capture_start)
                )
            if found.embedding is not None:
                residual.append(found.embedding.tap(at.first_row, chunk.start, chunk.num_tokens, chunk.capture_start))
            if isinstance(seq.task, GenerateTask) and seq.task.attention is not None and chunk.needs_sample:
                sink = RowSink(seq.task.attention, chunk.end - 1)
                row_sinks[seq.uid] = sink
                attention.append(sink.tap(at.span, at.last_row))
        taps = Taps([tap for tap in attention if tap is not None], [tap for tap in residual if tap is not None])
        return taps, row_sinks

    def _add_prompt_logprobs(self, at: _Placed, hidden: torch.Tensor, findings: dict[int, Findings]) -> None:
        chunk, seq = at.chunk, at.chunk.sequence
        found = findings[seq.uid].prompt_logprobs
        if found is None or seq.sampling_params is None or seq.sampling_params.prompt_logprobs is None:
            return
        first, last = chunk.capture_start, min(chunk.end, seq.num_prompt_tokens - 1)
        for start in range(first, last, _LOGPROB_ROWS):
            end = min(last, start + _LOGPROB_ROWS)
            row = at.first_row + start - chunk.start
            logits = self.model.logits(hidden[row : row + end - start])
            next_ids = seq.token_ids[start + 1 : end + 1]
            for scored in prompt_logprobs(logits, next_ids, seq.sampling_params.prompt_logprobs):
                found.append(TokenLogprobs(scored.token_id, scored.logprob, scored.rank, scored.top))

    def _sample(self, sampling: ReadOnlySequence[_Placed], hidden: torch.Tensor, result: StepResult) -> None:
        logits = self.model.logits(hidden[[at.last_row for at in sampling]])
        rows = [self._sampler_row(at.chunk.sequence) for at in sampling]
        for at, sampled in zip(sampling, self.sampler.sample(logits, rows), strict=True):
            uid = at.chunk.sequence.uid
            result.tokens[uid] = sampled.token_id
            if sampled.logprob is not None:
                result.logprobs[uid] = TokenLogprobs(sampled.token_id, sampled.logprob, sampled.rank, sampled.top)

    @staticmethod
    def _sampler_row(seq: Sequence) -> SamplerRow:
        params = seq.sampling_params
        assert params is not None
        # Copying the tokens costs more than sampling them; most requests do not look back.
        looks_back = (
            params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty or params.min_tokens
        )
        if not looks_back:
            return SamplerRow(params, seq.num_tokens)
        return SamplerRow(params, seq.num_tokens, seq.token_ids[: seq.num_prompt_tokens], seq.generated_token_ids)


_LOGPROB_ROWS = 256
"""Prompt rows whose logits exist at a time."""
