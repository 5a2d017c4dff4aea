"""Reads the heads of networks that score or label a whole input (`*ForSequenceClassification` of transformers): which
state a family's head reads, which layers it has and what the files call them.
"""

from collections.abc import Callable
from operator import attrgetter

from model.checkpoint.families.fields import Fields
from model.checkpoint.families.weight_table import WeightRow, When, linear, norm
from model.config import ClassifierConfig, DenseActivation, ModelConfig

SUFFIX = "ForSequenceClassification"
"""The ending of the names of architectures that have such a head."""
ReadClassifier = Callable[[Fields], ClassifierConfig]
_PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
_MOST_LABELS = 1 << 20


def read_score(hf: Fields) -> ClassifierConfig:
    """Read the head of a decoder: a matrix, multiplied with the last token's state."""
    return ClassifierConfig(labels=read_labels(hf), problem_type=read_problem_type(hf), state="last", bias=False)


def first_token(dense: DenseActivation) -> ReadClassifier:
    """Return the reader of an encoder's head: a dense layer with this activation on the first token's state, and the
    labels' matrix.
    """

    def read(hf: Fields) -> ClassifierConfig:
        return ClassifierConfig(labels=read_labels(hf), problem_type=read_problem_type(hf), state="cls", dense=dense)

    return read


def read_labels(hf: Fields) -> tuple[str, ...]:
    """Return the names of the labels: `id2label`, or as many as `num_labels` says; without either there are two."""
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


def read_problem_type(hf: Fields) -> str | None:
    found = hf.text("problem_type", "") or None
    if found is not None and found not in _PROBLEM_TYPES:
        raise hf.refuse("problem_type", f"one of {', '.join(_PROBLEM_TYPES)} is expected")
    return found


def classifier_rows(
    output: str, dense: str | None = None, norm_name: str | None = None, *, bias: bool = True
) -> tuple[WeightRow, ...]:
    """Return the head's rows of a table, from the names of its parts in the files."""
    rows = (
        () if dense is None else linear("classifier_dense", dense, "d d", bias=_has("dense_bias"), when=_has("dense"))
    )
    if norm_name is not None:
        rows += norm("classifier_norm", norm_name, bias=_has("norm_bias"), when=_has("norm"))
    return (*rows, *linear("classifier", output, "labels d", bias=bias and _has("bias"), when=_has("labels")))


def _has(part: str) -> When:
    """Return a function that says whether a network has a part of such a head."""
    read = attrgetter(part)

    def has(config: ModelConfig) -> bool:
        return config.classifier is not None and bool(read(config.classifier))

    return has


SCORE_ROWS = classifier_rows("score", bias=False)
"""The rows of a decoder's head."""
