"""Settings of embeddings from a model folder's sentence-transformers files (`modules.json` and the files it names).

It does not import torch or tokenizers. Poolings, dense layers after them and scaling to length 1 are supported. A
folder that requires anything else is rejected, since its vectors would differ from sentence-transformers'.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from lightwell.model.checkpoint.families.fields import Fields, read_array, read_object
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config

PoolingMode = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens"]
"""A pooling of sentence-transformers: the mean of all tokens, the first token, the last token, the maximum of each
number, the mean with weight i for the i-th token (from 1), or the sum divided by the square root of the number of
tokens.
"""
_MAX_PROMPT = 10_000
"""Largest number of characters of a prompt, which is added to each input of a request."""
_POOLINGS: dict[str, Literal["mean", "cls", "last"]] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_MODES: dict[str, PoolingMode] = {**{mode: mode for mode in get_args(PoolingMode)}, **_POOLINGS}
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of sentence-transformers before 5.2, and the value of `pooling_mode` that replaces each."""
_TRANSFORMER_FILES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""Names in the Transformer module's file name, in the order of sentence-transformers."""
_SUPPORTED = re.compile("Transformer Pooling( Dense)*( Normalize)?")
"""The supported kinds of modules, in their order."""
_LATE = re.compile("Transformer( Dense)+(?=.* MultiVectorMask)( MultiVectorMask| Normalize)+")
"""The kinds of modules for a vector of each token."""
_LENGTHS = ("query_expansion", "query_length", "document_length")
"""Settings of late interaction that change how queries and documents are read."""
_IDENTITY, _TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
"""The activations of dense layers; Tanh is the default."""
_NO_LENGTH = 10**20
"""From this value on, a tokenizer's model_max_length means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """A dense layer: activation(x W^T + b)."""

    path: str
    """The folder of its weights, within the model folder."""
    in_features: int
    out_features: int
    bias: bool
    is_tanh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseConfig:
    """The formula of word weights from the logits of a masked language model (SpladePooling)."""

    is_sum: bool = False
    """Whether the weights of all tokens are summed; otherwise a word has the largest one."""
    is_log_twice: bool = False
    """Whether log(1 + x) is applied again to log(1 + relu(logit))."""
    refusal: str | None = None
    """The reason why the folder's weights cannot be computed, or None if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDefaults:
    """The settings of inputs in a model folder."""

    max_length: int | None = None
    """Largest number of tokens of an input or a pair, special tokens included; None means the whole context."""
    lowercase: bool = False
    """Whether texts are lower-cased before tokenisation."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts before an input, or before the first text of a pair, by name ("query", "document")."""
    default_prompt_name: str | None = None
    """The prompt that sentence-transformers uses unless another one is named."""
    is_declared: bool = False
    """Whether the folder's files declare the settings; otherwise they are defaults for its kind of network."""
    refusal: str | None = None
    """The reason why the folder's results cannot be computed, or None if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDefaults(InputDefaults):
    """The defaults of embedding requests. With a refusal, pooling and normalize are defaults for the kind of network,
    and apply only to requests that set them.
    """

    pooling: Literal["mean", "cls", "last"]
    """The pooling of the final-normed states of all tokens, special tokens included."""
    modes: tuple[PoolingMode, ...] = ()
    """Poolings with concatenated vectors, in place of `pooling`; () for one pooling."""
    normalize: bool
    """Whether vectors are scaled to length 1."""
    dense: tuple[DenseConfig, ...] = ()
    """The layers after the pooling."""
    is_late: bool = False
    """Whether the folder is for late interaction (ColBERT): the dense layers then apply to each token's vector, and
    only to the pooling "none".
    """
    truncate: bool = False
    """Whether longer inputs are cut, as in sentence-transformers (special tokens at the end stay), or rejected."""
    sparse: SparseConfig = SparseConfig()
    """The formula of sparse vectors, also for a masked language model without any files."""


def embedding_defaults(folder: Path, config: ModelConfig) -> EmbeddingDefaults:
    """Return the defaults of a model folder from its sentence-transformers files, else the mean of an encoder's states
    or the last state of a decoder, at length 1.

    Raises ModelLoadError, naming file and field, for invalid files.
    """
    usual: Literal["mean", "last"] = "last" if config.kind == "decoder" else "mean"
    modules, kinds = read_modules(folder)
    if not (folder / "modules.json").exists():
        return EmbeddingDefaults(pooling=usual, normalize=True)
    declared = Fields.of_file(folder / "config_sentence_transformers.json")
    prompts, limits = read_prompts(declared), transformer_file(folder)
    is_late = _LATE.fullmatch(" ".join(kinds)) is not None
    modes: tuple[str, ...] = ()
    if is_late:
        refusal = _why_not_late(folder, modules, kinds, limits)
    elif "Pooling" not in kinds:
        refusal = "modules.json: names no Pooling module"
    else:
        pooling = module_config(folder, modules[kinds.index("Pooling")])
        modes, refusal = _pooling_modes(pooling), _why_not_pooling(pooling, kinds, bool(prompts))
    dense: tuple[DenseConfig, ...] = ()
    if refusal is None:
        files = [module_config(folder, each) for each, kind in zip(modules, kinds, strict=True) if kind == "Dense"]
        of = "token_embeddings" if is_late else "sentence_embedding"
        refusal = next(filter(None, (_why_not_dense(file, of) for file in files)), None)
        if refusal is None:
            dense = _dense_layers(files, max(1, len(modes)) * stack_config(config, "encoder").hidden_size)
    if refusal is None and declared.values.get("truncate_dim") is not None:
        refusal = f"{declared.file}: truncate_dim is {declared.values['truncate_dim']!r}, which is not supported"
    is_supported = refusal is None
    if is_late and is_supported:
        refusal = "its files are for late interaction, where each token has a vector; pooling none gives these"
    is_plain = len(modes) == 1 and modes[0] in _POOLINGS
    return EmbeddingDefaults(
        pooling=_POOLINGS[modes[0]] if is_supported and is_plain else usual,
        modes=tuple(_MODES[mode] for mode in modes) if is_supported and not is_plain else (),
        normalize="Normalize" in kinds or not is_supported,
        dense=dense,
        is_late=is_late and is_supported,
        max_length=read_max_length(folder, limits),
        truncate=True,
        lowercase=limits.flag("do_lower_case", False),
        prompts=prompts,
        default_prompt_name=declared.text("default_prompt_name", "") or None,
        sparse=_sparse(folder, modules, kinds),
        is_declared=True,
        refusal=refusal,
    )


def read_modules(folder: Path) -> tuple[list[Fields], list[str]]:
    """Return the modules of modules.json and their kinds, both empty without the file."""
    path = folder / "modules.json"
    modules = [Fields(module, "modules.json") for module in read_array(path)] if path.exists() else []
    return modules, [module.text("type", "").rpartition(".")[2] for module in modules]


def module_config(folder: Path, module: Fields) -> Fields:
    """Return the fields of a module's config.json."""
    file = f"{module.folder('path')}/config.json"
    return Fields(read_object(folder / file), file)


