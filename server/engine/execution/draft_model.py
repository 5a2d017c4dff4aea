"""Draft model: a small network that predicts the next tokens of texts, for drafts.

Its cache has the blocks of the network's cache, under the same numbers, so a text needs no table of its own. It draws
tokens as the network's sampler does, with the same random numbers and grammar: where both networks agree, a draft is
right at any temperature. Adapters, interventions and captures do not apply to it.
"""

from collections.abc import Sequence as ReadOnlySequence
from itertools import accumulate
from pathlib import Path

import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model, resolve_dtype
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.grammar.matcher import GrammarMatcher
from lightwell.model.sampling.grammar.vocabulary import spellings
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from lightwell.server.engine.grammar import Grammar
from lightwell.server.engine.sequence import Sequence

_MOST_ROWS = 512
"""Most rows of a pass: a prompt is read in pieces."""


class DraftModel:
    """A network and its cache."""

    def __init__(self, model: Transformer, vocab_size: int, num_blocks: int, block_size: int) -> None:
        """vocab_size: the target's, which may have tokens that the draft model lacks."""
        self.model = model
        self._num_lacking = vocab_size - model.config.vocab_size
        self._cache = KVCache(
            model.cache_config, num_blocks, block_size, model.dtype, model.device, keys_in_rows=model.keys_in_rows
        )
        self._sampler = Sampler(vocab_size, model.device, model.kernels)

    @torch.inference_mode()
    def predict(self, sequences: ReadOnlySequence[Sequence], count: int) -> None:
        """Set `predicted` of each sequence to its next `count` tokens. Their blocks must be allocated.

        Of a long prompt only a piece is read in each step, and there are no drafts until all of it is read.
        """
        most = self.model.config.max_model_len - count
        sequences = [seq for seq in sequences if seq.num_tokens <= most]
        room = _MOST_ROWS // max(1, len(sequences))
        late = [seq for seq in sequences if seq.num_tokens - seq.num_predicted_tokens > max(1, room)]
        if late:
            self._read(late, [seq.token_ids for seq in late])
            sequences = [seq for seq in sequences if seq not in late]
        texts = [list(seq.token_ids) for seq in sequences]
        grammars = [None if seq.grammar is None else seq.grammar.copy() for seq in sequences]
        for _ in range(count if texts else 0):
            hidden, ends = self._read(sequences, texts)
            logits = self.model.logits(hidden[[end - 1 for end in ends[1:]]], widen=False)
            logits = torch.nn.functional.pad(logits, (0, self._num_lacking), value=float("-inf"))
            rows = [
                SamplerRow(seq.sampling_params, len(text), text, seq.num_prompt_tokens, _filter(grammar))
                for seq, text, grammar in zip(sequences, texts, grammars, strict=True)
                if seq.sampling_params is not None
            ]
            for text, grammar, drawn in zip(texts, grammars, self._sampler.sample(logits, rows), strict=True):
                text.append(drawn.token_id)
                if _filter(grammar) is not None and grammar is not None:
                    grammar.accept(drawn.token_id)
        for seq, text in zip(sequences, texts, strict=True):
            seq.predicted = text[seq.num_tokens :]

    def _read(
        self, sequences: ReadOnlySequence[Sequence], texts: ReadOnlySequence[list[int]]
    ) -> tuple[torch.Tensor, list[int]]:
        """Compute the next rows of each text, at least the last one. Returns hidden states [T, d], and the first row of
        each text and the number of rows.
        """
        spans: list[Span] = []
        size = self.model.config.vocab_size
        for seq, text in zip(sequences, texts, strict=True):
            start = min(seq.num_predicted_tokens, len(text) - 1)
            seq.num_predicted_tokens = end = min(len(text), start + max(1, _MOST_ROWS // len(texts)))
            known = [token_id if token_id < size else 0 for token_id in text[start:end]]
            spans.append(Span(known, start, seq.block_table, self.model.config.num_layers))
        batch = Batch(spans, self._cache.block_size, self.model.device)
        return self.model.forward(batch, self._cache), [0, *accumulate(span.num_rows for span in spans)]


def _filter(grammar: Grammar | None) -> GrammarMatcher | None:
    """Return the sampler's filter of a text that its grammar lets continue, or None."""
    if not isinstance(grammar, GrammarMatcher) or grammar.error is not None or grammar.is_complete:
        return None
    return grammar


def load_draft(folder: Path, target_folder: Path, target: Transformer) -> Transformer:
    """Load a draft model for a network. Raises ModelLoadError for a network of another kind or vocabulary."""
    config, vocab_size = read_config(folder), target.config.vocab_size
    problem = ""
    if config.kind != "decoder" or target.config.kind != "decoder":
        problem = "both models must be decoders without an encoder"
    elif config.recurrence is not None:
        problem = f"{config.architecture} has recurrent layers, which cannot take back a wrong draft"
    elif config.vocab_size > vocab_size or spellings(folder, config.vocab_size) != spellings(
        target_folder, config.vocab_size
    ):
        problem = "its vocabulary is not the model's"
    dtype = resolve_dtype("auto", config, target.device)
    model = None if problem else load_model(folder, config, dtype, target.device, kernels=target.kernels)
    if model is not None and model.rotary_switch is not None:
        problem = "its rotary tables depend on the length of the text"
    if model is None or problem:
        raise ModelLoadError(f"--draft-model {folder}: {problem}")
    return model
