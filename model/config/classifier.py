"""Configuration of a classifier: a head that scores or labels the whole input."""

from dataclasses import dataclass
from typing import Literal

State = Literal["cls", "mean", "last"]
"""The input of a head, after the final norm: the first token's state, the mean of all states, or the last token's."""
DenseActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierConfig:
    """A head: W norm(activation(D x + c)) + b of a state x, a number for each label. All parts but W are optional."""

    labels: tuple[str, ...]
    """Names of the labels, in the order of the numbers."""
    problem_type: str | None = None
    """regression, single_label_classification or multi_label_classification; None if config.json has none."""
    state: State
    dense: DenseActivation | None = None
    """The activation of the dense layer D, or None without that layer."""
    dense_bias: bool = True
    norm: bool = False
    """Whether a LayerNorm, with the network's epsilon, follows the dense layer."""
    norm_bias: bool = True
    bias: bool = True
    """Whether the output layer W has a bias."""

    @property
    def num_labels(self) -> int:
        return len(self.labels)
