"""The reported state of an engine, and the checks that its counters agree with each other."""

import json
from collections.abc import Callable

import pytest

from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.scheduling.capture_budget import CaptureBudget
from lightwell.server.worker.loop import CHECK_INTERVAL, IDLE_BEFORE_CHECK, StepWatch
from tests.server.engine.driving import Load, build, generate, request, run

PROMPT = [0, *range(20, 45)]


@pytest.fixture
def model(model_of: Load) -> Transformer:
    return model_of("llama-gqa")


def running(model: Transformer) -> Engine:
    """Return an engine that has begun two requests; a third waits."""
    engine = build(model, max_num_seqs=2)
    for uid in range(3):
        engine.add_request(request(uid, PROMPT, generate(50, ignore_eos=True)))
    for _ in range(4):
        engine.step()
    engine.check_integrity()
    return engine


def test_the_state_shows_who_runs_who_waits_and_how_far_each_is_as_json_without_tokens(model: Transformer) -> None:
    state = running(model).state()
    json.dumps(state)
    values = [value for each in state["running"] for value in each.values()]
    assert not any(isinstance(value, list | tuple) for value in values)
    assert [each["uid"] for each in state["running"]] == [0, 1]
    assert [each["uid"] for each in state["waiting"]] == [2]
    first = state["running"][0]
    assert (first["task"], first["num_prompt_tokens"]) == ("generate", len(PROMPT))
    assert first["num_known_tokens"] == first["num_computed_tokens"] + 1 > len(PROMPT)
    assert state["waiting"][0]["num_blocks"] == 0
    assert sum(each["num_blocks"] for each in state["running"]) >= state["blocks"]["held"] > 0
    assert state["memory_bytes"] > 1 << 20
    assert state["capture_bytes"] == 0


def test_the_blocks_of_the_state_are_held_cached_or_blank(model: Transformer) -> None:
    engine = running(model)
    engine.abort(0)
    engine.step()
    blocks = engine.state()["blocks"]
    assert min(blocks["held"], blocks["cached"], blocks["blank"]) > 0
    assert blocks["held"] + blocks["cached"] + blocks["blank"] == blocks["total"]


def test_the_used_part_of_the_cache_grows_by_blocks_and_is_used_again(model: Transformer) -> None:
    engine = build(model, block_size=8, enable_prefix_caching=False)
    block_bytes = KVCache.bytes_per_block(model.config, 8, model.dtype)
    assert engine.stats().kv_cache_committed_bytes == 0
    for uid, num_tokens, num_blocks in ((0, 17, 3), (1, 17, 3), (2, 33, 5), (3, 9, 5)):
        run(engine, [request(uid, range(num_tokens), generate(1, ignore_eos=True))])
        assert engine.stats().kv_cache_committed_bytes == num_blocks * block_bytes


def test_a_block_holds_zeros_or_what_was_written_and_nothing_else_is_read(model: Transformer) -> None:
    asked = [request(uid, range(uid, uid + 21), generate(12, ignore_eos=True)) for uid in range(3)]
    expected = run(build(model), asked)
    engine = build(model)
    for layer in engine._runner.cache.layers:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    assert {uid: answer.tokens for uid, answer in run(engine, asked).items()} == {
        uid: answer.tokens for uid, answer in expected.items()
    }


def _forget(engine: Engine) -> object:
    return engine._active.pop(0)


def _keep(engine: Engine) -> None:
    active = dict(engine._active)
    for uid in range(3):
        engine.abort(uid)
    engine._active.update(active)


def _miscount(engine: Engine) -> None:
    engine._scheduler._requests.num_texts += 1


def _lose_budget(engine: Engine) -> None:
    engine._budgets.captures = CaptureBudget(8)
    engine._budgets.captures._credit = float("nan")


def _take_block(engine: Engine) -> object:
    return engine._blocks._blank.pop()


@pytest.mark.parametrize("corrupt", [_forget, _keep, _miscount, _lose_budget, _take_block])
def test_the_integrity_check_finds(model: Transformer, corrupt: Callable[[Engine], object]) -> None:
    engine = running(model)
    corrupt(engine)
    with pytest.raises(AssertionError):
        engine.check_integrity()


def test_books_are_checked_once_for_each_time_of_idleness() -> None:
    now = 0.0
    watch = StepWatch(lambda: now)
    assert not watch.should_check()

    def step_at(moment: float) -> None:
        nonlocal now
        now = moment
        watch.begin()
        watch.end()

    step_at(1.0)
    assert not watch.should_check()
    now = 1.0 + IDLE_BEFORE_CHECK
    assert watch.should_check()
    assert not watch.should_check()
    step_at(now + 1)
    now += IDLE_BEFORE_CHECK
    assert not watch.should_check()  # too soon after the last one
    now += CHECK_INTERVAL
    assert watch.should_check()
