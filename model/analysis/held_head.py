"""Head as a linear function of one state: the direction and bias that give the logit of a word or a label, or the
difference of two.

A head is W norm(act(D x + c)) + b; most heads have only W and b, and a soft cap may follow. act(y) is y times
act(y) / y (the slope where y is 0), and so is the cap; the norm divides by a number. With the factors that this state
gives, the logit is exactly a sum over the parts of the state. A part's contribution is no forecast of the logit without
it: the factors would then differ.

Axes: d width, T targets (one, or two for their difference).
"""

from typing import Literal

import torch

from lightwell.model.analysis.head_readout import Readout
from lightwell.model.analysis.weight_reader import WeightReader
from lightwell.model.config import DenseActivation, ModelConfig
from lightwell.model.layers.dense_weight import activate

HeadKind = Literal["words", "labels"]
_SLOPES_AT_0 = {"silu": 0.5, "gelu": 0.5, "gelu_tanh": 0.5, "relu": 0.0, "tanh": 1.0}


def hold_head(
    reader: WeightReader, config: ModelConfig, kind: HeadKind, state: torch.Tensor, targets: tuple[int, ...]
) -> Readout:
    """Return the readout, with one target (the logit or the difference), of a state [d] after the final norm, pooled if
    the head pools; float64.

    Args:
        reader: of any stack; heads belong to the whole model.
        config: of the model.
        kind: the head of words, with the transform before it, or of labels.
        state: [d].
        targets: the token or label; a second one for the difference of both logits.
    """
    activation: DenseActivation | None
    ids = list(targets)
    if kind == "words":
        owner, head = "transform", "embed" if config.tie_word_embeddings else "head"
        activation, has_norm = config.head_transform, config.head_transform is not None
        scale, cap = config.logit_scale, config.final_logit_softcap
        bias_of_targets, project = _wide(reader, "head.bias", ids), _wide(reader, "embed_out.weight")
    elif config.classifier is None:
        raise ValueError(f"{config.architecture} has no head that labels an input")
    else:
        owner = head = "classifier"
        activation, has_norm = config.classifier.dense, config.classifier.norm
        scale, cap = 1.0, None
        bias_of_targets, project = _wide(reader, "classifier.bias", ids), None
    rows = reader.need(f"{head}.weight")[ids].to(torch.float64)
    rows = rows if project is None else rows @ project
    x = state.to(torch.float64) * scale
    dense = c = gain = beta = None
    factor = sigma = torch.ones((), dtype=torch.float64)
    if activation is not None:
        dense, c = _wide(reader, f"{owner}_dense.weight"), _wide(reader, f"{owner}_dense.bias")
        assert dense is not None
        y = dense @ x if c is None else dense @ x + c
        factor = _held_factor(y, activation)
        x = y * factor
    if has_norm:
        gain, beta = _wide(reader, f"{owner}_norm.gain"), _wide(reader, f"{owner}_norm.bias")
        assert gain is not None
        sigma = torch.sqrt(x.var(correction=0) + config.norm_eps)
        x = (x - x.mean()) / sigma * gain
        x = x if beta is None else x + beta
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[: len(targets)]
    if cap is not None:
        logits = rows @ x if bias_of_targets is None else rows @ x + bias_of_targets
        signs = signs * _held_factor(logits / cap, "tanh")
    u = signs @ rows  # back from the logits to the state
    bias = torch.zeros((), dtype=torch.float64) if bias_of_targets is None else signs @ bias_of_targets
    if gain is not None:
        bias = bias if beta is None else bias + beta @ u
        u = gain * u / sigma
        u = u - u.mean()
    if dense is not None:
        u = u * factor
        bias = bias if c is None else bias + c @ u
        u = dense.T @ u
    return Readout((u * scale)[:, None], bias[None])


def _held_factor(y: torch.Tensor, activation: DenseActivation) -> torch.Tensor:
    """Return an activation's factor of each number: its output over its input, or the slope where the input is 0."""
    z = y.tanh() if activation == "tanh" else activate(y, activation)
    return torch.where(y == 0, _SLOPES_AT_0[activation], z / torch.where(y == 0, 1.0, y))


def _wide(reader: WeightReader, name: str, rows: list[int] | slice = slice(None)) -> torch.Tensor | None:
    found = reader.get(name)
    return None if found is None else found[rows].to(torch.float64)
