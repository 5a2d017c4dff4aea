"""Turns a model folder into a network that runs. It knows how the parts fit together, but not what they are used
for.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.weight_files import load_weights
from model.config import Activation, ModelConfig
from model.kernels.choice import AUTO, KernelConfig
from model.kernels.int8_rows import Quantization
from model.layers.fp8_weight import LEAST_CAPABILITY
from model.layers.linear import Linear
from model.layers.norm import LayerNorm
from model.layers.token_table import TokenTable
from model.loading.dense_layers import load_dense_layers
from model.loading.layer_builder import take, take_any
from model.loading.stack_builder import StackBuilder
from model.network.classifier import Classifier
from model.network.head_transform import HeadTransform
from model.network.sentence_transformers import embedding_defaults
from model.network.stack import Stack
from model.network.transformer import Transformer
from model.quantized import QuantizedMatrix, Weight
from model.sharding.group import Group
from model.sharding.parts import GatheredLinear, SplitTokenTable
from model.sharding.shares import Shares, shares_of, weight_parts

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


QUANTIZATIONS: dict[Quantization, tuple[str, ...]] = {
    "none": tuple(DTYPES),
    "int8": ("float32", "bfloat16", "float16"),
    "int4": ("float32", "bfloat16", "float16"),
    "fp8": ("bfloat16", "float16"),
}
"""The dtypes that each quantization goes with."""


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; auto is the first GPU, or the CPU if there is none.

    Raises ModelLoadError when the device does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device is {name!r}, but torch finds no GPU here; use 'cpu' or 'auto'")
    return device


def resolve_dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; auto is the checkpoint's own, except that a CPU computes float16 checkpoints in
    float32, which holds them exactly.

    Raises ModelLoadError for a dtype we do not know.
    """
    wanted = config.dtype if name == "auto" else name
    if name == "auto" and wanted == "float16" and device.type == "cpu":
        wanted = "float32"
    if wanted not in DTYPES:
        raise ModelLoadError(f"dtype is {wanted!r}; expected one of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def resolve_quantization(name: str, dtype: torch.dtype, device: torch.device) -> Quantization:
    """Return the quantization of a name. Raises ModelLoadError for one that we do not know, or that `dtype` or `device`
    rules out.
    """
    if name not in QUANTIZATIONS:
        raise ModelLoadError(f"quantize is {name!r}; expected one of {', '.join(QUANTIZATIONS)}")
    if name != "none" and (problem := _why_not_on(name, device)) is not None:
        raise ModelLoadError(f"quantize is {name!r}, which {problem}")
    *others, last = QUANTIZATIONS[name]
    given = str(dtype).removeprefix("torch.")
    if given not in QUANTIZATIONS[name]:
        raise ModelLoadError(f"quantize is {name!r}, which needs dtype {', '.join(others)} or {last}, not {given}")
    return name


def _why_not_on(name: Quantization, device: torch.device) -> str | None:
    """Return why a device does not serve a quantization, and what is accepted there, or None if it does."""
    if device.type != "cuda":
        problem = f"needs a GPU, and the device is {device}; int8, int4 and none are accepted there"
        return problem if name == "fp8" else None
    capability = torch.cuda.get_device_capability(device)
    shown = f"{torch.cuda.get_device_name(device)} ({device}) has compute capability {'.'.join(map(str, capability))}"
    can_fp8 = capability >= LEAST_CAPABILITY
    if name != "fp8":
        accepted = "fp8 (smaller and faster) and none are" if can_fp8 else "none is"
        return f"is for CPUs: a GPU would rebuild the weights for every product. {shown}: {accepted} accepted there"
    least = ".".join(map(str, LEAST_CAPABILITY))
    return None if can_fp8 else f"needs a GPU of compute capability {least} or above. {shown}: none is accepted there"


def load_model(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_model_len: int | None = None,
    kernels: KernelConfig = AUTO,
    batch_invariant: bool | None = None,
    quantize: Quantization = "none",
    progress: Callable[[int, int], None] | None = None,
    group: Group | None = None,
) -> Transformer:
    """Load a checkpoint of any family, with the dense layers of a sentence-transformers folder; with `group`, only this
    rank's share of it.

    `max_model_len` is the longest sequence that will be run: it picks the frequencies of length-dependent rotary
    embeddings and bounds computed positions (the encoder of an encoder-decoder keeps its own limit); `kernels`: what
    computes; `batch_invariant`: whether a row's bits may depend on its own sequence alone, None where that costs
    little; `quantize`: how to keep the matrices of the blocks and of the head; `progress` is called with (bytes read,
    bytes in all).

    Raises ModelLoadError for a checkpoint that does not fit its config, and where rows are to be rounded to 8 bits but
    no weight is kept quantised.
    """
    shares = None if group is None else shares_of(config, group)
    parts = None if shares is None else weight_parts(shares)
    keeps = parts is None and quantize == "none" and kernels.why_not_native(dtype, device) is None
    weights = load_weights(folder, config, dtype, device, progress, parts, keeps)
    is_quantized = quantize != "none" or any(isinstance(each, QuantizedMatrix) for each in weights.values())
    if kernels.activations == "int8" and not is_quantized:
        raise ModelLoadError(
            f"--activations int8: no weight of {folder} is kept in 8 or 4 bits; --quantize int8 and int4 are accepted"
        )
    context = max_model_len or config.max_model_len
    model = build_model(
        config,
        weights,
        context=context,
        kernels=kernels,
        batch_invariant=batch_invariant,
        quantize=quantize,
        shares=shares,
    )
    dense = embedding_defaults(folder, config).dense
    model.dense = load_dense_layers(
        folder, dense, dtype, device, kernels=kernels, batch_invariant=model.batch_invariant
    )
    return model


def build_model(
    config: ModelConfig,
    weights: dict[str, Weight],
    *,
    context: int,
    kernels: KernelConfig = AUTO,
    batch_invariant: bool | None = None,
    quantize: Quantization = "none",
    shares: Mapping[str, Shares] | None = None,
) -> Transformer:
    """Build the network of `weights`, by our names (`model.checkpoint.weight_files`), which are removed from the dict;
    `context` is the longest sequence that will be run, `kernels`, `batch_invariant` and `quantize` are the
    same as in `load_model`; `shares`: those of each stack, by its prefix, if the weights are one rank's part. Raises
    KeyError when a weight is missing.
    """
    table = weights.pop("embed.weight")
    # By default batch invariant with our kernels, where that costs nothing.
    is_native = kernels.why_not_native(table.dtype, table.device) is None
    invariant = is_native if batch_invariant is None else batch_invariant
    linear = partial(Linear, kernels=kernels, batch_invariant=invariant)
    is_tied = "head.weight" not in weights
    head = project_out = None
    if config.has_head:
        bias = take_any(weights, "head.bias")
        head = _head(table if is_tied else weights.pop("head.weight"), bias, shares, linear, quantize)
        if "embed_out.weight" in weights:
            project_out = linear(weights.pop("embed_out.weight"))
    transform = _head_transform(config, weights, linear, kernels, quantize)
    classifier = _classifier(config, weights, linear, kernels)
    tokens = _tokens(table, head if is_tied else None, shares)
    del table

    def stack(own: ModelConfig, prefix: str, longest: int) -> Stack:
        share = None if shares is None else shares[prefix]
        return StackBuilder(
            own if share is None else share.own_config,
            _taken(weights, prefix),
            tokens,
            longest,
            kernels=kernels,
            batch_invariant=invariant,
            quantize=quantize,
            shares=share,
        ).stack()

    encoder = None
    if config.encoder is not None:  # first: the decoder's names have no prefix
        encoder = stack(config.encoder, "encoder.", max(context, config.encoder.max_model_len))
    own = stack(config, "", context)
    decoder, encoder = (None, own) if config.kind == "encoder" else (own, encoder)
    return Transformer(
        config,
        decoder=decoder,
        encoder=encoder,
        head=head,
        project_out=project_out,
        head_transform=transform,
        classifier=classifier,
        kernels=kernels,
        batch_invariant=invariant,
    )


def _tokens(table: Tensor | QuantizedMatrix, tied: Linear | None, shares: Mapping[str, Shares] | None) -> TokenTable:
    """Return the token table, of which a rank has its share."""
    if isinstance(table, Tensor) and shares is not None:
        return SplitTokenTable(table, shares[""].words, tied)
    return TokenTable(table, tied)


def _head(
    weight: Tensor | QuantizedMatrix,
    bias: Tensor | None,
    shares: Mapping[str, Shares] | None,
    make: partial[Linear],
    quantize: Quantization,
) -> Linear:
    """Return the product that makes logits, of which a rank has its share."""
    if isinstance(weight, Tensor) and shares is not None:
        return GatheredLinear(weight, bias, shares[""].words, **make.keywords)
    return make(weight, bias, quantize=quantize)


def _head_transform(
    config: ModelConfig,
    weights: dict[str, Weight],
    make: partial[Linear],
    kernels: KernelConfig,
    quantize: Quantization,
) -> HeadTransform | None:
    """Return what comes before an encoder's head, or None; its weights are removed from the dict."""
    if config.head_transform is None:
        return None
    weight, bias = weights.pop("head_transform.weight"), take_any(weights, "head_transform.bias")
    dense = make(weight, bias, quantize=quantize, activation=config.head_transform)
    gain, bias = take(weights, "head_norm.weight"), take_any(weights, "head_norm.bias")
    return HeadTransform(dense, LayerNorm(gain, bias, config.norm_eps, kernels=kernels))


def _classifier(
    config: ModelConfig, weights: dict[str, Weight], make: partial[Linear], kernels: KernelConfig
) -> Classifier | None:
    """Return the head that labels an input, or None, in float32 (float64 for a network in float64): it has a row or two
    for each input, which cost nothing. Its weights are removed from the dict.
    """
    head = config.classifier
    if head is None:
        return None
    taken = _taken(weights, "classifier")  # of "classifier_dense.weight" that is "_dense.weight"
    wide = torch.float64 if taken[".weight"].dtype == torch.float64 else torch.float32
    own = {name: weight.to(wide) for name, weight in taken.items() if isinstance(weight, Tensor)}

    def linear(name: str, activation: Activation | None = None) -> Linear:
        return make(own[f"{name}.weight"], own.get(f"{name}.bias"), activation=activation)

    dense = norm = None
    if head.dense is not None:
        dense = linear("_dense", None if head.dense == "tanh" else head.dense)
    if head.norm:
        norm = LayerNorm(own["_norm.weight"], own.get("_norm.bias"), config.norm_eps, kernels=kernels)
    return Classifier(head, dense, norm, linear(""), wide)


def _taken(weights: dict[str, Weight], prefix: str) -> dict[str, Weight]:
    """Take the weights whose names begin with a prefix, by their names without it."""
    return {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
