"""The prompts and the numbers that parity compares, from any source."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightwell.model.config import ModelConfig
from tests import tiny

NUM_PROMPTS = 2

LENGTH = 45

ENCODER_LENGTH = 38

Errors = dict[str, float]
"""Quantity -> largest error, relative to the largest absolute value of its tensor; a quantity that the family does not
have is missing.
"""


@dataclass(frozen=True)
class Numbers:
    """The numbers to compare, of one input, from any source. Each list has one tensor per layer; there is no batch
    axis.
    """

    patterns: list[torch.Tensor]
    """Patterns of all attentions: the encoder's layers, the decoder's, the decoder's cross attention; [head, query,
    key].
    """
    scores: list[torch.Tensor]
    """Scores in the same order; -inf where a key is masked."""
    hidden: list[torch.Tensor]
    """The embedding, the residual stream after each block, and after the final norm if there is one; [position, d].
    An encoder-decoder's are the encoder's, then the decoder's.
    """
    embedding: torch.Tensor
    """The mean over positions of the last hidden states (an encoder-decoder: of its encoder), [d]."""
    logits: torch.Tensor | None
    """[position, vocab], or None without a head."""

    def errors(self, expected: "Numbers") -> Errors:
        """Return the largest differences from the expected numbers, relative to the largest of each tensor."""
        found = {
            "patterns": _largest(self.patterns, expected.patterns),
            "scores": _largest([_centred(s) for s in self.scores], [_centred(s) for s in expected.scores]),
            "hidden states": _largest(self.hidden, expected.hidden),
            "embeddings": _largest([self.embedding], [expected.embedding]),
        }
        if self.logits is not None and expected.logits is not None:
            found["logits"] = _largest([self.logits], [expected.logits])
        return found


def _largest(ours: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    pairs = list(zip(ours, expected, strict=True))
    assert all(mine.shape == other.shape for mine, other in pairs)
    return max(
        float((mine.double() - other.double()).abs().max()) / (float(other.abs().max()) or 1.0) for mine, other in pairs
    )


def _centred(scores: torch.Tensor) -> torch.Tensor:
    """Subtract from each row its mean over the visible keys, or 0 if there is none. Softmax ignores a row's
    constant.
    """
    seen = scores.isfinite()
    finite = scores.double().masked_fill(~seen, 0.0)
    mean = finite.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    return (finite - mean).masked_fill(~seen, 0.0)


@dataclass(frozen=True)
class Prompt:
    """Token ids; the encoder's are for encoder-decoders."""

    ids: list[int]
    encoder_ids: list[int]


def draw_prompts(config: ModelConfig, seed: int) -> list[Prompt]:
    """Draw prompts of ordinary tokens, longer than every window."""
    rng = random.Random(seed)

    def ids(length: int) -> list[int]:
        return [rng.randrange(5, tiny.VOCAB_SIZE) for _ in range(length + rng.randrange(5))]

    return [Prompt(ids(LENGTH), ids(ENCODER_LENGTH) if config.encoder else []) for _ in range(NUM_PROMPTS)]
