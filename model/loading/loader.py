"""Loader: builds a network from a model folder."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from glob import glob
from pathlib import Path

import torch
from torch import Tensor

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.weight_files import load_weights, stored_tensors
from lightwell.model.config import Activation, ModelConfig
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.fp8_weight import LEAST_CAPABILITY
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.norm import LayerNorm
from lightwell.model.layers.token_table import TokenTable
from lightwell.model.loading.stack_builder import StackBuilder, take, take_any
from lightwell.model.network.heads import Classifier, HeadTransform
from lightwell.model.network.pooling import DenseLayer
from lightwell.model.network.sentence_transformers import DenseConfig, embedding_defaults
from lightwell.model.network.stack import Stack
from lightwell.model.network.transformer import Transformer
from lightwell.model.quantized import QuantizedMatrix, Weight
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.parts import GatheredLinear, SplitTokenTable
from lightwell.model.sharding.shares import Shares, shares_of, weight_parts

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
LEAST_CARD = (8, 0)
"""The lowest compute capability with tensor cores for bfloat16 numbers, which our kernels need."""
_CARD_FILES = "/dev/nvidia[0-9]*"
"""The files of NVIDIA's driver, one for each GPU."""
QUANTIZATIONS: dict[Quantization, tuple[str, ...]] = {
    "none": tuple(DTYPES),
    "int8": ("float32", "bfloat16", "float16"),
    "int4": ("float32", "bfloat16", "float16"),
    "fp8": ("bfloat16", "float16"),
}
"""The dtypes that each quantization supports."""


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is the first GPU, or the CPU without a GPU.

    Raises ModelLoadError when the device does not exist, when torch cannot use this machine's GPU, and for a GPU that
    is too old.
    """
    is_there = torch.cuda.is_available()
    device = torch.device(("cuda" if is_there else "cpu") if name == "auto" else name)
    if not is_there and device.type == "cuda":
        raise ModelLoadError(f"device is {name!r}, but torch finds no GPU; use 'cpu' or 'auto'")
    if not is_there and name == "auto" and torch.version.cuda is not None and (files := glob(_CARD_FILES)):
        raise ModelLoadError(
            f"device is 'auto', and this machine has a GPU ({files[0]}) that torch cannot use: the driver may be too "
            f"old for CUDA {torch.version.cuda}. Update the driver or install another build of torch; 'cpu' is accepted"
        )
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < LEAST_CARD:
        raise ModelLoadError(
            f"{torch.cuda.get_device_name(device)} ({device}) has compute capability "
            f"{'.'.join(map(str, capability))}; {'.'.join(map(str, LEAST_CARD))} and above are accepted: A100, A10, "
            "L4, RTX 30 and newer. Device 'cpu' is accepted too"
        )
    return device


def resolve_dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; "auto" is the checkpoint's dtype, but float32 for float16 checkpoints on a CPU, which
    is exact. Raises ModelLoadError for an unknown dtype.
    """
    wanted = config.dtype if name == "auto" else name
    if name == "auto" and wanted == "float16" and device.type == "cpu":
        wanted = "float32"
    if wanted not in DTYPES:
        raise ModelLoadError(f"dtype is {wanted!r}; expected one of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def resolve_quantization(
    name: str, dtype: torch.dtype, device: torch.device, kernels: KernelConfig = AUTO
) -> Quantization:
    """Return the quantization of a name. Raises ModelLoadError for an unknown name, and for one that the dtype, the
    device or, on a GPU, the kernels do not support.
    """
    if name not in QUANTIZATIONS:
        raise ModelLoadError(f"quantize is {name!r}; expected one of {', '.join(QUANTIZATIONS)}")
    if name != "none" and (problem := _why_not_on(name, device)) is not None:
        raise ModelLoadError(f"quantize is {name!r}, which {problem}")
    *others, last = QUANTIZATIONS[name]
    given = str(dtype).removeprefix("torch.")
    if given not in QUANTIZATIONS[name]:
        raise ModelLoadError(f"quantize is {name!r}, which needs dtype {', '.join(others)} or {last}, not {given}")
    if name in ("int8", "int4") and device.type == "cuda" and not kernels.has_quantized_products(dtype, device):
        raise ModelLoadError(
            f"quantize is {name!r}, which on a GPU needs Lightwell's Triton kernels and dtype bfloat16 or float16; "
            f"dtype is {given}, and kernels is {kernels.kernels!r}"
        )
    return name


