"""The variants of the card's kernels that `benchmarks.gpu.compile_ahead` compiles: usual networks and the widest ones.

To add a kernel, write a table of its variants and name it in `variants`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from lightwell.model.kernels.cuda import (
    add_norm,
    attention_pieces,
    attention_shapes,
    experts,
    gate,
    grouped_matmul,
    matmul,
    packed_rows,
    paged_attention,
    quantize_rows,
    recurrences,
    rotate_and_store,
    row_max,
)
from lightwell.model.sampling import draw_kernels

FLOAT_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Variant:
    """A kernel with the types of its arguments and the values of its constants."""

    kernel: Any
    """The function that `triton.jit` made."""
    name: str
    types: Mapping[str, str]
    """Triton's type of each argument, e.g. *bf16, i32, fp32. An argument that is named nowhere is None."""
    constants: Mapping[str, object]
    num_warps: int
    sums_like: str = ""
    """The name of an order of sums: all variants that share it must sum in one order."""
    num_stages: int = 3
    max_registers: int | None = None
    """The compiler's limit of registers per thread."""
    multiples_of_16: frozenset[str] = field(default=frozenset())
    """The integers that are multiples of 16; addresses all are."""
    fuses_multiply_add: bool = False
    fuses_in_sums: bool = True
    """Compare the number of fused multiply-adds as part of the order of sums."""


def variants() -> Iterator[Variant]:
    for float_type in FLOAT_TYPES:
        for row in ADD_NORM:
            yield _add_norm(float_type, *row)
        for shape in ROTATE_AND_STORE:
            yield _rotate_and_store(float_type, *shape)
        for activation in GATE:
            yield _gate(float_type, activation)
        for tile in matmul.WIDE_TILES if float_type == "fp32" else matmul.TILES:
            for pieces, are_apart, is_whole in MATMUL:
                if pieces == 1 or are_apart or tile.sums_pieces:
                    yield _matmul(float_type, tile, pieces, are_apart=are_apart, is_whole=is_whole)
            if tile != matmul.TILES[0]:
                yield _expert_product(float_type, tile)
        for of_format in GROUPED:
            if float_type == "bf16" or (float_type, of_format[0]) == ("fp16", "Q4_K"):
                yield from _grouped_matmul(float_type, *of_format)
        yield _join(float_type)
        yield from _experts(float_type)
        yield from _recurrences(float_type)
        yield _quantize_rows(float_type)
        yield from _row_max(float_type)
        yield from _draw(float_type)
    for float_types, group, dim, block_size, what in ATTENTION:
        for float_type in float_types.split():
            yield from _attention(float_type, group, dim, block_size, what)


ADD_NORM: tuple[tuple[int, int, str, str, str], ...] = (
    (768, 0, "none", "none", "layer"),
    (768, 1, "none", "layer", "none"),
    (2048, 1, "none", "none", "rms"),
    (2560, 2, "none", "none", "layer"),
    (4096, 0, "none", "none", "rms"),
    (4096, 1, "none", "none", "rms"),
    (4096, 1, "rms", "none", "none"),
    (5376, 1, "rms, rounded once", "none", "rms, rounded once"),
    (8192, 1, "none", "none", "rms"),
    (16384, 1, "none", "none", "rms"),
    (16384, 2, "none", "none", "layer"),
    (16384, 1, "none", "layer", "none"),
    (16384, 1, "layer", "none", "layer"),
)
"""Width, number of added tensors, and the norms after, of_sum and before; no network has all three."""

ROTATE_AND_STORE: tuple[tuple[int, int, int, int, str, bool], ...] = (
    (32, 8, 128, 128, "none", False),
    (32, 8, 64, 64, "none", False),
    (12, 12, 64, 0, "none", False),
    (32, 32, 80, 32, "none", False),
    (32, 8, 128, 128, "head", False),
    (32, 8, 128, 0, "head", False),
    (8, 4, 256, 256, "head", True),
    (40, 40, 128, 128, "all", False),
    (0, 16, 64, 0, "none", False),
)
"""H, K, D, R, the axis of the norms of queries and keys, and whether they are rounded once."""

