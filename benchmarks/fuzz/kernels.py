"""Draws shapes, numbers and threads for every kernel of the CPU.

Axes: T or R rows, d width, K inputs, N outputs, H heads, D head dimension, B keys to a block.
"""

import contextlib
import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from lightwell.model.kernels import library, rows
from lightwell.model.kernels.attention import AttentionItems, PatternOutput, VisibleKeys, attend, mix_rows, softmax_rows
from lightwell.model.kernels.checks import ACTIVATIONS, SUFFIXES
from lightwell.model.kernels.decoder import Change, DecoderRows, LayerCaches
from lightwell.model.kernels.delta import delta_factors, delta_rule
from lightwell.model.kernels.encoder import Encoder, EncoderLayer, attend_texts
from lightwell.model.kernels.flow import maximum_flow
from lightwell.model.kernels.group_quantized import GroupedWeight, why_not_grouped
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.products import DOT, WIDEN, BlockedWeight
from lightwell.model.kernels.program.steps import Multiply, Product
from lightwell.model.quantized import GroupedRows
from tests.model.kernels import attention_world, decoder_world
from tests.model.kernels.draw_grouped import VALUES, draw_grouped

_DTYPES = (torch.float32, torch.bfloat16)
_UNUSUAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 3e38)
_EPS = 1e-5


