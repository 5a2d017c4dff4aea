"""Reads how a folder's embeddings are to be computed: what sentence-transformers would do with it, from its own files.

It knows `modules.json` and the files that it leads to, but no tensors and texts (it never imports torch). Pooling,
dense layers after it and scaling to length 1 can be done; a folder that asks for more (a residual) is recognised, and
never served as if it did not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from model.checkpoint.families.fields import Fields, read_array, read_object
from model.config import ModelConfig
from model.hooks.point_names import stack_config

PoolingMode = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens"]
_MAX_PROMPT = 10_000
"""Most characters of a prompt, which each input of a request gets."""
_POOLINGS: dict[str, Literal["mean", "cls", "last"]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_MODES: dict[str, PoolingMode] = {
    **_POOLINGS,
    "max": "max",
    "weightedmean": "weightedmean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags that were used instead of `pooling_mode` before sentence-transformers 5.2."""
_TRANSFORMER_FILES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""Names that sentence-transformers has used for the Transformer module's file, in the order in which it tries them."""
_SUPPORTED = re.compile("Transformer Pooling( Dense)*( Normalize)?")
"""The kinds of modules that can be imitated, in their order."""
_LATE = re.compile("Transformer( Dense)+(?=.* MultiVectorMask)( MultiVectorMask| Normalize)+")
"""The kinds of modules that give a vector of each token."""
_LENGTHS = ("query_expansion", "query_length", "document_length")
"""Settings by which late interaction reads queries and documents unlike other texts."""
_IDENTITY, _TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
"""The activations of dense layers; Tanh is meant by a file that names none."""
_NO_LENGTH = 10**20
"""A tokenizer's model_max_length from which on transformers means that there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """A dense layer: activation(x W^T + b)."""

    path: str
    """The folder of its weights, in the model's."""
    in_features: int
    out_features: int
    bias: bool
    is_tanh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseConfig:
    """How the logits of a masked language model become weights of words (SpladePooling)."""

    is_sum: bool = False
    """Whether the weights of all tokens are added up; else a word has the largest."""
    is_log_twice: bool = False
    """Whether log(1 + x) is taken once more of log(1 + relu(logit))."""
    refusal: str | None = None
    """Why the weights that the folder describes cannot be computed here, or None if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDefaults:
    """The settings of embedding requests that set none."""

    pooling: Literal["mean", "cls", "last"]
    """The pooling of the final-normed states of all tokens, special ones included."""
    modes: tuple[PoolingMode, ...] = ()
    """Ways of pooling whose vectors are put one after the other, in place of `pooling`; () for that alone."""
    normalize: bool
    """Whether to scale the vector to length 1."""
    dense: tuple[DenseConfig, ...] = ()
    """The layers that the pooled vector goes through."""
    is_late: bool = False
    """Whether the folder is for late interaction (ColBERT): its dense layers are then those of each token's vector, and
    of pooling none alone.
    """
    max_length: int | None = None
    """Most tokens of an input, special ones included; None means the whole context."""
    truncate: bool = False
    """Whether to cut longer inputs, as sentence-transformers does (special tokens at the end stay), rather than refuse
    them.
    """
    lowercase: bool = False
    """Whether to lower-case the text before it is tokenised."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts to put before an input, by name ("query", "document"), for callers to choose from."""
    default_prompt_name: str | None = None
    """The prompt that sentence-transformers puts before inputs unless another is named."""
    sparse: SparseConfig = SparseConfig()
    """How sparse vectors are made, which a masked language model has without any files, too."""
    is_declared: bool = False
    """Whether the folder declares them; if not, these are what is usual for its kind of network."""
    refusal: str | None = None
    """Why the vectors that the folder describes cannot be computed here, or None if they can. Pooling and normalize are
    then those of its kind of network, and apply only to requests that ask for them.
    """


