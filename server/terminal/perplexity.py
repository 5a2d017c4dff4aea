"""Perplexity of a text under a model, and its difference from another model: `lightwell perplexity`.

The networks run in this process, without a server.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from model.batch import Batch, Span
from model.checkpoint.files import read_text
from model.checkpoint.folder import ModelLoadError
from model.checkpoint.registry import read_config
from model.checkpoint.resolve import resolve
from model.kernels.choice import KernelConfig
from model.kv_cache import KVCache
from model.loading.loader import load_model, resolve_device, resolve_dtype, resolve_quantization
from model.tokenization.tokenizer import Tokenizer, TokenizerError
from server.config.settings import Settings

WINDOW = 512
"""Largest number of tokens in one pass; each token but the last predicts the next one."""
LEAST_TOKENS = 2
"""Smallest number of tokens of a text: one token, and the next one that it predicts."""
_BLOCK_SIZE = 32


@dataclass
class Score:
    """How well one model predicted a text, summed up over its tokens."""

    loss: float = 0.0
    """Negative log-likelihood, in nats."""
    num_tokens: int = 0

    def add(self, logprobs: Tensor, following: Tensor) -> None:
        """Add log-probabilities [tokens, vocab] float64 and the tokens [tokens] int64 that followed."""
        self.loss -= float(logprobs.gather(1, following[:, None]).sum())
        self.num_tokens += len(following)

    @property
    def perplexity(self) -> float:
        """Return e to the mean negative log-likelihood of a token."""
        return math.exp(self.loss / self.num_tokens)


@dataclass
class Comparison:
    """How far a model's distributions are from another's, over the tokens of a text."""

    divergences: list[float] = field(default_factory=list)
    """KL(other || model) of each token, in nats (Kullback & Leibler 1951)."""
    num_agreeing: int = 0
    """Tokens at which both have the same likeliest token."""

    def add(self, logprobs: Tensor, others: Tensor) -> None:
        """Add log-probabilities [tokens, vocab] float64 of the model, and the other's."""
        self.divergences += (others.exp() * (others - logprobs)).sum(1).tolist()
        self.num_agreeing += int((logprobs.argmax(1) == others.argmax(1)).sum())

    def divergence(self, share: float) -> float:
        """Return the divergence that this share of the tokens does not exceed, in nats."""
        return sorted(self.divergences)[min(len(self.divergences) - 1, int(share * len(self.divergences)))]


class Scorer:
    """A model that predicts texts."""

    def __init__(self, settings: Settings) -> None:
        """Load the model of these settings. Raises ModelLoadError if it cannot be loaded, or predicts no text."""
        folder = resolve(settings.model)
        config = read_config(folder)
        if config.kind != "decoder":
            raise ModelLoadError(f"{folder} is an {config.kind}; a decoder is accepted")
        device = resolve_device("auto")
        own = resolve_dtype(settings.dtype, config, device)
        self.model = load_model(
            folder,
            config,
            own,
            device,
            quantize=resolve_quantization(settings.quantize, own, device),
            kernels=KernelConfig(activations=settings.activations),
        )
        try:
            self.tokenizer = Tokenizer.from_folder(folder)
        except TokenizerError as error:
            raise ModelLoadError(str(error)) from error
        self.window = min(WINDOW, config.max_model_len)
        self._cache = KVCache(
            self.model.cache_config,
            1 + -(-self.window // _BLOCK_SIZE),
            _BLOCK_SIZE,
            own,
            device,
            keys_in_rows=self.model.keys_in_rows,
        )

    @torch.inference_mode()
    def logprobs(self, ids: list[int]) -> Tensor:
        """Return the log-probabilities [tokens, vocab] float64 of the token after each of `ids`, `window` at most."""
        blocks = range(1, 1 + -(-len(ids) // _BLOCK_SIZE))
        switch = self.model.rotary_switch or len(ids)
        span = Span(ids, 0, blocks, self.model.config.num_layers, rotary_start=switch if len(ids) > switch else 0)
        hidden = self.model.forward(Batch([span], _BLOCK_SIZE, self.model.device), self._cache)
        return self.model.logits(hidden[: len(ids)]).double().log_softmax(-1).cpu()


def measure(
    settings: Settings, text: Path, against: str | None, max_tokens: int
) -> tuple[Score, Score | None, Comparison]:
    """Return the score of the model in `settings` over the first tokens of a text, the other's, and how they compare.

    Raises ModelLoadError for models that cannot be loaded or do not share a vocabulary, for a file that cannot be read,
    and for a text of fewer than two tokens.
    """
    written = read_text(text).replace("\r\n", "\n").replace("\r", "\n")
    scorer = Scorer(settings)
    other = None if against is None else Scorer(Settings(model=against, dtype=settings.dtype))
    ids = scorer.tokenizer.encode(written, add_special_tokens=False).ids[:max_tokens]
    if len(ids) < LEAST_TOKENS:
        raise ModelLoadError(f"{text} has {len(ids)} tokens; perplexity needs {LEAST_TOKENS} or more")
    if other is not None and other.tokenizer.encode(written, add_special_tokens=False).ids[:max_tokens] != ids:
        raise ModelLoadError(f"{against} splits {text} into other tokens; a model with the same vocabulary is accepted")
    window = scorer.window if other is None else min(scorer.window, other.window)
    score, others_score, comparison = Score(), None if other is None else Score(), Comparison()
    for part in _windows(ids, window):
        following = torch.tensor(part[1:])
        logprobs = scorer.logprobs(part)[:-1]
        score.add(logprobs, following)
        if other is not None and others_score is not None:
            theirs = other.logprobs(part)[:-1]
            others_score.add(theirs, following)
            comparison.add(logprobs[:, : theirs.shape[1]], theirs[:, : logprobs.shape[1]])
    return score, others_score, comparison


def report(score: Score, others_score: Score | None, comparison: Comparison) -> str:
    """Return the results for people, one on each line."""
    lines = [f"tokens                {score.num_tokens:>12,}", f"perplexity            {score.perplexity:>12.4f}"]
    if others_score is not None:
        mean = sum(comparison.divergences) / len(comparison.divergences)
        lines += [
            f"perplexity of other   {others_score.perplexity:>12.4f}",
            f"KL from other, mean   {mean:>12.6f}",
            f"KL from other, 99 %   {comparison.divergence(0.99):>12.6f}",
            f"same likeliest token  {comparison.num_agreeing / score.num_tokens:>12.2%}",
        ]
    return "\n".join(lines)


def _windows(ids: list[int], window: int) -> Iterator[list[int]]:
    """Yield pieces of at most `window` tokens. Neighbours share a token: each token but the first is predicted once."""
    for first in range(0, len(ids) - 1, window - 1):
        yield ids[first : first + window]
