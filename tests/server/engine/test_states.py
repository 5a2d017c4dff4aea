"""Networks with recurrent layers, which keep a state of each sequence: owners of the states, their memory, and the
requests that such networks reject.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.shares import shares_of
from lightwell.server.config.memory_estimate import as_table, sizes
from lightwell.server.config.settings import Settings
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.memory.kv_cache_size import num_cache_blocks
from lightwell.server.engine.messages.request import AttentionCapture, AttentionTask, EngineRequest
from tests import tiny
from tests.server.engine.driving import CPU, Load, alone, build, generate, request

NAMES = ("lfm2", "qwen3_5")


def words(length: int) -> list[int]:
    return [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(length)]


def writers(count: int, prompt: int, tokens: int) -> list[EngineRequest]:
    begin = words(prompt - 1)
    return [request(uid, [*begin, *words(1)], generate(tokens, ignore_eos=True, logprobs=1)) for uid in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_states_go_from_sequence_to_sequence_and_nothing_of_the_last_one_stays(model_of: Load, name: str) -> None:
    """Run more requests than there are states, and abort most of them at any time: freed states are reused at once."""
    model = model_of(name)
    staying = writers(6, 13, 9)
    expected = alone(model, staying)
    engine = build(model, max_num_seqs=2, max_num_batched_tokens=7)
    found: dict[int, list[int]] = {}
    left = [structs.replace(each, uid=each.uid + 100) for each in writers(9, 20, 40)]
    for each in random.sample([*staying, *left], len(staying) + len(left)):
        engine.add_request(each)
    steps = 0
    while engine.has_work:
        for output in engine.step().outputs:
            found.setdefault(output.uid, []).extend([] if output.token_id is None else [output.token_id])
        engine.check_integrity()
        steps += 1
        if steps % 3 == 0 and left:
            engine.abort(left.pop(random.randrange(len(left))).uid)
    assert {uid: found[uid] for uid in expected} == {uid: answer.tokens for uid, answer in expected.items()}
    assert engine.stats().prefix_cache_queries_total == 0
    assert not engine.info.reuses_prefixes


@pytest.mark.parametrize("name", NAMES)
def test_the_attention_of_a_layer_that_has_none_is_refused(model_of: Load, name: str) -> None:
    model = model_of(name)
    without = next(layer for layer in range(model.config.num_layers) if not model.config.has_attention(layer))
    engine = build(model)
    with pytest.raises(ValueError, match=f"layer {without} has no attention"):
        engine.add_request(request(1, words(5), AttentionTask(capture=AttentionCapture(pairs=((without, 0),)))))
    engine.check_integrity()


def states_of(config: ModelConfig, num_sequences: int) -> int:
    """Return the bytes of all states, without the reserved state 0."""
    cache = KVCache(config, 3, 8, torch.float32, CPU, num_sequences=num_sequences)
    states = [layer.states for layer in cache.layers if layer.states is not None]
    tensors = [tensor for each in states for tensor in (each.inputs, each.memory) if tensor is not None]
    assert len(states) == config.num_layers - len(config.attention_layers)
    return sum(tensor[1:].nbytes for tensor in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_states_take_what_is_foretold_and_the_cache_the_rest(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    config = read_config(folder)
    found = sizes(config, Settings(dtype="float32", max_num_seqs=3, block_size=16, max_model_len=40))
    assert 3 * found.state == states_of(config, 3)
    engine = EngineConfig(model=folder, max_num_seqs=3, block_size=16)
    num_blocks = num_cache_blocks(engine, config, torch.float32, CPU, 40) - 1
    blocks = num_blocks * KVCache.bytes_per_block(config, 16, torch.float32)
    assert found.kv_cache == blocks + 3 * found.state
    assert f"{found.state} a sequence" in as_table(found, Settings())
    limited = replace(engine, kv_cache_bytes=found.kv_cache)
    assert num_cache_blocks(limited, config, torch.float32, CPU, 40) - 1 == num_blocks
    scarce = replace(engine, kv_cache_bytes=2 * found.state)
    with pytest.raises(ModelLoadError, match=r"states for --max-num-seqs 3.*lower --max-model-len or --max-num-seqs$"):
        num_cache_blocks(scarce, config, torch.float32, CPU, 40)


@pytest.mark.parametrize("name", NAMES)
def test_several_ranks_do_not_hold_states_together(name: str, tmp_path: Path) -> None:
    config = read_config(tiny.make_variant(name, tmp_path))
    with pytest.raises(
        ModelLoadError, match="layers without attention, and their states are not divided; 1 is accepted"
    ):
        shares_of(config, Group(0, 2))


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_needs_a_cache_with_states(model_of: Load, name: str) -> None:
    model = model_of(name)
    cache = KVCache(model.cache_config, 9, 8, model.dtype, CPU)
    with pytest.raises(ValueError, match="needs a cache with states of sequences"):
        Engine(model, cache, EngineConfig(model=Path("unused")), 64)
