"""Reads the heads of networks: classifiers of a whole input (`*ForSequenceClassification` of transformers), and the
heads of encoders that predict masked words (Devlin et al. 2018, arXiv:1810.04805, and its reference code).

A masked-word head is a dense layer, an activation and a LayerNorm, then the token table and a bias for each word.
"""

from collections.abc import Callable
from typing import Any

from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.weight_table import UNTIED, WeightRow, linear, norm
from lightwell.model.config import Activation, ClassifierConfig, DenseActivation

SUFFIX = "ForSequenceClassification"
"""The ending of the names of architectures that have such a head."""
ReadClassifier = Callable[[Fields], ClassifierConfig]
_PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
_MOST_LABELS = 1 << 20


def read_classifier(hf: Fields, **options: Any) -> ClassifierConfig:
    """Read the labels of a head. options: the other fields of `ClassifierConfig`."""
    return ClassifierConfig(labels=_labels(hf), problem_type=_problem_type(hf), **options)


def read_score(hf: Fields) -> ClassifierConfig:
    """Read the head of a decoder: a matrix, multiplied with the last token's state."""
    return read_classifier(hf, state="last", bias=False)


def first_token(dense: DenseActivation) -> ReadClassifier:
    """Return the reader of a head with this dense layer on the first token's state, then the labels' matrix."""
    return lambda hf: read_classifier(hf, state="cls", dense=dense)


def _labels(hf: Fields) -> tuple[str, ...]:
    """Return the names of the labels: `id2label`, else made of their number, `num_labels`, by default two."""
    names = hf.nested("id2label").values
    if not names:
        count = hf.size("num_labels", 2)
        if count > _MOST_LABELS:
            raise hf.refuse("num_labels", f"at most {_MOST_LABELS} are supported")
        return tuple(f"LABEL_{i}" for i in range(count))
    keys = [str(i) for i in range(len(names))]
    if set(names) != set(keys) or not all(isinstance(name, str | int | float) for name in names.values()):
        raise hf.refuse("id2label", f"a name for each of 0 to {len(names) - 1} is expected")
    return tuple(str(names[key]) for key in keys)


def _problem_type(hf: Fields) -> str | None:
    found = hf.text("problem_type", "") or None
    if found is not None and found not in _PROBLEM_TYPES:
        raise hf.refuse("problem_type", f"one of {', '.join(_PROBLEM_TYPES)} is expected")
    return found


def classifier_rows(
    output: str, dense: str | None = None, norm_name: str | None = None, *, bias: bool = True
) -> tuple[WeightRow, ...]:
    """Return a classifier's rows of a table. The arguments are the names of its layers in the files."""
    rows: tuple[WeightRow, ...] = ()
    if dense is not None:
        rows += linear("classifier_dense", dense, "d d", bias="classifier.dense_bias", when="classifier.dense")
    if norm_name is not None:
        rows += norm("classifier_norm", norm_name, bias="classifier.norm_bias", when="classifier.norm")
    return (
        *rows,
        *linear("classifier", output, "labels d", bias="classifier.bias" if bias else False, when="classifier"),
    )


SCORE_ROWS = classifier_rows("score", bias=False)


NO_HEAD: dict[str, Any] = {
    "has_head": False, "head_transform": None, "head_transform_bias": True, "head_bias": False,
    "tie_word_embeddings": True,
}  # fmt: skip
"""The fields of ModelConfig for an encoder without a masked-word head."""


def names_masked_head(common: dict[str, Any]) -> bool:
    """Return whether the architecture that config.json names has a head for masked words."""
    architecture: str = common["architecture"]
    return architecture.endswith(("ForMaskedLM", "ForPreTraining"))


def masked_head_fields(
    hf: Fields, common: dict[str, Any], activation: Activation, *, transform_bias: bool = True, bias: bool = True
) -> dict[str, Any]:
    """Return the fields of ModelConfig for a masked-word head. activation: of the dense layer. transform_bias, bias:
    whether the dense layer and the words have biases.
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
    """Return a masked-word head's rows of a table. The arguments are the names of its layers in the files.

    bias: the full name. Files of untied heads hold the bias under two names; transformers uses the decoder's.
    """
    return (
        *linear("head_transform", dense, "d d", bias="head_transform and head_transform_bias", when="head_transform"),
        *norm("head_norm", norm_name, bias="head_transform and norm_bias", when="head_transform"),
        *linear("head", decoder, "vocab d", when=UNTIED),
        WeightRow("head.bias", (bias,), ("vocab",), "head_bias"),
    )
