"""A decoder's blocks in one call: their bits do not depend on threads and calls.

tests/model/network/test_fused_decoder.py compares the bits with those of the kernels one by one.

Every draw is fresh; its seed is shown when it fails. The cache holds NaN wherever nothing was put, so that a read from
outside the visible keys shows.

Axes: R rows, d width, H query heads, K key heads, D head dimension, B keys to a block.
"""

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lightwell.model.kernels import library
from lightwell.model.kernels.attention import AttentionItems
from lightwell.model.kernels.decoder import Decoder, DecoderRows, LayerCaches, Taken
from lightwell.model.kernels.program.steps import AddRows, Heads, Register, Step
from tests.model.kernels.decoder_world import Kind, World
from tests.model.kernels.everywhere import assert_same_bits
from tests.model.kernels.levels import at_level

KINDS = pytest.mark.parametrize(
    "kind", ["float32", "narrow", "bfloat16", "dot", "int8 float32", "int8 bfloat16", "mixed"]
)
"""How weights are multiplied; narrow: bfloat16 weights of a float32 network; mixed: each weight in its own way."""


@KINDS
@pytest.mark.parametrize("attempt", range(2))
def test_layers_have_the_same_bits_in_several_calls_and_any_number_of_threads(attempt: int, kind: Kind) -> None:
    world = World(kind)
    cuts = tuple(sorted(world.rng.choices(range(world.num_layers + 1), k=2)))
    for level in library.levels():
        with at_level(level):
            library.set_num_threads(1)
            expected = world.run()
            for count in (2, 3):
                library.set_num_threads(count)
                assert_same_bits(world.run(cuts), expected)


@KINDS
def test_one_call_gives_the_same_bits_where_the_threads_are_busy_and_in_many_threads(kind: Kind) -> None:
    worlds, found = [World(kind) for _ in range(3)], []
    expected = [world.run() for world in worlds]
    library.set_num_threads(5)

    def run(world: World, wanted: tuple[Tensor, ...]) -> None:
        for _ in range(20):
            assert_same_bits(world.run(), wanted)
        found.append(world)

    tasks = [threading.Thread(target=run, args=each) for each in zip(worlds, expected, strict=True)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert len(found) == len(worlds)


def test_nothing_else_of_the_cache_is_written() -> None:
    world = World("float32", is_plain=True)
    *_, keys, values = world.run()
    written = torch.zeros(world.num_blocks, world.size, dtype=torch.bool)
    written.view(-1)[world.slots] = True
    before_keys, before_values = world.caches[-1]
    assert keys.transpose(2, 3)[written[:, None].expand(-1, world.num_key_heads, -1)].isfinite().all()
    untouched = ~written[:, None].expand(-1, world.num_key_heads, -1)
    for before, after in ((before_keys.transpose(2, 3), keys.transpose(2, 3)), (before_values, values)):
        assert_same_bits((after[untouched],), (before[untouched],))


def test_what_does_not_fit_is_refused_by_name() -> None:
    world = World("float32", is_plain=True)
    caches = LayerCaches(world.copied_caches())

    def make(*steps: Step, **changed: object) -> Decoder:
        heads = [Heads(world.num_heads, world.num_key_heads, world.dim)] * len(world.windows)
        return Decoder(steps, **{"dtype": world.dtype, "width": world.width, "heads": heads, **changed})

    with pytest.raises(ValueError, match="steps is empty"):
        make()
    with pytest.raises(ValueError, match=r"dtype is torch\.float16"):
        make(*world.steps, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"EnterHeads takes \d+ numbers of WIDE; a row has \d+ there"):
        make(*world.steps, heads=[Heads(world.num_heads, world.num_key_heads, world.dim + 4)] * 3)
    with pytest.raises(ValueError, match=r"AddRows takes \d+ numbers of NORMED; a row has none there"):
        make(AddRows())
    with pytest.raises(ValueError, match="x is"):
        world.decoder().run(world.x[:, 1:].contiguous(), world.rows, caches)
    with pytest.raises(ValueError, match="caches are of"):
        world.decoder().run(world.x.clone(), world.rows, LayerCaches(world.copied_caches() * 2))
    with pytest.raises(ValueError, match="steps from 1 to 0"):
        world.decoder().run(world.x.clone(), world.rows, caches, first=1, end=0)
    with pytest.raises(ValueError, match="queries of layer 0"):
        world.decoder().run(world.x.clone(), world.rows, caches, queries={0: torch.zeros(1)})
    taken = Taken(0, Register.STREAM, 1, torch.tensor([0]), torch.zeros(1, world.width))
    with pytest.raises(ValueError, match=r"numbers of STREAM before step 0 are columns 1 to \d+; a row has \d+"):
        world.decoder().run(world.x.clone(), world.rows, caches, taken=[taken])
    taken = replace(taken, first=0, rows=torch.tensor([world.num_rows]))
    with pytest.raises(ValueError, match=r"numbers of STREAM before step 0 are of rows"):
        world.decoder().run(world.x.clone(), world.rows, caches, taken=[taken])
    fewer = AttentionItems(world.items.array[:-1].copy())
    with pytest.raises(ValueError, match="items have"):
        DecoderRows(world.key_ranges, {world.num_key_heads: fewer}, world.slots, world.rows.alone)
    with pytest.raises(ValueError, match="slots contains -1"):
        DecoderRows(world.key_ranges, world.rows.items, world.slots * 0 - 1, world.rows.alone)
    few = [(keys[:1].clone(), values[:1].clone()) for keys, values in world.caches]
    if world.tables.max() > 0:
        with pytest.raises(ValueError, match="caches have 1 blocks"):
            world.decoder().run(world.x.clone(), world.rows, LayerCaches(few))


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_counts_the_steps_of_every_layer_as_progress(count: int) -> None:
    world = World("float32")
    library.set_num_threads(count)
    done = library.progress()
    world.run()
    assert library.progress() - done >= 8 * world.num_layers