def _why_not_on(name: Quantization, device: torch.device) -> str | None:
    """Return the reason why a device does not support a quantization, with the accepted ones, or None if it does."""
    if device.type != "cuda":
        problem = f"needs a GPU, and the device is {device}; int8, int4 and none are accepted there"
        return problem if name == "fp8" else None
    capability = torch.cuda.get_device_capability(device)
    shown = f"{torch.cuda.get_device_name(device)} ({device}) has compute capability {'.'.join(map(str, capability))}"
    if name != "fp8" or capability >= LEAST_CAPABILITY:
        return None
    least = ".".join(map(str, LEAST_CAPABILITY))
    return f"needs a GPU of compute capability {least} or above. {shown}: int8, int4 and none are accepted there"


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
    """Load a checkpoint of any family, with the dense layers of a sentence-transformers folder.

    max_model_len: the longest sequence that will be run; it determines the frequencies of length-dependent rotary
    embeddings and the number of computed positions (the encoder of an encoder-decoder keeps its own limit). kernels:
    the kernels to use. batch_invariant: whether a row's bits may depend only on its own sequence; None: true with our
    CPU kernels, where it costs little. quantize: the quantization of the matrices of the blocks and of the head.
    progress: called with the bytes read and the total. group: the ranks that divide the network; only this rank's
    share is loaded.

    Raises ModelLoadError for a checkpoint that does not fit its config, and if rows must be rounded to 8 bits but no
    weight is quantised.
    """
    shares = None if group is None else shares_of(config, group)
    parts = None if shares is None else weight_parts(shares)
    has_kernels = kernels.why_not_native(dtype, device) is None or kernels.has_quantized_products(dtype, device)
    keeps = parts is None and quantize == "none" and has_kernels
    weights = load_weights(folder, config, dtype, device, progress, parts, keeps)
    is_quantized = quantize != "none" or any(isinstance(each, QuantizedMatrix) for each in weights.values())
    if kernels.activations == "int8" and not is_quantized:
        raise ModelLoadError(
            f"--activations int8: no weight of {folder} is stored in 8 or 4 bits; --quantize int8 and int4 are accepted"
        )
    kernels = kernels.with_activations(dtype, device, quantize, is_quantized=is_quantized)
    model = build_model(
        config,
        weights,
        context=max_model_len or config.max_model_len,
        kernels=kernels,
        batch_invariant=batch_invariant,
        quantize=quantize,
        shares=shares,
    )
    linear = partial(Linear, kernels=kernels, batch_invariant=model.batch_invariant)
    model.dense = load_dense_layers(folder, embedding_defaults(folder, config).dense, dtype, device, linear)
    return model


