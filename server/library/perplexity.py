"""Perplexity of a text under a model, and its difference from another model: `lightwell perplexity`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from lightwell.model.checkpoint.files import read_text
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.server.config.settings import Settings
from lightwell.server.library.llm import LLM

WINDOW = 512
"""Largest number of tokens in one pass; each token but the last predicts the next one."""
LEAST_TOKENS = 2
"""Smallest number of tokens of a text: one token, and the next one that it predicts."""
_MOST_BYTES = 8 << 30
"""Bytes of the logits of a window."""
Numbers = npt.NDArray[np.float64]


@dataclass
class Score:
    """How well one model predicted a text, summed up over its tokens."""

    loss: float = 0.0
    """Negative log-likelihood, in nats."""
    num_tokens: int = 0

    def add(self, logprobs: Numbers, following: list[int]) -> None:
        """Add log-probabilities [tokens, vocab] and the tokens that followed."""
        self.loss -= float(logprobs[np.arange(len(following)), following].sum())
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

    def add(self, logprobs: Numbers, others: Numbers) -> None:
        """Add log-probabilities [tokens, vocab] of the model, and the other's."""
        self.divergences += (np.exp(others) * (others - logprobs)).sum(1).tolist()
        self.num_agreeing += int((logprobs.argmax(1) == others.argmax(1)).sum())

    def divergence(self, share: float) -> float:
        """Return the divergence that this share of the tokens does not exceed, in nats."""
        return sorted(self.divergences)[min(len(self.divergences) - 1, int(share * len(self.divergences)))]


class Scorer:
    """A model that predicts texts."""

    def __init__(self, settings: Settings) -> None:
        """Load the model of these settings. Raises ModelLoadError if it cannot be loaded, or predicts no text."""
        options = {name: getattr(settings, name) for name in ("dtype", "quantize", "activations")}
        self.llm = LLM(settings.source, **options, max_response_bytes=_MOST_BYTES, max_capture_bytes=_MOST_BYTES)
        told = self.llm.capabilities()
        if told["kind"] != "decoder":
            raise ModelLoadError(f"{settings.source} is an {told['kind']}; a decoder is accepted")
        self.window = min(WINDOW, told["max_model_len"])

    def logprobs(self, ids: list[int]) -> Numbers:
        """Return the log-probabilities [tokens, vocab] float64 of the token after each of `ids`, `window` at most."""
        logits = self.llm.trace(ids, "logits")["logits"].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        return cast("Numbers", logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def measure(
    settings: Settings, text: Path, against: str | None, max_tokens: int
) -> tuple[Score, Score | None, Comparison]:
    """Return the score of the model in `settings` over the first tokens of a text, the other's, and how they compare.

    Raises ModelLoadError for models that cannot be loaded or do not share a vocabulary, for a file that cannot be read,
    and for a text of fewer than two tokens.
    """
    written = read_text(text).replace("\r\n", "\n").replace("\r", "\n")
    scorer = Scorer(settings)
    other = None if against is None else Scorer(Settings.from_sources({"model": against, "dtype": settings.dtype}, {}))
    ids = scorer.llm.tokenizer.encode(written, add_special_tokens=False).ids[:max_tokens]
    if len(ids) < LEAST_TOKENS:
        raise ModelLoadError(f"{text} has {len(ids)} tokens; perplexity needs {LEAST_TOKENS} or more")
    if other is not None and other.llm.tokenizer.encode(written, add_special_tokens=False).ids[:max_tokens] != ids:
        raise ModelLoadError(
            f"{against} splits {text} into different tokens; a model with the same vocabulary is accepted"
        )
    window = scorer.window if other is None else min(scorer.window, other.window)
    score, others_score, comparison = Score(), None if other is None else Score(), Comparison()
    for part in _windows(ids, window):
        following = part[1:]
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