GATE = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "clamped silu")

MATMUL = ((1, False, True), (1, False, False), (2, False, True), (2, True, True))
"""Pieces of K, whether each has separate programs, and whether K is a multiple of a tile's steps."""

GROUPED: tuple[tuple[str, int, int, int, int, str], ...] = (
    ("Q4_0", 4, -8, 32, 32, ""),
    ("Q4_1", 4, 0, 32, 32, "mins"),
    ("Q5_1", 5, 0, 32, 32, "mins high"),
    ("Q8_0", 8, -128, 32, 32, ""),
    ("Q4_K", 4, 0, 32, 256, "mins scale_factors min_factors"),
    ("Q5_K", 5, 0, 32, 256, "mins scale_factors min_factors high"),
    ("Q6_K", 6, -32, 16, 256, "scale_factors high"),
    ("IQ4_NL", 4, -128, 32, 32, "values"),
    ("MXFP4", 4, -128, 32, 32, "values exponents"),
    ("AWQ", 4, 0, 128, 128, "zeros"),
    ("int8", 8, -128, packed_rows.WHOLE, packed_rows.WHOLE, "float32"),
)
"""Formats: bits, lowest value, inputs of a group and of a superblock, and further tensors."""


ATTENTION: tuple[tuple[str, int, int, int, str], ...] = (
    ("bf16 fp16 fp32", 4, 128, 32, "causal"),
    ("bf16 fp16 fp32", 4, 128, 32, "causal, patterns"),
    ("bf16", 4, 128, 16, "causal, patterns"),
    ("bf16", 4, 128, 32, "causal, window, patterns"),
    ("bf16", 7, 128, 32, "causal, patterns"),
    ("bf16", 48, 128, 32, "causal, patterns"),
    ("bf16 fp32", 1, 80, 32, "causal, patterns"),
    ("bf16", 8, 64, 32, "causal, window, sinks, patterns"),
    ("bf16", 1, 64, 32, "patterns"),
    ("bf16 fp32", 1, 64, 32, "bias, patterns"),
    ("bf16", 1, 64, 16, "causal, bias, patterns"),
    ("bf16", 1, 128, 32, "bias, patterns"),
    ("bf16", 2, 256, 32, "causal, cap"),
    ("bf16 fp32", 2, 256, 32, "causal, window, cap, patterns"),
    ("bf16", 2, 256, 16, "causal, window, patterns"),
)
"""Types, G, D, B and options of usual networks, mostly with patterns, which need the most registers."""


def _add_norm(float_type: str, width: int, added: int, after: str, of_sum: str, before: str) -> Variant:
    numbers = ("x", *("first", "second")[:added])
    types = dict.fromkeys(numbers, f"*{float_type}")
    if added:
        types["stream"] = f"*{float_type}"
    if before != "none":
        types["normed"] = f"*{float_type}"
    for name, step in (("after", after), ("of_sum", of_sum), ("before", before)):
        if step != "none":
            types[f"{name}_weight"] = "*fp32" if step == "rms, rounded once" else f"*{float_type}"
        if step == "layer":
            types[f"{name}_bias"] = f"*{float_type}"
        types[f"{name}_eps"] = "fp32"
    distances = ("x_distance", "first_distance", "second_distance")
    block = triton.next_power_of_2(width)
    return Variant(
        kernel=add_norm.add_norm_kernel,
        name=f"{float_type} d {width}, {added} added, after {after}, of_sum {of_sum}, before {before}",
        types=types | dict.fromkeys(distances, "i32") | dict.fromkeys(("scale", "stream_scale"), "fp32"),
        constants={"D": width, "BLOCK": block, "AFTER": after, "OF_SUM": of_sum, "BEFORE": before},
        num_warps=add_norm.num_warps(width),
        sums_like=f"add_norm {float_type} d {width}",
        multiples_of_16=frozenset(distances),
    )


