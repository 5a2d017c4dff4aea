"""Reads the format of quantised matrices from config.json, and rejects unsupported ones. No torch.

The weight files show which matrices are quantised, so lists such as `modules_to_not_convert` are not read.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lightwell.model.checkpoint.families.fields import Fields

WHOLE_ROW = -1
"""The size of a group of all inputs of an output."""
_WIDEST = 128
"""The widest group of the kernels. Wider groups are cut into groups of this size."""
_GROUP_SIZES = (32, 64, _WIDEST, WHOLE_ROW)


@dataclass(frozen=True, slots=True)
class Scheme:
    """The format of a checkpoint's quantised matrices."""

    method: str
    """The format's name in config.json."""
    bits: tuple[int, ...]
    """Possible bits of a code."""
    group_sizes: tuple[int, ...] = ()
    """Possible numbers of inputs that share a scale; `WHOLE_ROW` for all."""
    is_less_one: bool = False
    """True if stored zeros are less 1."""
    blocks: tuple[tuple[int, int], ...] = ()
    """Possible blocks of outputs and inputs that share a scale."""
    is_widened: bool = False
    """Whether all matrices are dequantised in memory."""
    has_zeros: bool = False
    """Whether groups may have zeros."""

    @property
    def bits_kept(self) -> float:
        """Return the bits of a number of a quantised matrix in memory: its code, and its share of the group's scale of
        16 bits, or of two numbers of 16 bits and two of 8 bits if groups have zeros.
        """
        group = min(_WIDEST if size == WHOLE_ROW else size for size in self.group_sizes)
        return max(self.bits) + (48 if self.has_zeros else 16) / group


def read_scheme(hf: Fields) -> Scheme | None:
    """Return the scheme of a config.json, or None without one.

    Raises ModelLoadError, with the field and the value, for an unsupported scheme.
    """
    values = hf.nested("quantization_config").values
    if not values:
        return None
    fields = Fields(values, f"{hf.file}: quantization_config")
    method = fields.text("quant_method", "")
    if method not in _READERS:
        raise fields.refuse("quant_method", f"supported are {', '.join(_READERS)}")
    return _READERS[method](fields)


def _one_of(fields: Fields, name: str, accepted: tuple[int, ...], *others: str) -> int:
    """Return an accepted integer. others: other names of the field."""
    found = next((each for each in (name, *others) if each in fields.values), name)
    value = fields.optional_int(found)
    if value not in accepted:
        raise fields.refuse(found, f"supported are {', '.join(map(str, accepted))}")
    return value


def _awq(fields: Fields) -> Scheme:
    """Read the fields of AutoAWQ. Early files have other names."""
    for name in ("version", "format"):
        if fields.text(name, "gemm").lower() != "gemm":
            raise fields.refuse(name, "gemm is supported")
    if fields.values.get("backend") not in (None, "auto", "autoawq"):
        raise fields.refuse("backend", "autoawq is supported")
    fields.only("zero_point", True)
    bits = _one_of(fields, "bits", (4,), "w_bit")
    group_size = _one_of(fields, "group_size", _GROUP_SIZES, "q_group_size")
    return Scheme("awq", (bits,), (group_size,), has_zeros=True)


def _gptq(fields: Fields) -> Scheme:
    version = fields.text("checkpoint_format", fields.text("format", "gptq"))
    if version not in ("gptq", "gptq_v2"):
        raise fields.refuse("checkpoint_format", "supported are gptq and gptq_v2")
    fields.only("is_marlin_format", False)
    fields.only("pack_dtype", "int32")
    if not all(name.startswith("-") for name in fields.nested("dynamic").values):
        raise fields.refuse("dynamic", "only patterns of modules that are left out, with - in front, are supported")
    bits, group_size = _one_of(fields, "bits", (4, 8)), _one_of(fields, "group_size", _GROUP_SIZES)
    is_out_of_order = fields.flag("desc_act", False) and not fields.flag("static_groups", False)
    return Scheme(
        "gptq",
        (bits,),
        (group_size,),
        is_less_one=version == "gptq",
        is_widened=is_out_of_order and group_size != WHOLE_ROW,
        has_zeros=not fields.flag("sym", False),
    )


_FORMATS = {
    "pack-quantized": ("int", (4, 8)),
    "int-quantized": ("int", (8,)),
    "float-quantized": ("float", (8,)),
    "mxfp4-pack-quantized": ("float", (4,)),
}
"""The type of codes in each format of compressed-tensors, and the possible bits."""


def _compressed(fields: Fields) -> Scheme:
    """Read the fields of compressed-tensors: groups of modules, each with a format."""
    for name, accepted in (("sparsity_config", ("dense", "")), ("transform_config", ("",))):
        if fields.nested(name).text("format", "") not in accepted or fields.nested(name).nested("config_groups").values:
            raise fields.refuse(name, "none is supported")
    bits, sizes, blocks = list[int](), list[int](), list[tuple[int, int]]()
    has_zeros, is_widened = False, True
    groups = fields.nested("config_groups")
    for name in groups.values:
        group = Fields(groups.nested(name).values, f"{groups.file}: config_groups.{name}")
        form = group if group.values.get("format") else fields
        if form.text("format", "") not in _FORMATS:
            raise form.refuse("format", f"supported are {', '.join(_FORMATS)}")
        weights = Fields(group.nested("weights").values, f"{group.file}.weights")
        kind, accepted_bits = _FORMATS[form.values["format"]]
        weights.only("type", kind)
        bits.append(_one_of(weights, "num_bits", accepted_bits))
        is_out_of_order = weights.values.get("actorder") in (True, "group", "dynamic")
        is_widened &= is_out_of_order or (kind, bits[-1]) == ("float", 8)
        has_zeros |= not weights.flag("symmetric", True)
        strategy = weights.values.get("strategy")
        if strategy == "group":
            sizes.append(_one_of(weights, "group_size", _GROUP_SIZES))
        elif strategy == "block" and (kind, bits[-1]) == ("float", 8):
            blocks.append(_block(weights, "block_structure"))
        elif strategy in ("channel", "tensor"):
            sizes.append(WHOLE_ROW)
        else:
            raise weights.refuse("strategy", "supported are group, channel, tensor, and of floats of 8 bits block")
    if not bits:
        raise fields.refuse("config_groups", "one or more are expected")
    return Scheme(
        "compressed-tensors",
        tuple(set(bits)),
        tuple(sizes),
        blocks=tuple(blocks),
        is_widened=is_widened,
        has_zeros=has_zeros,
    )


def _block(fields: Fields, name: str) -> tuple[int, int]:
    value = fields.values.get(name)
    lengths = [length for length in value if type(length) is int and length > 0] if isinstance(value, list) else []
    if len(lengths) != 2 or lengths != value:
        raise fields.refuse(name, "two lengths, of outputs and inputs, are expected")
    return lengths[0], lengths[1]


def _fp8(fields: Fields) -> Scheme:
    """Read the fields of DeepSeek's files, and of AutoFP8, where all numbers of a matrix share a scale."""
    fields.only("fmt", "e4m3")
    has_blocks = fields.values.get("weight_block_size") is not None
    blocks = (_block(fields, "weight_block_size"),) if has_blocks else ()
    return Scheme("fp8", (8,), blocks=blocks, is_widened=True)


_READERS: dict[str, Callable[[Fields], Scheme]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "mxfp4": lambda fields: Scheme("mxfp4", (4,), (32,)),
}