def embedding_defaults(folder: Path, config: ModelConfig) -> EmbeddingDefaults:
    """Return the defaults of a model folder: what its sentence-transformers files say, else the mean of an encoder's
    states or the last of a decoder's, at length 1.

    Raises ModelLoadError, naming file and field, for files that make no sense.
    """
    usual: Literal["mean", "last"] = "last" if config.kind == "decoder" else "mean"
    if not (folder / "modules.json").exists():
        return EmbeddingDefaults(pooling=usual, normalize=True)
    modules = [Fields(module, "modules.json") for module in read_array(folder / "modules.json")]
    kinds = [module.text("type", "").rpartition(".")[2] for module in modules]
    asked = Fields.of_file(folder / "config_sentence_transformers.json")
    prompts = read_prompts(asked)
    pooling = next((module for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), None)
    limits = transformer_file(folder)
    is_late = _LATE.fullmatch(" ".join(kinds)) is not None
    refusal: str | None
    modes: tuple[str, ...] = ()
    if is_late:
        refusal = _why_not_late(folder, modules, kinds, limits)
    elif pooling is None:
        refusal = "modules.json: names no Pooling module"
    else:
        file = f"{pooling.folder('path')}/config.json"
        pooled = Fields(read_object(folder / file), file)
        modes = _pooling_modes(pooled)
        refusal = None
        if not _SUPPORTED.fullmatch(" ".join(kinds)):
            refusal = (
                f"modules.json: the modules are {', '.join(kinds)}; only a Transformer, a Pooling, any Dense and "
                "perhaps a Normalize, in this order, are supported"
            )
        elif prompts and not pooled.flag("include_prompt", True):
            refusal = f"{file}: include_prompt is False, so prompts would be left out of the vectors; True is supported"
    dense: tuple[DenseConfig, ...] = ()
    if refusal is None:
        paths = [module.folder("path") for module, kind in zip(modules, kinds, strict=True) if kind == "Dense"]
        files = [Fields(read_object(folder / path / "config.json"), f"{path}/config.json") for path in paths]
        of = "token_embeddings" if is_late else "sentence_embedding"
        refusal = next(filter(None, (_why_not_dense(file, of) for file in files)), None)
        if refusal is None:
            dense = _dense_layers(paths, files, max(1, len(modes)) * stack_config(config, "encoder").hidden_size)
    is_plain = len(modes) == 1 and modes[0] in _POOLINGS
    if asked.values.get("truncate_dim") is not None and refusal is None:
        refusal = f"{asked.file}: truncate_dim is {asked.values['truncate_dim']!r}, which is not supported"
    is_late = is_late and refusal is None
    normalize = "Normalize" in kinds if refusal is None else True
    if is_late:
        refusal = "its files are for late interaction, where each token has a vector; pooling none gives these"
    return EmbeddingDefaults(
        pooling=_POOLINGS[modes[0]] if refusal is None and is_plain else usual,
        modes=tuple(_MODES[mode] for mode in modes) if refusal is None and not is_plain else (),
        normalize=normalize,
        dense=dense,
        is_late=is_late,
        max_length=read_max_length(folder, limits),
        truncate=True,
        lowercase=limits.flag("do_lower_case", False),
        prompts=prompts,
        default_prompt_name=asked.text("default_prompt_name", "") or None,
        sparse=_sparse(folder, modules, kinds),
        is_declared=True,
        refusal=refusal,
    )


def _sparse(folder: Path, modules: list[Fields], kinds: list[str]) -> SparseConfig:
    """Return how sparse vectors are made. Raises ModelLoadError for a SpladePooling that makes no sense."""
    if not {"SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding", "Router"} & set(kinds):
        return SparseConfig()
    if kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        return SparseConfig(
            refusal=f"modules.json: the modules are {', '.join(kinds)}; a Transformer and a SpladePooling are supported"
        )
    file = f"{modules[1].folder('path')}/config.json"
    pooling = Fields(read_object(folder / file), file)
    found = pooling.text("pooling_strategy", "max"), pooling.text("activation_function", "relu")
    for name, value, known in zip(
        ("pooling_strategy", "activation_function"), found, (("max", "sum"), ("relu", "log1p_relu")), strict=True
    ):
        if value not in known:
            raise pooling.refuse(name, f"{' or '.join(known)} is expected")
    return SparseConfig(is_sum=found[0] == "sum", is_log_twice=found[1] == "log1p_relu")