@dataclass
class Draw:
    """The choices of one case."""

    rng: random.Random
    fits: bool = True
    """True if all operands fit together; otherwise the kernels may refuse them with a ValueError."""

    def rows(self) -> int:
        """Draw a number of rows: none, few, or more than a thread computes at once."""
        return self.rng.choice([0, 1, 1, 2, 5, 7, 9, 16, 17, 33, 70, 130])

    def width(self) -> int:
        return self.rng.choice([1, 2, 3, 5, 15, 16, 17, 31, 40, 63, 64, 65, 128, 130, 200, self.rng.randint(1, 700)])

    def dtype(self) -> torch.dtype:
        return self.rng.choice(_DTYPES)

    def arithmetic(self) -> int:
        return self.rng.choice([WIDEN, DOT])

    def numbers(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw numbers, some of them infinite or NaN. The memory ends with them, and begins before them at times, so
        that their address is a multiple of the dtype's size only. Once in a while the shape or the dtype is wrong.
        """
        if self.fits and shape and self.rng.random() < 0.02:
            self.fits, axis = False, self.rng.randrange(len(shape))
            shape = (*shape[:axis], max(0, shape[axis] + self.rng.choice([-1, 1, 64, -64])), *shape[axis + 1 :])
            dtype = self.rng.choice([dtype, dtype, torch.float16])
        skipped = self.rng.choice([0, 0, 1, 3])
        room = torch.randn(skipped + math.prod(shape)).mul_(3)
        if self.rng.random() < 0.2 and len(room):
            room[torch.randint(len(room), (len(_UNUSUAL),))] = torch.tensor(_UNUSUAL)
        return room.to(dtype)[skipped:].view(shape)

    def maybe(self, *shape: int, dtype: torch.dtype) -> Tensor | None:
        return self.numbers(*shape, dtype=dtype) if self.rng.random() < 0.5 else None

    def ids(self, count: int, limit: int) -> Tensor:
        """Draw indices below a limit; once in a while one is outside."""
        ids = torch.randint(max(limit, 1), (count,))
        if count and (limit < 1 or self.rng.random() < 0.05):
            self.fits = False
            ids[self.rng.randrange(count)] = self.rng.choice([-1, limit, 2**31, 2**62, -(2**63)])
        return ids


def _small_steps(draw: Draw) -> None:
    """Norms, gates, soft caps, angles, cut-offs and the largest numbers of rows."""
    count, width, dtype = draw.rows(), draw.width(), draw.dtype()
    x = draw.numbers(count, width, dtype=dtype)
    match draw.rng.randrange(7):
        case 0:
            rows.rms_norm(x, draw.numbers(width, dtype=draw.rng.choice([dtype, torch.float32])), _EPS)
        case 1:
            rows.layer_norm(x, draw.numbers(width, dtype=dtype), draw.maybe(width, dtype=dtype), _EPS)
        case 2:
            rows.activate_times(draw.numbers(count, 2 * width, dtype=dtype), draw.rng.choice([*ACTIVATIONS]))
        case 3:
            rows.soft_cap(draw.numbers(count, width), draw.rng.choice([0.5, 30.0]))
        case 4:
            rows.cos_sin(torch.randn(count, width) * draw.rng.choice([1, 1e4, 1e8]))
        case 5:
            rows.drop_small(x, draw.rng.choice([-1.0, 0.0, 1.6]))
        case _:
            rows.argmax(x)


def _delta(draw: Draw) -> None:
    """The factors of the delta rule, and the rule for spans of all lengths."""
    key_heads, dtype, count = draw.rng.randint(1, 3), draw.dtype(), draw.rows()
    heads, key_dim, value_dim = key_heads * draw.rng.randint(1, 3), draw.width(), draw.width()
    strengths, steps = (draw.numbers(count, heads, dtype=dtype) for _ in range(2))
    beta, decay = delta_factors(strengths, steps, draw.numbers(heads), draw.numbers(heads))
    q, k = (draw.numbers(count, key_heads, key_dim, dtype=dtype) for _ in range(2))
    bounds = sorted({0, count, *draw.rng.choices(range(count + 1), k=3)})
    spans = [(first, end, 2 * n, 2 * n + 1, draw.rng.random() < 0.5) for n, (first, end) in enumerate(pairwise(bounds))]
    memory = draw.numbers(2 * max(1, len(spans)), heads, key_dim, value_dim)
    delta_rule(q, k, draw.numbers(count, heads, value_dim, dtype=dtype), beta, decay, memory, spans)


def _rotate_and_store(draw: Draw) -> None:
    key_heads, dim, dtype = draw.rng.randint(1, 3), draw.rng.choice([2, 8, 20, 33, 64, 80]), draw.dtype()
    heads, count, size = key_heads * draw.rng.randint(0, 3), draw.rows(), draw.rng.choice([1, 3, 8, 16, 32])
    blocks = draw.rng.randint(1, 5)
    rotated = draw.rng.choice([0, dim // 2 * 2, dim // 4 * 2])
    tables = (draw.numbers(count, rotated), draw.numbers(count, rotated)) if draw.rng.random() < 0.8 else None
    qkv = draw.numbers(count, heads + 2 * key_heads, dim, dtype=dtype)
    keys = draw.numbers(blocks, key_heads, dim, size, dtype=dtype)
    values = draw.numbers(blocks, key_heads, size, dim, dtype=dtype)
    rows.rotate_and_store(qkv, tables, draw.ids(count, blocks * size), keys, values)


def _embed(draw: Draw) -> None:
    count, width, dtype = draw.rows(), draw.width(), draw.dtype()
    vocab, num_types, context = draw.width(), draw.rng.randint(1, 3), draw.width()
    types = draw.ids(count, num_types) if draw.rng.random() < 0.5 else None
    token_types, positions = draw.maybe(num_types, width, dtype=dtype), draw.maybe(context, width, dtype=dtype)
    weight, bias = draw.numbers(width, dtype=dtype), draw.maybe(width, dtype=dtype)
    tokens = draw.numbers(vocab, width, dtype=dtype)
    rows.embed(
        draw.ids(count, vocab), types, draw.ids(count, context), tokens, token_types, positions, weight, bias, _EPS
    )


def _flow(draw: Draw) -> None:
    layers, n = draw.rng.randint(1, 6), draw.rng.randint(1, 9)
    rng = np.random.default_rng(draw.rng.randrange(2**32))
    capacities = rng.integers(0, draw.rng.choice([1, 5, 2**31 - 1]), (layers, n, n), np.int32, endpoint=True)
    capacities[rng.random(capacities.shape) < draw.rng.random()] = 0
    maximum_flow(capacities, draw.rng.randrange(n), draw.rng.randrange(n))


def _product(draw: Draw) -> None:
    """Weights as they are: products, searches, rows of them and the weight itself."""
    inputs, outputs, rng = draw.width(), draw.rng.choice([draw.width(), 0, 64, 65]), draw.rng
    of_rows = draw.dtype()
    dtype = rng.choice([of_rows, torch.bfloat16])
    stored = draw.numbers(outputs, rng.choice([inputs, inputs, inputs, 0]), dtype=dtype)
    weight = BlockedWeight(stored, draw.arithmetic(), of_rows)
    _multiply(draw, weight, of_rows)
    _rows_and_all(draw, weight)
    if not draw.fits:
        return
    x, out = draw.numbers(draw.rows(), stored.shape[1], dtype=of_rows), SUFFIXES[of_rows]
    if not draw.fits:
        return
    bias, found = torch.randn(outputs).to(of_rows), torch.empty(len(x), outputs, dtype=of_rows)
    name = f"product_plain_{out}" if of_rows == dtype else "product_plain_f32_bf16"
    addresses = x.data_ptr(), stored.data_ptr(), bias.data_ptr(), found.data_ptr()
    sizes = len(x), stored.shape[1], outputs, rng.randrange(len(ACTIVATIONS))
    library.kernels().call(name, "ppppllll", *addresses, *sizes)


def _int8(draw: Draw) -> None:
    inputs, outputs, of_rows = draw.width(), draw.rng.choice([draw.width(), 0]), draw.dtype()
    values, scales = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8), draw.numbers(outputs)
    weight = Int8BlockedWeight(values, scales, of_rows, int8_activations=draw.rng.random() < 0.5)
    _multiply(draw, weight, of_rows)


def _grouped(draw: Draw) -> None:
    rng, of_rows = draw.rng, draw.dtype()
    inputs = rng.choice([rng.randint(1, 700), 16 * rng.randint(1, 40), 32 * rng.randint(1, 20), 256])
    outputs = [64 * rng.randint(1, 2) for _ in range(rng.choice([0, 0, 1, 2]))] + [rng.randint(1, 200)]
    draw.fits = inputs % 16 == 0 and rng.random() < 0.8
    parts = [(draw_grouped if draw.fits else _draw_any_rows)(each, inputs, rng) for each in outputs]
    draw.fits = why_not_grouped(parts) is None
    weight = GroupedWeight(parts, of_rows, draw.arithmetic(), int8_activations=rng.random() < 0.3)
    weight.packed = weight.packed.clone()  # without room after it
    _multiply(draw, weight, of_rows)
    _rows_and_all(draw, weight)


def _draw_any_rows(outputs: int, inputs: int, rng: random.Random) -> GroupedRows:
    """Draw rows of parts with shapes that may not match. Raises ValueError if they do not."""

    def groups() -> int:
        fitting = [size for size in (16, 32, 64, 128, 256) if inputs % size == 0]
        size = rng.choice(fitting) if fitting and rng.random() < 0.8 else rng.randint(1, inputs)
        return inputs // size + (rng.choice([-1, 1]) if rng.random() < 0.1 else 0)

    count, is_short = groups(), rng.random() < 0.5
    factors = rng.choice([None, count, count * rng.choice([1, 2, 8]), groups()])
    dtype = rng.choice([torch.float16, torch.bfloat16])
    has_min = rng.random() < 0.5
    has_min_factors = (has_min and factors is not None) != (rng.random() < 0.1)
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    return GroupedRows(
        codes if is_short else codes.to(torch.int8),
        torch.randn(outputs, count).to(dtype),
        torch.randn(outputs, count).to(dtype) if has_min else None,
        None if factors is None else torch.randint(-9, 9, (outputs, factors), dtype=torch.int8),
        torch.randint(9, (outputs, factors or count), dtype=torch.uint8) if has_min_factors else None,
        rng.choice(VALUES) if is_short else None,
    )


def _multiply(draw: Draw, weight: BlockedWeight | Int8BlockedWeight | GroupedWeight, of_rows: torch.dtype) -> None:
    x = draw.numbers(draw.rows(), weight.num_inputs, dtype=of_rows)
    weight.multiply(x, draw.maybe(weight.num_outputs, dtype=of_rows), draw.rng.choice([*ACTIVATIONS]))
    if weight.num_outputs:
        weight.find_largest(x)


def _rows_and_all(draw: Draw, weight: BlockedWeight | GroupedWeight) -> None:
    weight.to_dense()
    weight.rows(draw.ids(draw.rng.randint(0, 9) if weight.num_outputs else 0, weight.num_outputs))


def _attention(draw: Draw) -> None:
    """Blocks of the cache, windows, sinks, soft caps and biases, also for rows that see nothing and for no rows."""
    random.seed(draw.rng.randrange(2**63))
    world = attention_world.World(draw.dtype(), num_sequences=draw.rng.randint(2, 4))
    world.everything()
    output, span = PatternOutput(world.num_sequences, world.num_heads), draw.rng.randrange(world.num_sequences)
    own, (chosen, heads) = world.rows_of(span), world.some_rows_and_heads(span)
    room = torch.zeros(len(heads), len(own), world.lengths[span], dtype=draw.rng.choice([torch.float32, torch.float16]))
    output.add(span, own[0], heads, room)
    world.attend(world.items(draw.rng.choice([1, 3, 8])), output)
    mix_rows(world.rows(chosen, heads, "pattern")[:, :0], [0] * len(heads), world.values, world.seen, span)
    softmax_rows(draw.numbers(draw.rng.randint(1, 4), draw.rows(), draw.rows()))
    draw.fits = True
    empty, nothing = np.zeros(0, np.int64), torch.empty(0, world.num_heads, world.dim, dtype=world.dtype)
    seen = VisibleKeys(world.tables, empty, empty, empty, world.block_size)
    items = AttentionItems(np.zeros((0, 5), np.int32))
    attend(nothing.float(), world.keys, world.values, seen, items, scale=1.0, out=nothing)
    if draw.rng.random() < 0.2:
        draw.fits, name = False, draw.rng.choice(["q", "keys", "values"])
        whole = getattr(world, name)
        axis = draw.rng.randrange(whole.ndim)
        setattr(world, name, whole.narrow(axis, 0, draw.rng.randrange(whole.shape[axis])).contiguous())
        draw.rng.choice([world.everything, world.attend])()


def _decoder(draw: Draw) -> None:
    """Layers of weights in every form, with adapters, in one call and in several, and for no rows."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its seed
        world = decoder_world.World(draw.rng.choice(get_args(decoder_world.Kind)), seed=draw.rng.randrange(2**32))
    cut = draw.rng.randint(0, world.num_layers)
    world.run((cut,))
    decoder, (first, end) = world.decoder(), sorted(draw.rng.choices(range(world.num_rows + 1), k=2))

    def change(product: Product) -> Change:
        rank = draw.rng.choice([1, 3, 8, 17])
        down, up = (rank, product.weight.num_inputs), (product.weight.num_outputs, rank)
        return Change(*(Product(BlockedWeight(torch.randn(size).to(world.dtype))) for size in (down, up)))

    products = [step for step in world.steps if isinstance(step, Multiply)]
    changes = decoder.changes(
        [change(each.product) if each.activation is None and draw.rng.random() < 0.7 else None for each in products]
    )
    caches, adapted = LayerCaches(world.copied_caches()), [(slice(first, end), changes)]
    inputs = {"of_tokens": world.of_tokens, "others": world.others.clone()}
    decoder.run(world.x.clone(), world.rows, caches, first=world.first_steps[cut], adapted=adapted, **inputs)
    empty = np.zeros(0, np.int64)
    ranges = [VisibleKeys(world.tables, empty, empty, empty, world.size) for _ in world.windows]
    items = AttentionItems(np.zeros((0, 5), np.int32))
    cross = ranges[0] if world.has_cross else None
    spans = [(0, 0, 0, 0, True)]
    none = DecoderRows(ranges, {world.num_key_heads: items}, empty, empty.astype(np.bool_), None, cross, spans)
    inputs = {"of_tokens": world.of_tokens[:0], "others": world.others[:, :0].contiguous()}
    decoder.run(world.x[:0], none, caches, **inputs)


def _encoder(draw: Draw) -> None:
    """Texts of every length between rows of no text, through layers and through attention only."""
    heads, dim, ff, dtype = draw.rng.randint(1, 4), draw.rng.choice([4, 7, 20, 32, 64]), draw.width(), draw.dtype()
    lengths = [draw.rng.choice([1, 2, 15, 16, 17, 31, 33, 64, 65]) for _ in range(draw.rng.randint(0, 5))]
    before, after, d, arithmetic = draw.rng.choice([0, 3]), draw.rng.choice([0, 2]), heads * dim, draw.arithmetic()
    first_rows = torch.tensor([before, *lengths]).cumsum(0)
    num_rows = before + sum(lengths) + after
    qkv, stream = draw.numbers(num_rows, 3, heads, dim, dtype=dtype), draw.numbers(num_rows, d, dtype=dtype)
    attend_texts(qkv, first_rows, None, arithmetic)

    def weight(outputs: int, inputs: int) -> tuple[BlockedWeight, Tensor]:
        return BlockedWeight(torch.randn(outputs, inputs).to(dtype)), draw.numbers(outputs, dtype=dtype)

    def norm() -> tuple[Tensor, Tensor]:
        return draw.numbers(d, dtype=dtype), draw.numbers(d, dtype=dtype)

    layers = [
        EncoderLayer(*weight(3 * d, d), *weight(d, d), *norm(), *weight(ff, d), *weight(d, ff), *norm())
        for _ in range(draw.rng.randint(1, 2))
    ]
    encoder = Encoder(layers, num_heads=heads, scale=dim**-0.5, eps=_EPS, arithmetic=arithmetic)
    encoder(stream, first_rows, first_alone=draw.rng.random() < 0.5)


CASES: dict[str, Callable[[Draw], None]] = {
    "attention": _attention,
    "decoder": _decoder,
    "delta": _delta,
    "embedding": _embed,
    "encoder": _encoder,
    "flow": _flow,
    "grouped": _grouped,
    "int8": _int8,
    "product": _product,
    "rotation": _rotate_and_store,
    "small steps": _small_steps,
}
"""The kinds of cases by name."""


def run_kernel(name: str, rng: random.Random) -> str:
    """Draw a case of `CASES` and compute it. Return "computes", or "refused" for operands that do not fit."""
    # So many threads stay, and each piece of work wakes them all.
    library.set_num_threads(256 if rng.random() < 1e-4 else rng.choice([1, 2, 3, 3, 8]))
    draw = Draw(rng)
    try:
        CASES[name](draw)
    except ValueError:
        if draw.fits:
            raise
        return "refused"
    return "computes"