def _rotate_and_store(
    float_type: str, num_heads: int, num_key_heads: int, dim: int, rotated: int, axis: str, rounds_once: bool
) -> Variant:
    types = dict.fromkeys(("qkv", "keys", "values"), f"*{float_type}") | {"slots": "*i32"}
    if num_heads:
        types["q"] = f"*{float_type}"
    if rotated:
        types |= {"positions": "*i32", "cos": "*fp32", "sin": "*fp32"}
    if axis != "none":
        types |= dict.fromkeys(("q_weight", "k_weight"), "*fp32" if rounds_once else f"*{float_type}")
    heads = rotate_and_store.heads_of_program(num_heads, num_key_heads, dim)
    return Variant(
        kernel=rotate_and_store.rotate_and_store_kernel,
        name=f"{float_type} H {num_heads}, K {num_key_heads}, D {dim}, R {rotated}, norm {axis}",
        types=types | dict.fromkeys(("q_eps", "k_eps", "v_eps"), "fp32"),
        constants={"H": num_heads, "GATES": 0, "K": num_key_heads, "D": dim, "R": rotated, "B": 16, "HEADS": heads}
        | {"WIDTH": triton.next_power_of_2(dim), "TILE": rotate_and_store.TILE}
        | dict.fromkeys(("Q_NORM_AXIS", "K_NORM_AXIS"), axis)
        | dict.fromkeys(("Q_ROUNDS_ONCE", "K_ROUNDS_ONCE"), rounds_once)
        | {"V_NORM_AXIS": "none", "V_ROUNDS_ONCE": False},
        num_warps=rotate_and_store.num_warps(heads, dim),
        sums_like=f"rotate_and_store {float_type} H {num_heads}, K {num_key_heads}, D {dim}, norm {axis}",
    )


def _gate(float_type: str, activation: str) -> Variant:
    return Variant(
        kernel=gate.gated_kernel,
        name=f"{float_type} {activation}",
        types=dict.fromkeys(("gate", "up", "out"), f"*{float_type}")
        | dict.fromkeys(("gate_distance", "up_distance", "ff"), "i32")
        | dict.fromkeys(("limit", "alpha"), "fp32"),
        constants={"ACTIVATION": activation, "IS_CLAMPED": activation == "clamped silu", "BLOCK": gate.BLOCK}
        | ({"ACTIVATION": "silu"} if activation == "clamped silu" else {}),
        num_warps=gate.NUM_WARPS,
        multiples_of_16=frozenset({"gate_distance", "up_distance", "ff"}),
    )


def _expert_product(float_type: str, tile: matmul.Tile) -> Variant:
    types = dict.fromkeys(("x", "bias", "out"), f"*{float_type}") | {"addresses": "*i64"}
    types |= dict.fromkeys(("members", "counts"), "*i32") | dict.fromkeys(("x_distance", "most", "N", "K"), "i32")
    sizes = {"ROWS": tile.rows, "CHUNKS": tile.chunks, "COLUMNS": tile.columns, "INNER": tile.inner}
    return Variant(
        kernel=experts.expert_product_kernel,
        name=f"{float_type} {tile.chunks} x {tile.rows} rows, {tile.columns} outputs",
        types=types,
        constants=sizes | {"PER_ROW": 8, "IS_WHOLE": True, "WIDEN": False},
        num_warps=tile.num_warps,
        sums_like="" if float_type == "fp32" else f"matmul {float_type}",
        num_stages=tile.num_stages,
        multiples_of_16=frozenset({"x_distance", "N", "K"}),
        fuses_multiply_add=True,
    )