def load_dense_layers(
    folder: Path,
    configs: Sequence[DenseConfig],
    dtype: torch.dtype,
    device: torch.device,
    linear: Callable[[Tensor, Tensor | None], Linear] = Linear,
) -> tuple[DenseLayer, ...]:
    """Return the layers after the pooling of embeddings, in float32 (float64 for a network in float64): there are only
    a few products for each text.

    Raises ModelLoadError for files that do not fit their configuration.
    """
    wide = at_least_float32(dtype)
    layers = []
    for config in configs:
        stored = stored_tensors(folder / config.path)
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": (config.out_features, config.in_features)}
        if config.bias:
            shapes["linear.bias"] = (config.out_features,)
        found = {name: tensor.shape for name, tensor in stored.items()}
        if found != shapes:
            raise ModelLoadError(f"{config.path}: the tensors are {found}, but config.json requires {shapes}")
        tensors = {name: tensor.read().detach().to(device, wide) for name, tensor in stored.items()}
        layers.append(DenseLayer(linear(tensors["linear.weight"], tensors.get("linear.bias")), wide, config.is_tanh))
    return tuple(layers)


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
    """Build the network of `weights`, by Lightwell's names (`model.checkpoint.weight_files`), and empty the dictionary.

    context: the longest sequence that will be run. shares: the division of each stack, by its prefix, if the weights
    are the part of one rank. For the other parameters see `load_model`. Raises KeyError for a missing weight.
    """
    table = weights.pop("embed.weight")
    is_native = kernels.why_not_native(table.dtype, table.device) is None
    invariant = is_native if batch_invariant is None else batch_invariant
    linear = partial(Linear, kernels=kernels, batch_invariant=invariant)
    is_tied = "head.weight" not in weights
    head: Linear | None = None
    project_out: Linear | None = None
    if config.has_head:
        weight, bias = table if is_tied else weights.pop("head.weight"), take_any(weights, "head.bias")
        if isinstance(weight, Tensor) and shares is not None:
            head = GatheredLinear(weight, bias, shares[""].words, **linear.keywords)
        else:
            head = linear(weight, bias, quantize=quantize)
        del weight
        if "embed_out.weight" in weights:
            project_out = linear(weights.pop("embed_out.weight"))
    transform = None
    if config.head_transform is not None:
        transform = _head_transform(config, weights, partial(linear, quantize=quantize))
    classifier = _classifier(config, weights, linear)
    tied = head if is_tied else None
    if isinstance(table, Tensor) and shares is not None:
        tokens: TokenTable = SplitTokenTable(table, shares[""].words, tied)
    else:
        tokens = TokenTable(table, tied, native=is_native)
    del table

    build = partial(StackBuilder, kernels=kernels, batch_invariant=invariant, quantize=quantize)

    def stack(own: ModelConfig, prefix: str, longest: int) -> Stack:
        share = None if shares is None else shares[prefix]
        own = own if share is None else share.own_config
        return build(own, _taken(weights, prefix), tokens, longest, shares=share).stack()

    encoder = None
    if config.encoder is not None:  # first, since the decoder's names have no prefix
        encoder = stack(config.encoder, "encoder.", max(context, config.encoder.max_model_len))
    only = stack(config, "", context)
    decoder, encoder = (None, only) if config.kind == "encoder" else (only, encoder)
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


def _head_transform(config: ModelConfig, weights: dict[str, Weight], make: partial[Linear]) -> HeadTransform:
    """Return the transform before an encoder's head, and remove its weights."""
    weight, bias = weights.pop("head_transform.weight"), take_any(weights, "head_transform.bias")
    dense = make(weight, bias, activation=config.head_transform)
    gain, bias = take(weights, "head_norm.weight"), take_any(weights, "head_norm.bias")
    return HeadTransform(dense, LayerNorm(gain, bias, config.norm_eps, kernels=make.keywords["kernels"]))


def _classifier(config: ModelConfig, weights: dict[str, Weight], make: partial[Linear]) -> Classifier | None:
    """Return the classification head, or None, and remove its weights.

    It computes in float32 (float64 for a network in float64): there are only one or two rows for each input.
    """
    head = config.classifier
    if head is None:
        return None
    taken = _taken(weights, "classifier")  # "classifier_dense.weight" becomes "_dense.weight"
    wide = at_least_float32(taken[".weight"].dtype)
    own = {name: weight.to(wide) for name, weight in taken.items() if isinstance(weight, Tensor)}

    def linear(name: str, activation: Activation | None = None) -> Linear:
        return make(own[f"{name}.weight"], own.get(f"{name}.bias"), activation=activation)

    dense = norm = None
    if head.dense is not None:
        dense = linear("_dense", None if head.dense == "tanh" else head.dense)
    if head.norm:
        kernels = make.keywords["kernels"]
        norm = LayerNorm(own["_norm.weight"], own.get("_norm.bias"), config.norm_eps, kernels=kernels)
    return Classifier(head, dense, norm, linear(""), wide)


def _taken(weights: dict[str, Weight], prefix: str) -> dict[str, Weight]:
    """Remove the weights with a prefix, and return them by their names without it."""
    return {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
