"""Reads how a folder's scores of pairs are to be computed: what sentence-transformers' CrossEncoder would do with it,
from its own files.

It knows `modules.json` and the files that it leads to, but no tensors and texts (it never imports torch). What would
give other scores than the library's is recognised, and never served as if it did not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from model.checkpoint.families.fields import Fields, read_array, read_object
from model.config import ModelConfig
from model.network.sentence_transformers import read_max_length, read_prompts, transformer_file

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
"""What sentence-transformers takes out of the chat template's variables, to cut prompts by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """A score made of a decoder's logits of the token after the prompt: that of `true_id`, less that of `false_id` if
    there is one (Qwen3-Reranker: yes and no).
    """

    true_id: int
    false_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreDefaults:
    """The settings of requests for scores and labels that set none."""

    activation: str = "identity"
    """The function of the logits, one of ACTIVATIONS."""
    token_score: TokenScore | None = None
    """The word head's logits that make the score, or None if a classification head makes it."""
    has_messages: bool = False
    """True if the chat template writes pairs, as messages of the roles query and document."""
    has_parts: bool = False
    """True if the contents of these messages are lists of parts, as some templates read them."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""
    max_length: int | None = None
    """Most tokens of a pair, special ones included; None means the whole context. Longer pairs are cut, the longer text
    first, as sentence-transformers does.
    """
    lowercase: bool = False
    """True if texts are lower-cased before they are tokenised."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before the first text of a pair, by name."""
    default_prompt_name: str | None = None
    is_declared: bool = False
    """True if the folder's own files declare a CrossEncoder; else these are the library's defaults."""
    refusal: str | None = None
    """Why the scores that the folder describes cannot be computed here, or None if they can."""

    def scores(self, logits: Scores) -> Scores:
        """Return the scores of logits of any shape, float32."""
        return ACTIVATIONS[self.activation](logits)


def score_defaults(folder: Path, config: ModelConfig) -> ScoreDefaults | None:
    """Return how a model folder scores, or None if it neither has a head that labels nor is a CrossEncoder.

    Raises ModelLoadError, naming file and field, for files that make no sense.
    """
    asked = Fields.of_file(folder / "config_sentence_transformers.json")
    hf = Fields.of_file(folder / "config.json")
    older = hf.nested("sentence_transformers")
    is_declared = asked.text("model_type", "") == "CrossEncoder" or bool(older.values)
    if config.classifier is None and not is_declared:
        return None
    refusal, token_score = _modules(folder, config)
    written = (
        asked.text("activation_fn", "")
        or older.text("activation_fn", "")
        or hf.text("sbert_ce_default_activation_function", "")
    )
    num_labels = 1 if config.classifier is None else config.classifier.num_labels
    activation = "sigmoid" if num_labels == 1 else "identity"
    if written.startswith("torch."):  # of others, which are code of the folder's own, the library takes none
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
        prompts=read_prompts(asked),
        default_prompt_name=asked.text("default_prompt_name", "") or None,
        is_declared=is_declared,
        refusal=refusal,
    )


def _why_not_messages(limits: Fields) -> str | None:
    """Return why the library's calls of the tokenizer and the chat template cannot be imitated, or None if they can."""
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
    """Return why the modules of a folder cannot be imitated, or None if they can, and what a score is made of."""
    listed = folder / "modules.json"
    modules = [Fields(each, "modules.json") for each in read_array(listed)] if listed.exists() else []
    kinds = [module.text("type", "").rpartition(".")[2] for module in modules]
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
    file = f"{modules[1].folder('path')}/config.json"
    score = Fields(read_object(folder / file), file)
    ids = score.optional_int("true_token_id"), score.optional_int("false_token_id")
    for name, token_id in zip(("true_token_id", "false_token_id"), ids, strict=True):
        if token_id is not None and not 0 <= token_id < config.vocab_size:
            raise score.refuse(name, f"0 to {config.vocab_size - 1} are expected")
    if ids[0] is None:
        raise score.refuse("true_token_id", "the id of the token that means yes is expected")
    return None, TokenScore(true_id=ids[0], false_id=ids[1])
