"""Profile run: the largest steps of serving, so that their memory can be measured before the KV cache gets the rest.

It uses a cache of two blocks: all keys and values go to the null block.
"""

from dataclasses import dataclass

import numpy as np
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.device_edits import PackedEdits, RowEdits, edited
from lightwell.model.sampling.device_rows import Kind, pack, packed_size
from lightwell.model.sampling.device_sampler import DeviceSampler, score_type
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from lightwell.server.engine.execution.cuda_graphs import mixed_sizes
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.engine.scheduling.block_manager import NULL_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRun:
    """The largest steps of one network."""

    model: Transformer
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int

    @torch.inference_mode()
    def prefill(self) -> None:
        """Run the most rows of a step: divided among the most sequences, with a token for each; and as the end of one
        longest context.
        """
        model, rows = self.model, self.max_num_batched_tokens
        num_seqs = min(self.max_num_seqs, rows)
        if model.encoder is not None:
            self._encode([self._encoder_len] * max(1, rows // self._encoder_len))
            self._encode(_shared_out(rows, num_seqs, self._encoder_len))
        if model.decoder is None:
            return
        cache = self._cache()
        hidden = self._forward([self._span(0, n) for n in _shared_out(rows, num_seqs, self.max_model_len)], cache)
        last = min(rows, self.max_model_len)
        self._forward([self._span(self.max_model_len - last, last)], cache)
        if model.head is not None:
            self._sample(model.logits(hidden[:num_seqs], widen=False))

    @torch.inference_mode()
    def graphs(self) -> None:
        """Run the largest steps that are graphs: a token of the most sequences, each at the end of the longest context;
        and the same with the largest piece of a prompt that a graph can hold.
        """
        decodes = [self._span(self.max_model_len - 1, 1)] * self.max_num_seqs
        self.model.logits(self._forward(decodes, self._cache()))
        piece = min(mixed_sizes(self.max_num_batched_tokens)[-1] - len(decodes) + 1, self.max_model_len)
        if piece > 1:
            self._forward([self._span(self.max_model_len - piece, piece), *decodes[1:]], self._cache())

    def _sample(self, logits: torch.Tensor) -> None:
        model = self.model
        params = SamplingParams(max_tokens=1, seed=0, top_p=0.9, repetition_penalty=1.1)
        rows = [SamplerRow(params, 2, (0, 0), 1)] * len(logits)
        if model.decoder is None or model.decoder.gpu_program is None:
            Sampler(model.config.vocab_size, model.device, model.kernels).sample(logits, rows)
            return
        # Penalties take the most memory when they count tokens that only the device knows.
        size, edits = model.config.vocab_size, PackedEdits(model.config.vocab_size)
        for row, options in enumerate(rows):
            edits.add(row, RowEdits(options.params, size, 1), options.token_ids, newest=0)
        capacity = edits.least_capacity(len(rows))
        packed = np.zeros(packed_size(len(rows)), np.int64)
        packed_edits = np.zeros(capacity.packed_size, np.int64)
        pack(rows, packed)
        edits.pack(packed_edits, capacity)
        on_device, edits_there = (torch.from_numpy(each).to(model.device) for each in (packed, packed_edits))
        changed = edited(logits, edits_there, capacity, score_type(logits), on_device.new_zeros(1))
        DeviceSampler(size).sample(Kind.of(rows), logits, on_device, edited=changed)

    @property
    def _encoder_len(self) -> int:
        """Return the longest input of the encoder, in tokens."""
        encoder = self.model.config.encoder or self.model.config
        return min(self.max_model_len, encoder.max_model_len)

    def _cache(self) -> KVCache:
        model = self.model
        return KVCache(
            model.cache_config, 2, self.block_size, model.dtype, model.device, keys_in_rows=model.keys_in_rows
        )

    def _encode(self, lengths: list[int]) -> None:
        model = self.model
        num_layers = (model.config.encoder or model.config).num_layers
        ids = [[0] * length for length in lengths]
        hidden = model.encode(Batch.unchunked(ids, self.block_size, model.device, [num_layers] * len(ids)))
        if model.config.cross_attention:
            model.write_cross_kv(hidden, self._cache(), np.arange(len(hidden)) % self.block_size)

    def _forward(self, spans: list[Span], cache: KVCache) -> torch.Tensor:
        return self.model.forward(Batch(spans, self.block_size, self.model.device), cache)

    def _span(self, start: int, count: int) -> Span:
        """Return `count` rows from position `start`, with all keys in the null block."""
        table = [NULL_BLOCK] * -(-(start + count) // self.block_size)
        cross = self._encoder_len if self.model.config.cross_attention else 0
        cross_table = [NULL_BLOCK] * -(-cross // self.block_size)
        return Span([0] * count, start, table, self.model.config.num_layers, cross_table, cross)


def _shared_out(rows: int, num_seqs: int, longest: int) -> list[int]:
    """Return the number of rows of each sequence, as evenly as possible and at most `longest`."""
    counts = [rows // num_seqs + (i < rows % num_seqs) for i in range(num_seqs)]
    return [min(count, longest) for count in counts]
