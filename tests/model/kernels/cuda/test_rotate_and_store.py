"""The card's rotation and writing to the cache: against the layers, the same bits in every batch."""

import math
import random
from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.config import RopeConfig
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda.rotate_and_store import rotate_and_store, store
from lightwell.model.kernels.program.steps import NormWeights
from lightwell.model.layers.norm import RmsNorm
from lightwell.model.layers.rope import Rope
from tests.model.kernels.cuda.card import DEVICE, assert_close, each_dtype, fresh_draw, normal

TORCH, LENGTH, THETA = KernelConfig("torch"), 60, 100.0
SHAPES = ((4, 2, 64, 64), (3, 3, 80, 32), (9, 1, 40, 40), (0, 2, 32, 16), (2, 2, 8, 2), (5, 5, 128, 0))
"""H, K, D and R."""


@dataclass(frozen=True, eq=False)
class World:
    """A product's output, its rows' places, and an empty cache."""

    qkv: torch.Tensor
    tables: tuple[torch.Tensor, torch.Tensor] | None
    positions: torch.Tensor
    slots: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    q_norm: NormWeights | None = None
    k_norm: NormWeights | None = None

    def run(self) -> torch.Tensor:
        """Return the queries, and write to the cache."""
        return rotate_and_store(
            self.qkv, self.tables, self.positions, self.slots, self.keys, self.values,
            q_norm=self.q_norm, k_norm=self.k_norm,
        )  # fmt: skip

    def rows(self, rows: slice) -> "World":
        """Return some of the rows, with a cache of their own."""
        qkv, positions, slots = self.qkv[rows], self.positions[rows], self.slots[rows]
        keys, values = (torch.full_like(cache, math.nan) for cache in (self.keys, self.values))
        return replace(self, qkv=qkv, positions=positions, slots=slots, keys=keys, values=values)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values as they come from the product."""
        key_heads = self.keys.shape[1]
        queries, keys, values = torch.split(self.qkv, [self.qkv.shape[1] - 2 * key_heads, key_heads, key_heads], 1)
        return queries, keys, values


def draw(
    rng: random.Random, shape: tuple[int, int, int, int], dtype: torch.dtype, axis: str = "none", num_rows: int = 5
) -> World:
    """Draw rows, one of them not stored, and norms over each head or over all heads of a row."""
    num_heads, key_heads, dim, rotated = shape
    size = rng.choice([1, 4, 16])
    num_blocks = 2 + -(-num_rows // size)
    slots = torch.tensor(rng.sample(range(num_blocks * size), num_rows), dtype=torch.int32)
    slots[rng.randrange(num_rows)] = -1
    keys = torch.full((num_blocks, key_heads, size, dim), math.nan, dtype=dtype, device=DEVICE)
    tables = None
    if rotated:
        config = RopeConfig(theta=THETA, dims=rotated, max_position=LENGTH, original_max_position=LENGTH)
        rope = Rope(config, dim, LENGTH, dtype, DEVICE, TORCH)
        tables = rope.cos, rope.sin
    q_norm = k_norm = None
    if axis != "none":
        rounds_once = rng.random() < 0.4
        q_norm, k_norm = (
            NormWeights(
                1 + normal(dim if axis == "head" else heads * dim, dtype=torch.float32 if rounds_once else dtype), 1e-5
            )
            for heads in (max(1, num_heads), key_heads)
        )
    return World(
        qkv=normal(num_rows, num_heads + 2 * key_heads, dim, dtype=dtype),
        tables=tables,
        positions=torch.randint(0, LENGTH, (num_rows,), dtype=torch.int32, device=DEVICE),
        slots=slots.to(DEVICE),
        keys=keys,
        values=keys.clone(),
        q_norm=q_norm if num_heads else None,
        k_norm=k_norm,
    )


def normed(norm: NormWeights | None, x: torch.Tensor) -> torch.Tensor:
    """Return heads [T, heads, D] normed by the layer, in rows as long as the norm's weight."""
    if norm is None:
        return x
    layer = RmsNorm(norm.weight, norm.eps, kernels=TORCH)
    layer.rounds_once = norm.weight.dtype == torch.float32
    return layer(x.reshape(-1, len(norm.weight))).view(x.shape)


