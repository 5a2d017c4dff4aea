"""Reads the heads of encoders that fill in masked words: a dense layer, an activation and a LayerNorm, then the token
table and a bias for each word (Devlin et al. 2018, arXiv:1810.04805, and its reference code).
"""

from operator import attrgetter
from typing import Any

from model.checkpoint.families.family import Common
from model.checkpoint.families.fields import Fields
from model.checkpoint.families.weight_table import WeightRow, When, has, linear, norm, untied
from model.config import Activation

_has_transform = has("head_transform")
NO_HEAD: dict[str, Any] = {
    "has_head": False,
    "head_transform": None,
    "head_transform_bias": True,
    "head_bias": False,
    "tie_word_embeddings": True,
}
"""The fields of ModelConfig for an encoder without such a head."""


def names_masked_head(common: Common) -> bool:
    """Return whether config.json names an architecture that has such a head."""
    architecture: str = common["architecture"]
    return architecture.endswith(("ForMaskedLM", "ForPreTraining"))


def masked_head_fields(
    hf: Fields, common: Common, activation: Activation, *, transform_bias: bool = True, bias: bool = True
) -> dict[str, Any]:
    """Return the head's fields of ModelConfig; `activation` is the dense layer's, `transform_bias` and `bias` say
    whether it and the words have biases.
    """
    if not names_masked_head(common):
        return NO_HEAD
    return {
        "has_head": True,
        "head_transform": activation,
        "head_transform_bias": transform_bias,
        "head_bias": bias,
        "tie_word_embeddings": hf.flag("tie_word_embeddings", True),
    }


def masked_head_rows(dense: str, norm_name: str, decoder: str, bias: str) -> tuple[WeightRow, ...]:
    """Return the head's rows of a table, from the names of its parts in the files; `bias` is spelt in full: both of
    its names are in the files of heads that are not tied, and the decoder's is what transformers computes with.
    """
    return (
        *linear("head_transform", dense, "d d", bias=_transforms_with("head_transform_bias"), when=_has_transform),
        *norm("head_norm", norm_name, bias=_transforms_with("norm_bias"), when=_has_transform),
        WeightRow("head.weight", (f"{decoder}.weight",), ("vocab d",), untied),
        WeightRow("head.bias", (bias,), ("vocab",), attrgetter("head_bias")),
    )


def _transforms_with(bias: str) -> When:
    """Return a function that says whether a network has such a layer, with a bias of this field."""
    return lambda config: _has_transform(config) and getattr(config, bias)