def _why_not_pooling(pooling: Fields, kinds: list[str], has_prompts: bool) -> str | None:
    """Return the reason why the modules of a folder with a pooling are not supported, or None if they are."""
    if not _SUPPORTED.fullmatch(" ".join(kinds)):
        return (
            f"modules.json: the modules are {', '.join(kinds)}; only a Transformer, a Pooling, any Dense and "
            "perhaps a Normalize, in this order, are supported"
        )
    if has_prompts and not pooling.flag("include_prompt", True):
        return (
            f"{pooling.file}: include_prompt is False, so prompts would be left out of the vectors; True is supported"
        )
    return None


def _sparse(folder: Path, modules: list[Fields], kinds: list[str]) -> SparseConfig:
    """Return the formula of sparse vectors. Raises ModelLoadError for an invalid SpladePooling."""
    if not {"SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding", "Router"} & set(kinds):
        return SparseConfig()
    if kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        return SparseConfig(
            refusal=f"modules.json: the modules are {', '.join(kinds)}; a Transformer and a SpladePooling are supported"
        )
    pooling = module_config(folder, modules[1])
    found = pooling.text("pooling_strategy", "max"), pooling.text("activation_function", "relu")
    for name, value, known in zip(
        ("pooling_strategy", "activation_function"), found, (("max", "sum"), ("relu", "log1p_relu")), strict=True
    ):
        if value not in known:
            raise pooling.refuse(name, f"{' or '.join(known)} is expected")
    return SparseConfig(is_sum=found[0] == "sum", is_log_twice=found[1] == "log1p_relu")


def _pooling_modes(pooling: Fields) -> tuple[str, ...]:
    """Return the modes to concatenate, usually one."""
    written = pooling.values.get("pooling_mode")
    if written is None:
        return tuple(mode for flag, mode in _OLD_POOLINGS.items() if pooling.flag(flag, False)) or ("mean",)
    modes: list[Any] = [written] if isinstance(written, str) else written
    if not isinstance(modes, list) or not modes or any(mode not in _OLD_POOLINGS.values() for mode in modes):
        raise pooling.refuse("pooling_mode", f"one or more of {', '.join(_OLD_POOLINGS.values())} are expected")
    return tuple(modes)


def _why_not_late(folder: Path, modules: list[Fields], kinds: list[str], limits: Fields) -> str | None:
    """Return the reason why the folder's vectors of tokens are not supported, or None if they are."""
    names = [name for name in _LENGTHS if limits.values.get(name) is not None]
    if names:
        return f"{limits.file}: sets {', '.join(names)}, which is not supported"
    mask = module_config(folder, modules[kinds.index("MultiVectorMask")])
    names = [name for name in ("skiplist_words", "keep_only_token_ids") if mask.values.get(name)]
    return f"{mask.file}: sets {', '.join(names)}, which is not supported" if names else None


def _why_not_dense(file: Fields, of: str) -> str | None:
    """Return the reason why a dense layer `of` these vectors is not supported, or None if it is."""
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


def _dense_layers(files: list[Fields], width: int) -> tuple[DenseConfig, ...]:
    """Return the dense layers. width: the input of the first one. Raises ModelLoadError if a layer does not fit."""
    layers = []
    for file in files:
        if file.size("in_features") != width:
            raise file.refuse("in_features", f"the previous module computes vectors with {width} numbers")
        layer = DenseConfig(
            path=file.file.removesuffix("/config.json"),
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
    """Return the most tokens of an input, or None. sentence-transformers 6 writes only the tokenizer's file."""
    if limits.values.get("max_seq_length") is not None:
        return limits.size("max_seq_length")
    length = Fields.of_file(folder / "tokenizer_config.json").optional_number("model_max_length")
    return int(length) if length is not None and 0 < length < _NO_LENGTH else None