def _recurrences(float_type: str) -> Iterator[Variant]:
    spans = dict.fromkeys(("first_rows", "counts", "reads", "writes"), "*i32") | dict.fromkeys(("distance", "T"), "i32")
    types = spans | dict.fromkeys(("x", "kept", "out"), f"*{float_type}") | dict.fromkeys(("taps", "bias"), "*fp32")
    for channels, num_kept, is_gated in ((1024, 2, True), (6144, 3, False)):
        sizes: dict[str, object] = {"C": channels, "N": num_kept, "IS_GATED": is_gated, "BLOCK": 256}
        yield Variant(recurrences.convolve_kernel, f"{float_type} C {channels}", types, sizes, num_warps=2)
    types = spans | dict.fromkeys(("convolved", "wide", "norm_weight", "out"), f"*{float_type}")
    types |= dict.fromkeys(("memory", "rates", "step_biases"), "*fp32")
    types |= dict.fromkeys(("scale", "unit_eps", "norm_eps"), "fp32")
    sizes = {"K": 16, "V": 32, "KD": 128, "VD": 128, "KEYS": 128, "VALUES": 128, "NORM": "rms"}
    yield Variant(recurrences.delta_kernel, f"{float_type} k 128, v 128", types, sizes, num_warps=16)


def _experts(float_type: str) -> Iterator[Variant]:
    types = {"logits": f"*{float_type}", "scales": "*fp32", "chosen": "*i32", "weights": "*fp32"}
    sizes = {"E": 128, "C": 8, "BLOCK": 128, "NORMALIZED": True}
    yield Variant(experts.choose_kernel, f"{float_type} E 128, C 8", types, sizes, num_warps=1)
    types = dict.fromkeys(("y", "shared", "gate", "out"), f"*{float_type}") | {"weights": "*fp32", "N": "i32"}
    yield Variant(experts.combine_kernel, f"{float_type} C 8", types, {"C": 8, "BLOCK": 1024}, num_warps=4)


def _attention(float_type: str, group: int, dim: int, block_size: int, what: str) -> Iterator[Variant]:
    """Yield the kernels of a layer's attention; kernels that write patterns only if `what` has patterns."""
    shape = attention_shapes.shape_of(FLOAT_TYPES[float_type], dim, has_bias="bias" in what)
    has = {word: word in what for word in ("causal", "window", "cap", "bias", "patterns")}
    types = _attention_types(float_type, has_bias=has["bias"], has_sinks="sinks" in what, has_patterns=has["patterns"])
    constants = dict(shape.sizes) | {f"HAS_{word.upper()}": is_there for word, is_there in has.items()}
    constants |= {"CAUSAL": has["causal"], "K": 8, "H": 8 * group, "G": group, "D": dim, "B": block_size}
    constants |= {"WIDEN": False, "BASE": paged_attention.PIECE}
    constants |= {"PER_LEVEL": attention_pieces.PER_LEVEL, "LEVELS": attention_pieces.LEVELS}
    keys = paged_attention.PATTERN_KEYS
    own: dict[Any, dict[str, int]] = {
        paged_attention.attend_single_kernel: {"CHUNKS": attention_shapes.num_chunks(group), "PATTERN_KEYS": keys},
        paged_attention.attend_tiles_kernel: {},
    }
    if has["patterns"]:
        own[paged_attention.write_patterns_kernel] = {"ROWS": attention_shapes.TILE_ROWS, "KEYS": keys}
    for kernel, more in own.items():
        attends = "KEYS" not in more
        yield Variant(
            kernel=kernel,
            name=f"{float_type} G {group}, D {dim}, B {block_size}, {what}",
            types={name: kind for name, kind in types.items() if name in kernel.arg_names},
            constants={name: value for name, value in (constants | more).items() if name in kernel.arg_names},
            num_warps=shape.num_warps if attends else 4,
            sums_like=f"attention {float_type} D {dim}, B {block_size}, bias {has['bias']}" if attends else "",
            num_stages=shape.num_stages,
            max_registers=attention_shapes.MAX_REGISTERS if attends else None,
            multiples_of_16=frozenset({"stride_q"} if attends else ()),
        )


