"""Settings of scores of pairs from a model folder's own files, as in sentence-transformers' CrossEncoder.

It does not import torch or tokenizers. A folder with settings that would give other scores than the library's is
rejected.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.config import ModelConfig
from lightwell.model.network.sentence_transformers import (
    InputDefaults,
    module_config,
    read_max_length,
    read_modules,
    read_prompts,
    transformer_file,
)

Scores = np.ndarray[Any, np.dtype[np.float32]]


def _sigmoid(logits: Scores) -> Scores:
    small = np.exp(-np.abs(logits))  # never over 1
    scores: Scores = np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
    return scores


ACTIVATIONS: Mapping[str, Callable[[Scores], Scores]] = {
    "sigmoid": _sigmoid,
    "identity": lambda logits: logits,
    "tanh": np.tanh,
}
"""The functions of logits that folders may name, in lower case."""


_SIZES = frozenset({"max_length", "padding", "restore_suffix", "return_tensors", "truncation"})
"""Variables of the chat template that sentence-transformers uses to cut prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """A score from a decoder's logits of the next token: logit of `true_id`, minus logit of `false_id` if there is one
    (Qwen3-Reranker: yes and no).
    """

    true_id: int
    false_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreDefaults(InputDefaults):
    """Defaults for scores and labels. Longer pairs are cut, the longer text first, as in sentence-transformers."""

    activation: str = "identity"
    """The function of the logits, one of ACTIVATIONS."""
    token_score: TokenScore | None = None
    """The logits of the score, or None if a classification head computes it."""
    has_messages: bool = False
    """Whether the chat template writes pairs, as messages of the roles query and document."""
    has_parts: bool = False
    """Whether the contents of these messages are lists of parts, which some templates require."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Additional variables of the chat template."""

    def scores(self, logits: Scores) -> Scores:
        """Return the scores of logits of any shape, float32."""
        return ACTIVATIONS[self.activation](logits)


def score_defaults(folder: Path, config: ModelConfig) -> ScoreDefaults | None:
    """Return the defaults of a model folder, or None without a classification head and a CrossEncoder's files.

    Raises ModelLoadError, naming file and field, for invalid files.
    """
    declared = Fields.of_file(folder / "config_sentence_transformers.json")
    hf = Fields.of_file(folder / "config.json")
    older = hf.nested("sentence_transformers")
    is_declared = declared.text("model_type", "") == "CrossEncoder" or bool(older.values)
    if config.classifier is None and not is_declared:
        return None
    refusal, token_score = _modules(folder, config)
    written = (
        declared.text("activation_fn", "")
        or older.text("activation_fn", "")
        or hf.text("sbert_ce_default_activation_function", "")
    )
    num_labels = 1 if config.classifier is None else config.classifier.num_labels
    activation = "sigmoid" if num_labels == 1 else "identity"
    if written.startswith("torch."):  # the library ignores other names, which are the folder's own code
        activation = written.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        refusal = refusal or f"activation_fn is {written!r}; Sigmoid, Identity and Tanh are supported"
        activation = "identity"
    limits = transformer_file(folder)
    refusal = refusal or _why_not_messages(limits)
    messages = limits.nested("modality_config").nested("message")
    return ScoreDefaults(
        activation=activation,
        token_score=token_score,
        has_messages="message" in limits.nested("modality_config").values,
        has_parts=messages.text("format", "flat") == "structured",
        template_arguments=limits.nested("processing_kwargs").nested("chat_template").values,
        max_length=read_max_length(folder, limits),
        lowercase=limits.flag("do_lower_case", False),
        prompts=read_prompts(declared),
        default_prompt_name=declared.text("default_prompt_name", "") or None,
        is_declared=is_declared,
        refusal=refusal,
    )


def _why_not_messages(limits: Fields) -> str | None:
    """Return why the library's calls of tokenizer and chat template are not supported, or None if they are."""
    processing = limits.nested("processing_kwargs")
    others = [name for name, value in processing.values.items() if value and name != "chat_template"]
    sizes = sorted(_SIZES & processing.nested("chat_template").values.keys())
    if others or sizes:
        return f"{limits.file}: processing_kwargs sets {', '.join([*others, *sizes])}, which is not supported"
    messages = limits.nested("modality_config").values.get("message")
    if messages is not None and Fields(messages).text("format", "auto") not in ("flat", "structured"):
        return f"{limits.file}: the messages' format is {messages.get('format')!r}; flat and structured are supported"
    return None


def _modules(folder: Path, config: ModelConfig) -> tuple[str | None, TokenScore | None]:
    """Return the reason why a folder's modules are not supported, or None if they are, and the logits of a score."""
    modules, kinds = read_modules(folder)
    if kinds in ([], ["Transformer"]):
        if config.classifier is None:
            return f"{config.architecture}: the files hold no head that labels an input", None
        return None, None
    if kinds != ["Transformer", "LogitScore"]:
        return (
            f"modules.json: the modules are {', '.join(kinds)}; Transformer, or it and LogitScore, are supported",
            None,
        )
    if config.kind != "decoder" or not config.has_head:
        return f"modules.json: LogitScore needs a decoder that writes, not {config.architecture}", None
    score = module_config(folder, modules[1])
    ids = score.optional_int("true_token_id"), score.optional_int("false_token_id")
    for name, token_id in zip(("true_token_id", "false_token_id"), ids, strict=True):
        if token_id is not None and not 0 <= token_id < config.vocab_size:
            raise score.refuse(name, f"0 to {config.vocab_size - 1} are expected")
    if ids[0] is None:
        raise score.refuse("true_token_id", 'the id of the token for "yes" is expected')
    return None, TokenScore(true_id=ids[0], false_id=ids[1])
