"""A step that raises ends the requests that caused it; their neighbours keep their bits, and the engine its
counters.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from lightwell.model.batch import Batch
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.request import EmbedTask, EngineRequest, Intervention
from tests.server.engine.driving import (
    Load,
    alone,
    array,
    assert_same,
    build,
    each_kind_of_task,
    generate,
    request,
    run,
)
from tests.support.panics import PanicException

MARK = 97
"""A token that a marked network fails on."""


class Failing(RuntimeError):
    """The error that a marked network raises."""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes a network fail on passes that contain MARK, after the pass has run and its captures were
    delivered: the worst moment.
    """

    def patch(model: Transformer, error: BaseException | None = None) -> None:
        for name in ("forward", "encode"):
            monkeypatch.setattr(model, name, _failing(getattr(model, name), error or Failing("a marked token")))

    return patch


def _failing(method: Callable[..., torch.Tensor], error: BaseException) -> Callable[..., torch.Tensor]:
    def run(batch: Batch, *arguments: Any) -> torch.Tensor:
        hidden = method(batch, *arguments)
        if (batch.token_ids == MARK).any():
            raise error
        return hidden

    return run


def crowd(model: Transformer) -> list[EngineRequest]:
    config = model.config
    tasks = each_kind_of_task(config, logit_bias={MARK: -100.0})  # so that the mark does not come up by itself
    return [request(uid, _words(), task, encoded=_words() if config.encoder else ()) for uid, task in enumerate(tasks)]


def _words() -> list[int]:
    return [random.randrange(2, MARK) for _ in range(random.randrange(11, 70))]


@pytest.mark.parametrize(
    ("name", "budget"),
    [("llama-gqa", 2048), *((name, 40) for name in ("llama-gqa", "gemma3", "lfm2", "qwen3_5", "t5", "bart", "bert"))],
)
def test_a_request_that_fails_in_its_prompt_fails_alone(
    model_of: Load, mark: Callable[..., None], name: str, budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(name)
    others = crowd(model)
    quiet = alone(model, others)
    mark(model)
    marked = {"encoder_token_ids" if model.config.encoder else "prompt_token_ids": (*_words(), MARK)}
    bad = [replace(others[0], uid=100 + i, **marked) for i in range(3)]
    engine = build(model, max_num_batched_tokens=budget, max_num_seqs=16, enable_prefix_caching=False)
    together = [*others, *bad]
    answers = run(engine, random.sample(together, len(together)))
    for each in bad:
        assert (answers[each.uid].finish_reason, answers[each.uid].tokens) == ("error", [])
        assert answers[each.uid].error == "the server's log has the reason"
    assert "Failing: a marked token" in caplog.text
    assert_same(answers, quiet)
    assert engine.stats().kv_cache_usage_ratio == 0
    assert engine.capture_bytes == 0


def test_a_request_that_fails_as_it_writes_keeps_what_it_wrote(model_of: Load, mark: Callable[..., None]) -> None:
    model = model_of("llama-gqa")
    others = crowd(model)
    quiet = alone(model, others)
    plain = request(50, _words(), generate(6, ignore_eos=True, logit_bias={MARK: -100.0}))
    written = alone(model, [plain])[50].tokens
    # Its third token is the mark, so the step that reads it fails.
    bias = np.zeros(model.config.vocab_size)
    bias[MARK] = 1e4
    change = Intervention(
        stack="decoder",
        layer=None,
        point="logits",
        op="add",
        array=array(bias),
        positions=(len(plain.prompt_token_ids) + 1,),
    )
    mark(model)
    answers = run(build(model), [*others, replace(plain, interventions=(change,))])
    assert answers[50].finish_reason == "error"
    assert answers[50].tokens == [*written[:2], MARK]
    assert_same(answers, quiet)


@pytest.mark.parametrize(
    ("error", "reason", "told"),
    [
        (MemoryError(), "memory", "an allocation failed"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "memory",
            "an allocation failed",
        ),
        (PanicException("index out of bounds"), "error", "the server's log has the reason"),
    ],
)
def test_a_request_that_finds_no_memory_or_panics_ends_alone_with_that_reason(
    model_of: Load, mark: Callable[..., None], error: BaseException, reason: str, told: str
) -> None:
    model = model_of("gpt2")
    others = crowd(model)
    quiet = alone(model, others)
    mark(model, error)
    engine = build(model)
    answers = run(engine, [request(100, (5, MARK), generate(4)), *others])
    assert (answers[100].finish_reason, answers[100].error) == (reason, told)
    assert_same(answers, quiet)
    assert engine.stats().kv_cache_usage_ratio == 0


def test_an_interrupt_in_a_step_ends_the_engine(model_of: Load, mark: Callable[..., None]) -> None:
    model = model_of("gpt2")
    mark(model, KeyboardInterrupt())
    engine = build(model)
    engine.add_request(request(0, (5, MARK), generate(4)))
    with pytest.raises(KeyboardInterrupt):
        engine.step()


def test_a_pass_that_is_too_large_only_together_fails_nobody(model_of: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("gpt2")
    others = crowd(model)
    quiet = alone(model, others)
    forward = model.forward

    def small_only(batch: Batch, *arguments: Any) -> torch.Tensor:
        if len(batch.token_ids) > 100:
            raise MemoryError
        return forward(batch, *arguments)

    monkeypatch.setattr(model, "forward", small_only)
    assert_same(run(build(model), others), quiet)


@pytest.mark.parametrize(("error", "reason"), [(MemoryError(), "memory"), (PanicException("a dimension"), "error")])
def test_an_answer_that_cannot_be_put_together_ends_its_own_request(
    model_of: Load, monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: str
) -> None:
    model = model_of("gpt2")
    others = [each for each in crowd(model) if not isinstance(each.task, EmbedTask)]
    quiet = alone(model, others)

    def fail(*unused: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("lightwell.server.engine.captures.point_sinks.finished", fail)
    engine = build(model)
    answers = run(engine, [request(100, _words(), EmbedTask(pooling="mean")), *others])
    assert answers[100].finish_reason == reason
    assert_same(answers, quiet)


def test_an_engine_whose_network_fails_for_everyone_says_so(model_of: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as after an error that poisons a GPU: the worker must end and be replaced, since no request caused it."""
    model = model_of("gpt2")
    engine: Engine = build(model)
    engine.add_request(request(0, _words(), generate(4)))
    engine.add_request(request(1, _words(), generate(4)))

    def broken(*unused: Any) -> torch.Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(model, "forward", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.step()