def _attention_types(float_type: str, *, has_bias: bool, has_sinks: bool, has_patterns: bool) -> dict[str, str]:
    types = dict.fromkeys(("q", "keys", "values", "out"), f"*{float_type}")
    types |= dict.fromkeys(("part_z", "part_m", "part_l", "all_z", "all_m", "all_l"), "*fp32")
    types |= dict.fromkeys(("blocks", "table_starts", "lengths", "positions", "tiles", "arrivals"), "*i32")
    types |= dict.fromkeys(("slots", "row_slots", "pattern_starts", "pattern_strides"), "*i32")
    types |= dict.fromkeys(("window", "stride_q", "stride_bias", "reach", "num_pieces"), "i32")
    types |= dict.fromkeys(("scale", "softcap"), "fp32")
    # Without a bias or patterns their places are taken by integers that nothing reads.
    types |= {"sinks": "*fp32"} if has_sinks else {}
    return types | {"bias": "*fp32" if has_bias else "*i32", "patterns": "*fp32" if has_patterns else "*i32"}


def _matmul(float_type: str, tile: matmul.Tile, pieces: int, *, are_apart: bool, is_whole: bool) -> Variant:
    types = dict.fromkeys(("x", "w"), f"*{float_type}") | {"out": "*fp32" if are_apart else f"*{float_type}"}
    if not are_apart:
        types["bias"] = f"*{float_type}"
    numbers = ("x_distance", "R", "N", "K", "piece")
    of_inner = f"{'whole' if is_whole else 'uneven'} K, {pieces} pieces{' apart' if are_apart else ''}"
    return Variant(
        kernel=matmul.matmul_kernel,
        name=f"{float_type} {tile.chunks} x {tile.rows} rows, {tile.columns} outputs, {of_inner}",
        types=types | dict.fromkeys(numbers, "i32"),
        constants={"ROWS": tile.rows, "CHUNKS": tile.chunks, "COLUMNS": tile.columns, "INNER": tile.inner}
        | {"GROUP": matmul.GROUP, "IS_WHOLE": is_whole, "PIECES": pieces, "IS_PART": are_apart, "WIDEN": False},
        num_warps=tile.num_warps,
        # In float32 each tile has as many multiply-adds as it has numbers, which says nothing of their order.
        sums_like="" if float_type == "fp32" else f"matmul {float_type}",
        num_stages=tile.num_stages,
        multiples_of_16=frozenset(numbers) - {"R"},
        fuses_multiply_add=True,
        fuses_in_sums=False,
    )