def rotated(world: World, x: torch.Tensor) -> torch.Tensor:
    """Return heads [T, heads, D] rotated by the layer."""
    if world.tables is None:
        return x
    cos, sin = (table[world.positions.long()].unsqueeze(1) for table in world.tables)
    return Rope.rotate(x, cos, sin)


def written(world: World, x: torch.Tensor) -> torch.Tensor:
    """Return a cache into which heads [T, K, D] are written one by one."""
    cache = torch.full_like(world.keys, math.nan)
    for row, slot in enumerate(world.slots.tolist()):
        if slot >= 0:
            cache[slot // cache.shape[2], :, slot % cache.shape[2]] = x[row]
    return cache


@each_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_queries_keys_and_values_are_the_layers(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    world = draw(fresh_draw(), shape, dtype)
    q = world.run()
    queries, keys, values = world.parts()
    assert q.dtype == dtype
    assert torch.equal(q, rotated(world, queries))
    assert_same(world.keys, written(world, rotated(world, keys)))
    assert_same(world.values, written(world, values))


@each_dtype
def test_gates_are_skipped_and_values_are_normed(dtype: torch.dtype) -> None:
    world = draw(fresh_draw(), (3, 2, 40, 16), dtype, "head")
    queries, keys, values = world.run(), world.keys.clone(), torch.full_like(world.values, math.nan)
    wide = torch.cat([world.qkv[:, :3], normal(5, 3, 40, dtype=dtype), world.qkv[:, 3:]], 1)
    v_norm = NormWeights(1 + normal(40, dtype=dtype), 1e-5)
    found = rotate_and_store(
        wide, world.tables, world.positions, world.slots, world.keys.fill_(math.nan), values,
        q_norm=world.q_norm, k_norm=world.k_norm, v_norm=v_norm, num_gates=3,
    )  # fmt: skip
    assert torch.equal(found, queries)
    assert_same(world.keys, keys)
    expected = written(world, normed(v_norm, world.parts()[2]))
    assert_close(values, expected, roundings=2.1 if dtype != torch.float32 else 10, scale=4)


@each_dtype
@pytest.mark.parametrize("axis", ["head", "all"])
def test_norms_of_queries_and_keys_are_the_layers(axis: str, dtype: torch.dtype) -> None:
    rng = fresh_draw()
    for shape in rng.sample(SHAPES, 2):
        world = draw(rng, shape, dtype, axis, num_rows=4)
        q = world.run()
        queries, keys, values = world.parts()
        # A sum of squares in another order causes a few roundings; the rotation adds each of them to others.
        roundings = 2.1 if dtype != torch.float32 else 10
        bare = replace(world, tables=None).rows(slice(None))
        bare_q = bare.run()
        assert_close(bare_q, normed(world.q_norm, queries), roundings, scale=4)
        assert_close(bare.keys, written(world, normed(world.k_norm, keys)), roundings, scale=4)
        # The rotation of the same numbers is the layer's, bit by bit.
        assert torch.equal(q, rotated(world, bare_q))
        bare_keys = torch.zeros_like(keys)
        for row, slot in enumerate(world.slots.tolist()):
            if slot >= 0:
                bare_keys[row] = bare.keys[slot // bare.keys.shape[2], :, slot % bare.keys.shape[2]]
        assert_same(world.keys, written(world, rotated(world, bare_keys)))
        assert_same(world.values, written(world, values))


@pytest.mark.parametrize("axis", ["none", "head", "all"])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(axis: str) -> None:
    rng = fresh_draw()
    for dtype in (torch.float32, torch.bfloat16):
        world = draw(rng, rng.choice([shape for shape in SHAPES if shape[0]]), dtype, axis, num_rows=4)
        q = world.run()
        size = world.keys.shape[2]
        for row, slot in enumerate(world.slots.tolist()):
            alone = world.rows(slice(row, row + 1))
            assert torch.equal(alone.run()[0], q[row])
            if slot >= 0:
                block, place = slot // size, slot % size
                assert torch.equal(alone.keys[block, :, place], world.keys[block, :, place])
                assert torch.equal(alone.values[block, :, place], world.values[block, :, place])


@each_dtype
def test_keys_and_values_of_an_encoder_are_written_as_they_are(dtype: torch.dtype) -> None:
    world = draw(fresh_draw(), (0, 3, 48, 0), dtype)
    store(world.qkv, world.slots, world.keys, world.values)
    _, keys, values = world.parts()
    assert_same(world.keys, written(world, keys))
    assert_same(world.values, written(world, values))


def test_rows_that_lie_anywhere_are_read() -> None:
    world = draw(fresh_draw(), (2, 2, 16, 16), torch.bfloat16)
    shifted = torch.empty(world.qkv.numel() + 1, dtype=torch.bfloat16, device=DEVICE)[1:].view_as(world.qkv)
    shifted.copy_(world.qkv)
    for qkv in (shifted, world.qkv.transpose(1, 2).contiguous().transpose(1, 2)):
        assert torch.equal(replace(world, qkv=qkv).run(), rotated(world, world.parts()[0]))


def test_a_cache_may_hold_more_than_2_to_the_31_numbers() -> None:
    if DEVICE.type == "cpu":
        pytest.skip("Triton's interpreter copies the whole cache")
    size, dim = 16, 128
    num_blocks = 2**31 // (size * dim) + 2
    keys, values = (torch.empty(num_blocks, 1, size, dim, dtype=torch.float16, device=DEVICE) for _ in range(2))
    kv = normal(2, 2, dim, dtype=torch.float16)
    slots = torch.tensor([num_blocks * size - 1, 3], dtype=torch.int32, device=DEVICE)
    store(kv, slots, keys, values)
    assert torch.equal(torch.stack((keys[-1, 0, -1], values[-1, 0, -1])), kv[0])
    assert torch.equal(torch.stack((keys[0, 0, 3], values[0, 0, 3])), kv[1])


def test_what_does_not_fit_is_refused() -> None:
    world = draw(fresh_draw(), (2, 2, 16, 16), torch.float32)
    assert world.rows(slice(0, 0)).run().shape == (0, 2, 16)
    assert world.tables is not None
    long = torch.zeros(LENGTH, 18, device=DEVICE)
    layer_norm = NormWeights(torch.ones(16, device=DEVICE), 1e-5, is_centred=True)
    rms_norm = NormWeights(torch.ones(48, device=DEVICE), 1e-5)
    for wrong, message in (
        (replace(world, qkv=world.qkv[:, :3]), "at most 1 are accepted"),
        (replace(world, qkv=world.qkv[..., :8]), "keys is"),
        (replace(world, keys=world.keys.half()), "keys is float16"),
        (replace(world, values=world.values.transpose(0, 1).contiguous().transpose(0, 1)), "values has strides"),
        (replace(world, slots=world.slots.long()), "slots is int64"),
        (replace(world, positions=world.positions[1:]), "positions is"),
        (replace(world, tables=(world.tables[0], world.tables[1][1:])), "sin is"),
        (replace(world, tables=(long, long)), "rotate 18 dimensions"),
        (replace(world, q_norm=layer_norm), "q_norm is a layernorm"),
        (replace(world, k_norm=rms_norm), r"k_norm\.weight is"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong.run()
    with pytest.raises(ValueError, match="4 are accepted"):
        store(world.qkv, world.slots, world.keys, world.values)


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that two caches are equal, also in places without writes."""
    assert torch.equal(ours.isnan(), expected.isnan())
    assert torch.equal(ours.nan_to_num(), expected.nan_to_num())