def _pooling_modes(pooling: Fields) -> tuple[str, ...]:
    """Return the modes whose vectors are concatenated; usually one."""
    written = pooling.values.get("pooling_mode")
    if written is None:
        return tuple(mode for flag, mode in _OLD_POOLINGS.items() if pooling.flag(flag, False)) or ("mean",)
    modes: list[Any] = [written] if isinstance(written, str) else written
    if not isinstance(modes, list) or not modes or any(mode not in _OLD_POOLINGS.values() for mode in modes):
        raise pooling.refuse("pooling_mode", f"one or more of {', '.join(_OLD_POOLINGS.values())} are expected")
    return tuple(modes)


def _why_not_late(folder: Path, modules: list[Fields], kinds: list[str], limits: Fields) -> str | None:
    """Return why the vectors of tokens cannot be made as the folder wants them, or None if they can."""
    told = [name for name in _LENGTHS if limits.values.get(name) is not None]
    if told:
        return f"{limits.file}: sets {', '.join(told)}, which is not supported"
    path = modules[kinds.index("MultiVectorMask")].folder("path")
    mask = Fields(read_object(folder / path / "config.json"), f"{path}/config.json")
    told = [name for name in ("skiplist_words", "keep_only_token_ids") if mask.values.get(name)]
    return f"{mask.file}: sets {', '.join(told)}, which is not supported" if told else None


def _why_not_dense(file: Fields, of: str) -> str | None:
    """Return why the configuration of a dense layer `of` these vectors cannot be followed, or None if it can."""
    accepted: dict[str, tuple[Any, ...]] = {
        "activation_function": (_IDENTITY, _TANH),
        "module_input_name": (of,) if of == "token_embeddings" else (of, None),
        "module_output_name": (of, None),
        "use_residual": (False, None),
    }
    for name, values in accepted.items():
        if file.values.get(name, values[-1]) not in values:
            return f"{file.file}: {name} is {file.values[name]!r}; {' or '.join(map(repr, values))} is supported"
    return None


def _dense_layers(paths: list[str], files: list[Fields], width: int) -> tuple[DenseConfig, ...]:
    """Return the dense layers, the first of which gets vectors of `width` numbers. Raises ModelLoadError for one that
    does not fit what comes before it.
    """
    layers = []
    for path, file in zip(paths, files, strict=True):
        if file.size("in_features") != width:
            raise file.refuse("in_features", f"the vectors before it have {width} numbers")
        layer = DenseConfig(
            path=path,
            in_features=width,
            out_features=file.size("out_features"),
            bias=file.flag("bias", True),
            is_tanh=file.text("activation_function", _TANH) == _TANH,
        )
        layers.append(layer)
        width = layer.out_features
    return tuple(layers)


def read_prompts(asked: Fields) -> dict[str, str]:
    """Return the prompts of config_sentence_transformers.json by their names."""
    prompts = asked.nested("prompts").values
    if not all(isinstance(prompt, str) and len(prompt) <= _MAX_PROMPT for prompt in prompts.values()):
        raise asked.refuse("prompts", f"an object of texts of at most {_MAX_PROMPT} characters is expected")
    return dict(prompts)


def transformer_file(folder: Path) -> Fields:
    """Return the fields of the Transformer module's file: max_seq_length and do_lower_case."""
    found = [folder / f"sentence_{name}_config.json" for name in _TRANSFORMER_FILES]
    return next((Fields.of_file(path) for path in found if path.exists()), Fields({}))


def read_max_length(folder: Path, limits: Fields) -> int | None:
    """Return the most tokens of an input, or None. sentence-transformers 6 writes it to the tokenizer's file alone."""
    if limits.values.get("max_seq_length") is not None:
        return limits.size("max_seq_length")
    length = Fields.of_file(folder / "tokenizer_config.json").optional_number("model_max_length")
    return int(length) if length is not None and 0 < length < _NO_LENGTH else None