def _grouped_matmul(
    float_type: str, name: str, bits: int, lowest: int, group: int, superblock: int, what: str
) -> Iterator[Variant]:
    """Yield the kernels of a format: its products by each tile, and in Q4_K by pieces of K."""
    scales = "*u8" if "exponents" in what else "*fp32" if "float32" in what else "*fp16"
    types = {"codes": "*u8", "scales": scales}
    kinds = {"high": "*u8", "mins": "*fp16", "scale_factors": "*i8", "min_factors": "*u8", "zeros": "*i8"}
    types |= {each: kind for each, kind in kinds.items() if each in what.split()}
    values = (0x57F2A901, 0x71C3B2D4, 0x1F2E3D4C, 0x5B6A7988) if "values" in what else None
    constants: dict[str, object] = {"FORM": (bits, lowest, values, group, superblock)}
    numbers = ("code_distance", "high_distance", "N", "K")
    yield Variant(
        kernel=grouped_matmul.unpack_kernel,
        name=f"{float_type} {name}",
        types=types | {"out": f"*{float_type}"} | dict.fromkeys((*numbers, "first", "R"), "i32"),
        constants=constants | {"COLUMNS": grouped_matmul.UNPACKED},
        num_warps=grouped_matmul.UNPACK_WARPS,
        multiples_of_16=frozenset(numbers),
        fuses_multiply_add=True,
    )
    of_tiles = ((tile, is_part) for tile in grouped_matmul.TILES for is_part in (False, True))
    for tile, is_part in (each for each in of_tiles if name == "Q4_K" or not each[1]):
        out = "*fp32" if is_part else f"*{float_type}"
        own = (*numbers, "x_distance", "piece", "all_outputs")
        yield Variant(
            kernel=grouped_matmul.grouped_matmul_kernel,
            name=f"{float_type} {name}, {tile.chunks} x {tile.rows} rows, {tile.columns} outputs{', part' * is_part}",
            types=types | {"x": f"*{float_type}", "out": out} | dict.fromkeys((*own, "start", "R"), "i32"),
            constants=constants
            | {"ROWS": tile.rows, "CHUNKS": tile.chunks, "COLUMNS": tile.columns, "GROUP": matmul.GROUP}
            | {"IS_WHOLE": True, "WIDEN": False},
            num_warps=tile.num_warps,
            sums_like=f"matmul {float_type}",
            num_stages=tile.num_stages,
            max_registers=grouped_matmul.MAX_REGISTERS,
            multiples_of_16=frozenset(own),
            fuses_multiply_add=True,
            fuses_in_sums=False,
        )


def _quantize_rows(float_type: str) -> Variant:
    numbers = ("distance", "K", "padded")
    return Variant(
        kernel=quantize_rows.quantize_rows_kernel,
        name=float_type,
        types={"x": f"*{float_type}", "values": "*u8", "scales": "*fp32"} | dict.fromkeys(numbers, "i32"),
        constants={"BLOCK": quantize_rows.BLOCK},
        num_warps=quantize_rows.NUM_WARPS,
        multiples_of_16=frozenset(numbers),
    )


def _row_max(float_type: str) -> Iterator[Variant]:
    found = {"x": f"*{float_type}", "found": "*i64", "distance": "i32"}
    yield Variant(
        kernel=row_max.row_max_kernel,
        name=float_type,
        types=found | {"V": "i32"},
        constants={"BLOCK": row_max.BLOCK},
        num_warps=row_max.NUM_WARPS,
    )
    yield Variant(
        kernel=row_max.join_row_max_kernel,
        name=f"{float_type} 64 blocks",
        types=found | {"out": "*i64", "num_blocks": "i32"},
        constants={"BLOCKS": 64},
        num_warps=1,
    )


def _draw(float_type: str) -> Iterator[Variant]:
    sizes = dict.fromkeys(("distance", "line", "V", "W"), "i32")
    rows = dict.fromkeys(("best", "valid", "out"), "*i64")
    scaled = {"x": f"*{float_type}", "lines": "*i64", "out": "*fp32"}
    drawn = {"probabilities": "*fp32", "lines": "*i64", "logits": f"*{float_type}"} | rows
    for kernel, types in ((draw_kernels.scale_kernel, scaled), (draw_kernels.draw_kernel, drawn)):
        yield Variant(
            kernel=kernel,
            name=float_type,
            types=types | sizes,
            constants={"BLOCK": draw_kernels.BLOCK},
            num_warps=draw_kernels.NUM_WARPS,
        )


def _join(float_type: str) -> Variant:
    return Variant(
        kernel=matmul.join_kernel,
        name=f"{float_type} 4 pieces",
        types={"parts": "*fp32", "bias": f"*{float_type}", "out": f"*{float_type}"} | dict.fromkeys(("R", "N"), "i32"),
        constants={"PIECES": 4, "BLOCK": matmul.JOINED},
        num_warps=matmul.JOIN_WARPS,
        multiples_of_16=frozenset({"N"}),
        fuses_multiply_add=True,
    )
