"""Head as a linear function of one state: the direction and bias that give the logit of a word or a label, or the
difference of two.

A head is W norm(act(D x + c)) + b; most heads have only W and b, and a soft cap may follow. act(y) is y times
act(y) / y (the slope where y is 0), and so is the cap; the norm divides by a number. With the factors that this state
gives, the logit is exactly a sum over the parts of the state. A part's contribution is no forecast of the logit without
it: the factors would then differ.

Axes: d width, T targets (one, or two for their difference).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from lightwell.model.analysis.head_readout import Readout
from lightwell.model.analysis.weight_reader import WeightReader
from lightwell.model.config import DenseActivation, ModelConfig
from lightwell.model.layers.dense_weight import activate

HeadKind = Literal["words", "labels"]
_SLOPES_AT_0 = {"silu": 0.5, "gelu": 0.5, "gelu_tanh": 0.5, "relu": 0.0, "tanh": 1.0}


@dataclass(frozen=True, slots=True)
class _Head:
    """A head without its rows, float64. Without a transform it has only a scale and a cap."""

    scale: float
    cap: float | None
    activation: DenseActivation | None = None
    dense: torch.Tensor | None = None
    dense_bias: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    norm_bias: torch.Tensor | None = None
    norm_eps: float = 0.0

    def hold(self, state: torch.Tensor, rows: torch.Tensor, biases: torch.Tensor | None) -> Readout:
        """Return the readout of a state [d], with one target: the logit of rows [T, d], or the difference."""
        dense, c, gain, beta = self.dense, self.dense_bias, self.gain, self.norm_bias
        factor = sigma = torch.ones((), dtype=torch.float64)
        x = state * self.scale
        if self.activation is not None:
            assert dense is not None
            y = dense @ x if c is None else dense @ x + c
            factor = _held_factor(y, self.activation)
            x = y * factor
        if gain is not None:
            sigma = torch.sqrt(x.var(correction=0) + self.norm_eps)
            x = (x - x.mean()) / sigma * gain
            x = x if beta is None else x + beta
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[: len(rows)]
        if self.cap is not None:
            logits = rows @ x if biases is None else rows @ x + biases
            signs = signs * _held_factor(logits / self.cap, "tanh")
        u = signs @ rows  # back from the logits to the state
        bias = torch.zeros((), dtype=torch.float64) if biases is None else signs @ biases
        if gain is not None:
            bias = bias if beta is None else bias + beta @ u
            u = gain * u / sigma
            u = u - u.mean()
        if dense is not None:
            u = u * factor
            bias = bias if c is None else bias + c @ u
            u = dense.T @ u
        return Readout((u * self.scale)[:, None], bias[None])


def hold_head(
    reader: WeightReader, config: ModelConfig, kind: HeadKind, states: torch.Tensor, targets: torch.Tensor
) -> Readout:
    """Return the readout, with one target for each state (the logit or the difference), of states [n, d] after the
    final norm, pooled if the head pools; float64.

    Args:
        reader: of any stack; heads belong to the whole model.
        config: of the model.
        kind: the head of words, with the transform before it, or of labels.
        states: [n, d].
        targets: [n, 1], the token or label of each state; [n, 2] for the difference of two logits.
    """
    activation: DenseActivation | None
    ids = targets.flatten().tolist()
    if kind == "words":
        owner, weight = "transform", "embed" if config.tie_word_embeddings else "head"
        activation, has_norm = config.head_transform, config.head_transform is not None
        scale, cap = config.logit_scale, config.final_logit_softcap
        biases, project = _wide(reader, "head.bias", ids), _wide(reader, "embed_out.weight")
    elif config.classifier is None:
        raise ValueError(f"{config.architecture} has no classification head")
    else:
        owner = weight = "classifier"
        activation, has_norm = config.classifier.dense, config.classifier.norm
        scale, cap = 1.0, None
        biases, project = _wide(reader, "classifier.bias", ids), None
    rows = reader.need(f"{weight}.weight")[ids].to(torch.float64)
    rows = rows if project is None else rows @ project
    head = _Head(
        scale,
        cap,
        activation,
        None if activation is None else _wide(reader, f"{owner}_dense.weight"),
        None if activation is None else _wide(reader, f"{owner}_dense.bias"),
        _wide(reader, f"{owner}_norm.gain") if has_norm else None,
        _wide(reader, f"{owner}_norm.bias") if has_norm else None,
        config.norm_eps,
    )
    own_rows = rows.reshape(*targets.shape, -1)
    own_biases = [None] * len(states) if biases is None else biases.reshape(targets.shape)
    held = [head.hold(*one) for one in zip(states.to(torch.float64), own_rows, own_biases, strict=True)]
    return Readout(torch.cat([one.direction for one in held], 1), torch.cat([one.bias for one in held]))


def _held_factor(y: torch.Tensor, activation: DenseActivation) -> torch.Tensor:
    """Return an activation's factor of each number: its output over its input, or the slope where the input is 0."""
    z = y.tanh() if activation == "tanh" else activate(y, activation)
    return torch.where(y == 0, _SLOPES_AT_0[activation], z / torch.where(y == 0, 1.0, y))


def _wide(reader: WeightReader, name: str, rows: list[int] | slice = slice(None)) -> torch.Tensor | None:
    found = reader.get(name)
    return None if found is None else found[rows].to(torch.float64)
