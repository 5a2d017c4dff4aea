"""A transformer written to be read, used by no production code: the fast network is checked against this, and this
against transformers. It computes one sequence, whole matrices, one head at a time, float64, plain torch.

It reads our canonical weights (model/weight_maps) and gives every named point of `model.hooks.points`.

Axes: S positions of the decoder (or of the only stack), E of the encoder, d width, L layers.
"""

from dataclasses import dataclass

import torch

from lightwell.model.config import ModelConfig
from tests.reference import formulas
from tests.reference.altup import StackOfStreams
from tests.reference.stack import Points, Stack, Weights

__all__ = ["Trace", "formulas", "lens", "run"]


@dataclass(frozen=True)
class Trace:
    """The result of one pass."""

    config: ModelConfig
    points: Points
    """Points by full name: "blocks.0.attn.hook_q", "encoder.hook_embed", "decoder.logits"."""
    final: torch.Tensor
    """[S, d], after the final norm if there is one."""
    dots: list[torch.Tensor]
    """For each layer of the same stack, q.k before scale, cap, bias and mask, [H, S, S]."""
    encoded: torch.Tensor | None = None
    """[E, d]: the encoder's output, or None without an encoder."""

    @property
    def logits(self) -> torch.Tensor:
        """Return the logits, [S, vocab]."""
        return self.points[f"{self._prefix('decoder')}logits"]

    def of_layers(self, point: str, stack: str = "decoder") -> list[torch.Tensor]:
        """Return a point of each block that has it."""
        own = self.config.encoder if stack == "encoder" and self.config.encoder else self.config
        names = [f"{self._prefix(stack)}blocks.{layer}.{point}" for layer in range(own.num_layers)]
        return [self.points[name] for name in names if name in self.points]

    def hidden_states(self, stack: str = "decoder") -> list[torch.Tensor]:
        """Return the hidden states in transformers' form: the embedding, each block's output, and the last one after
        the final norm.
        """
        last = self.encoded if stack == "encoder" and self.encoded is not None else self.final
        return [*self.of_layers("hook_resid_pre", stack), last]

    def _prefix(self, stack: str) -> str:
        return f"{stack}." if self.config.kind == "encoder-decoder" else ""


def run(
    config: ModelConfig,
    weights: Weights,
    token_ids: list[int],
    encoder_token_ids: list[int] | None = None,
    *,
    hf_casts: bool = False,
    max_len: int | None = None,
) -> Trace:
    """Compute everything for one sequence.

    weights: our names, float64. `encoder_token_ids`: the input of an encoder-decoder's encoder. `hf_casts`: add the
    casts to float32 that transformers keeps whatever the model's dtype (RMSNorm, rotary tables and, in some families,
    softmax). `max_len`: the context that rotary frequencies are chosen for (config.max_model_len when None).
    """
    casts, two = config.family if hf_casts else None, config.encoder is not None
    points: Points = {}
    encoded = None
    if config.encoder is not None:
        assert encoder_token_ids is not None
        length = config.encoder.max_model_len
        encoder = Stack(config.encoder, weights, prefix="encoder.", name="encoder.", casts=casts, max_len=length)
        encoded = encoder.run(encoder_token_ids)
        points |= encoder.points
    name = "decoder." if two else ""
    kind = Stack if config.altup is None else StackOfStreams
    stack = kind(config, weights, prefix="", name=name, casts=casts, max_len=max_len or config.max_model_len)
    final = stack.run(token_ids, encoded)
    if config.has_head:
        stack.keep("logits", _logits(stack, final))
    return Trace(config, points | stack.points, final, stack.dots, encoded)


def lens(config: ModelConfig, weights: Weights, stream: torch.Tensor) -> torch.Tensor:
    """Return the logits [S, vocab] of the residual stream [S, d] after any block, as if that block were the last
    (nostalgebraist 2020, "interpreting GPT: the logit lens").
    """
    stack = Stack(config, weights, prefix="", name="", casts=None, max_len=config.max_model_len)
    return _logits(stack, stack.norm("ln_final", "final_norm", stream) if config.final_norm else stream)


def _logits(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    """Return the logits of the normed residual stream, [S, d] -> [S, vocab]."""
    x = x * stack.config.logit_scale
    if (activation := stack.config.head_transform) is not None:
        bias = stack.weights.get("head_norm.bias")
        x = formulas.activate(stack.linear("head_transform", x), activation)
        x = formulas.layer_norm(x, stack.weights["head_norm.weight"], bias, stack.config.norm_eps)
    if stack.config.embedding_size is not None:
        x = stack.linear("embed_out", x)
    logits = x @ stack.weights.get("head.weight", stack.weights["embed.weight"]).T
    if stack.config.head_bias:
        logits = logits + stack.weights["head.bias"]
    return formulas.soft_cap(logits, stack.config.final_logit_softcap)
