"""Defines the head of a network that scores or labels its whole input."""

from dataclasses import dataclass
from typing import Literal

State = Literal["cls", "mean", "last"]
"""The state that a head reads: the first token's, the mean of all tokens' or the last token's, after the final norm."""
DenseActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierConfig:
    """A head: W norm(activation(D x + c)) + b of one state x, of which a family has some parts. It gives a number for
    each label.
    """

    labels: tuple[str, ...]
    """The names of the labels, in the order of the numbers."""
    problem_type: str | None = None
    """Kind of training, by transformers' name: regression, single_label_classification or multi_label_classification;
    None if config.json names none.
    """
    state: State
    dense: DenseActivation | None = None
    """The activation of the dense layer D, or None if there is no such layer."""
    dense_bias: bool = True
    norm: bool = False
    """True if a LayerNorm, with the network's epsilon, follows the dense layer."""
    norm_bias: bool = True
    bias: bool = True
    """True if the output layer has a bias."""

    @property
    def num_labels(self) -> int:
        return len(self.labels)
