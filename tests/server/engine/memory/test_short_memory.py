"""Short memory: a request that fits into the memory without other requests is answered, with the same bits. Only
larger requests fail.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from lightwell.model.batch import Batch
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution import step_cancellation
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    WeightsTask,
)
from tests.server.engine.driving import Load, alone, build, generate, request, run

NUM_TOKENS = 60
PAIRS = ((0, 0), (0, 1), (1, 0), (1, 1))
ONE_PAIR = 4 * NUM_TOKENS**2
"""Bytes of one head's pattern, float32."""

Limit = Callable[[Engine, int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """A function that makes each pass of the network raise MemoryError while captures hold more than `most` bytes."""

    def patch(engine: Engine, most: int) -> None:
        model = engine._model
        forward = model.forward

        def run(batch: Batch, *arguments: Any) -> torch.Tensor:
            if engine.capture_bytes > most:
                raise MemoryError
            return forward(batch, *arguments)

        monkeypatch.setattr(model, "forward", run)

    return patch


def words(count: int = NUM_TOKENS) -> list[int]:
    return [random.randrange(2, 90) for _ in range(count)]


def look(uid: int, num_pairs: int, deadline: float | None = None) -> EngineRequest:
    return request(uid, words(), AttentionTask(capture=AttentionCapture(pairs=PAIRS[:num_pairs])), deadline)


def text(uid: int, **options: Any) -> EngineRequest:
    return request(uid, words(), generate(random.randrange(3, 30), ignore_eos=True, **options))


@pytest.fixture
def model(model_of: Load) -> Transformer:
    return model_of("gpt2")


def test_an_inspection_that_is_too_large_ends_alone(model: Transformer, limit: Limit) -> None:
    others = [text(0), text(1, temperature=0.8, seed=5), request(2, words(), EmbedTask(pooling="mean")), look(3, 1)]
    quiet = alone(model, others)
    engine = build(model)
    limit(engine, 2 * ONE_PAIR)
    answers = run(engine, [*others, look(9, 4)])
    assert answers[9].finish_reason == "memory"
    assert {uid: answers[uid] for uid in quiet} == quiet


def test_inspections_too_large_together_are_answered_one_after_the_other(model: Transformer, limit: Limit) -> None:
    hooks = [look(uid, 3) for uid in range(4)]
    everyone = [*hooks, text(4), text(5)]
    quiet = alone(model, everyone)
    engine = build(model)
    limit(engine, 4 * ONE_PAIR)
    assert run(engine, everyone, arrivals=[0, 0, 0, 2, 0, 1]) == quiet
    assert not engine.has_work
    assert engine.stats().num_requests_waiting == 0


def test_who_was_tried_twice_is_counted_once(model: Transformer, limit: Limit) -> None:
    shown = AttentionCapture(pairs=PAIRS[:3])
    everyone = [look(0, 3), text(1), *(text(uid, attention=shown, attention_prompt=True) for uid in (2, 3))]
    calm, tight = build(model, enable_prefix_caching=False), build(model, enable_prefix_caching=False)
    quiet = run(calm, everyone)
    limit(tight, 4 * ONE_PAIR)
    assert run(tight, everyone) == quiet
    for name in ("prompt_tokens_total", "generation_tokens_total", "capture_bytes_total"):
        assert getattr(tight.stats(), name) == getattr(calm.stats(), name)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 5))])
def test_whatever_comes_only_what_is_too_large_alone_is_refused(model: Transformer, limit: Limit, seed: int) -> None:
    random.seed(seed)
    everyone = [random.choice([text(uid), look(uid, random.randrange(1, 5))]) for uid in range(16)]
    arrivals = [random.randrange(60) for _ in everyone]
    quiet = alone(model, everyone)
    engine = build(model, max_num_seqs=6)
    limit(engine, 3 * ONE_PAIR)
    answers = run(engine, everyone, arrivals=arrivals)
    for each in everyone:
        if isinstance(each.task, AttentionTask) and len(each.task.capture.pairs) > 3:
            assert answers[each.uid].finish_reason == "memory"
        else:
            assert answers[each.uid] == quiet[each.uid], f"request {each.uid}"


def test_who_waits_for_memory_can_leave_and_has_its_deadline(model: Transformer, limit: Limit) -> None:
    engine = build(model, max_num_batched_tokens=64)
    limit(engine, 3 * ONE_PAIR)
    first = [look(0, 3), look(1, 3), look(2, 3, deadline=1e15)]
    for each in first:
        engine.add_request(each)
    engine.step()
    waiting = engine.state()["set_aside"]
    assert waiting
    assert engine.stats().num_requests_waiting >= len(waiting)
    ends: dict[int, str | None] = {}
    engine.abort(waiting[-1])
    engine.add_request(look(9, 3, deadline=0.0))  # long over
    while engine.has_work:
        ends |= {output.uid: output.finish_reason for output in engine.step().outputs}
        engine.check_integrity()
    assert ends == {0: "done", 1: "done", 2: "done"} | {waiting[-1]: "abort", 9: "deadline"}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
def test_whoever_leaves_or_is_late_meanwhile_each_is_told_its_end_once(
    model: Transformer, limit: Limit, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random.seed(seed)
    monkeypatch.setattr(step_cancellation, "ASK_INTERVAL", 0.0)
    engine = build(model, max_num_seqs=6)
    limit(engine, 3 * ONE_PAIR)
    ends: dict[int, list[str]] = {uid: [] for uid in range(30)}
    begun: list[int] = []
    requeued: list[int] = []

    def some_leave() -> list[int]:
        now = random.sample(begun, 1) if begun and random.random() < 0.1 else []
        requeued.extend(now)
        return now

    engine.watch_aborts(some_leave)
    coming = list(ends)
    while coming or engine.has_work:
        if coming and (random.random() < 0.3 or not engine.has_work):
            uid = coming.pop(0)
            late = time.monotonic() + random.choice([0.0, 0.02, 60.0])
            each = random.choice([text(uid), look(uid, random.randrange(1, 5))])
            engine.add_request(replace(each, deadline=late))
            begun.append(uid)
        for output in engine.step().outputs:
            if output.finish_reason is not None:
                ends[output.uid].append(output.finish_reason)
        engine.check_integrity()
        for uid in requeued:  # these messages were only read ahead; they are handled in their order
            engine.abort(uid)
    assert all(len(reasons) == 1 for reasons in ends.values()), ends
    assert not engine.state()["set_aside"]
    assert engine.capture_bytes == 0


def test_a_question_about_the_weights_without_memory_is_asked_again_when_nobody_gathers(
    model: Transformer, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(model)
    answer = engine._intake._weight_queries._answer

    def short(task: WeightsTask, check: Callable[[], None]) -> Any:
        if engine.capture_bytes:
            raise MemoryError
        return answer(task, check)

    monkeypatch.setattr(engine._intake._weight_queries, "_answer", short)
    answered = threading.Event()
    engine.call_when_ready(answered.set)
    question = WeightsTask(question="circuits", options={"part": "decoder", "pairs": ((0, 0),), "compose": 0})
    engine.add_request(look(0, 3))
    engine.add_request(request(1, (), question))
    ends: dict[int, str | None] = {}
    while len(ends) < 2:
        if not engine.has_work or 1 not in engine.state()["set_aside"]:
            assert answered.wait(60)
            answered.clear()
        ends |= {output.uid: output.finish_reason for output in engine.step().outputs if output.finish_reason}
    assert ends == {0: "done", 1: "done"}
