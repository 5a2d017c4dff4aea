"""Cancelled steps: a step that few requests still need is stopped, and the remaining requests get the same bits."""

import random
import time
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from lightwell.model.network.transformer import Transformer
from lightwell.server.engine import engine as engine_module
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution import step_cancellation
from lightwell.server.engine.execution.step_cancellation import ASK_INTERVAL, CancellationCheck, StepCancelled
from lightwell.server.engine.messages.request import BACKGROUND, EngineRequest, Task
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.sequence import Chunk
from tests.server.engine import toy_runner
from tests.server.engine.driving import (
    Answer,
    Load,
    alone,
    assert_same,
    build,
    each_kind_of_task,
    everything,
    generate,
    request,
)
from tests.support.clock import Clock

FIRST_LEAVER = 100


@pytest.fixture
def asks_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_cancellation, "ASK_INTERVAL", 0.0)


class Asked:
    """The cancellation check of a step with 12 tokens: 1, 2 and 6 of three sequences, and 3 of an encoder."""

    def __init__(self, *, must_complete: bool = False, deadline: float | None = None) -> None:
        seqs = [toy_runner.sequence(uid, range(9), deadline=deadline if uid == 3 else None) for uid in (1, 2, 3)]
        read = toy_runner.sequence(4, [1], encoded=(1, 2, 3))
        chunks = [Chunk(seq, 0, count) for seq, count in zip(seqs, (1, 2, 6), strict=True)]
        self.left: list[int] = []
        self.num_looks = 0
        self.clock = Clock()
        self.wanted = CancellationCheck(
            Schedule(chunks, 12, [read]), self._new_aborts, deadline, must_complete=must_complete, clock=self.clock
        )

    def _new_aborts(self) -> Iterable[int]:
        self.num_looks += 1
        found, self.left = self.left, []
        return found

    def is_given_up(self, *leavers: int) -> bool:
        self.left += leavers
        self.clock.now += ASK_INTERVAL
        try:
            self.wanted()
        except StepCancelled:
            return True
        return False


def test_a_step_is_given_up_once_more_than_half_of_its_tokens_are_nobodys() -> None:
    step = Asked()
    assert not step.is_given_up()
    assert not step.is_given_up(3)  # 6 of 12
    assert not step.is_given_up(77)  # not in this step
    assert step.is_given_up(1)
    assert step.wanted.aborted == {1, 3, 77}


def test_what_an_encoder_reads_counts() -> None:
    assert Asked().is_given_up(3, 4)
    assert not Asked().is_given_up(1, 2, 4)


def test_those_whose_time_is_over_want_it_no_more() -> None:
    step = Asked(deadline=1000.0 + 2.5 * ASK_INTERVAL)
    assert not step.is_given_up(4)
    assert not step.is_given_up()
    assert step.is_given_up()


def test_after_a_step_that_was_given_up_one_that_somebody_wants_runs_to_its_end() -> None:
    step = Asked(must_complete=True)
    assert not step.is_given_up(2, 3, 4)
    assert step.is_given_up(1)


def test_nobody_is_asked_more_often_than_every_few_milliseconds() -> None:
    step = Asked()
    for _ in range(50):
        step.wanted()
    assert step.num_looks == 0
    step.is_given_up()
    step.wanted()
    assert step.num_looks == 1


class Leaving:
    """Cancels requests at any check, in a random layer of a random step. It drives an engine as the worker's loop
    does.
    """

    def __init__(self, engine: Engine, requests: list[EngineRequest], draw: random.Random, often: float) -> None:
        self.engine = engine
        self.answers = {each.uid: Answer() for each in requests}
        self.num_ends = dict.fromkeys(self.answers, 0)
        self._requests = requests
        self._draw = draw
        self._often = often
        self._told: list[int] = []
        self._added: list[int] = []
        engine.watch_aborts(self._new_aborts)

    def _new_aborts(self) -> list[int]:
        here = [uid for uid in self._added if uid >= FIRST_LEAVER and uid not in self._told]
        if not here or self._draw.random() > self._often:
            return []
        requeued = self._draw.sample(here, self._draw.randint(1, len(here)))
        self._told += requeued
        return requeued

    def run(self) -> dict[int, Answer]:
        waiting = list(self._requests)
        while waiting or self.engine.has_work:
            for _ in range(self._draw.randint(0 if self.engine.has_work else 1, 4)):
                if waiting:
                    self._added.append(waiting[0].uid)
                    self.engine.add_request(waiting.pop(0))
            for output in self.engine.step().outputs:
                self.answers[output.uid].add(output)
                self.num_ends[output.uid] += output.finish_reason is not None
            self.engine.check_integrity()
            for uid in self._told:  # these messages were only read ahead; they are handled in their order
                self.engine.abort(uid)
        return self.answers


def crowd(model: Transformer, draw: random.Random) -> list[EngineRequest]:
    """Return requests of each kind that are not cancelled; their prompts begin alike."""
    shared, encoded = words(draw, 24), words(draw, 20) if model.config.encoder else []
    tasks = each_kind_of_task(model.config)
    return [request(uid, [*shared, *words(draw, 9)], task, encoded=encoded) for uid, task in enumerate(tasks)]


def leavers(model: Transformer, draw: random.Random, count: int) -> list[EngineRequest]:
    """Return requests to be cancelled: long prompts, which take long to read; some of them with captures."""
    tasks: list[Task] = [everything(model.config)]
    if model.config.kind != "encoder":
        tasks += [generate(30), generate(30, prompt_logprobs=1)]
    encoded = words(draw, 30) if model.config.encoder else []
    return [
        request(FIRST_LEAVER + i, words(draw, draw.randint(40, 90)), draw.choice(tasks), encoded=encoded)
        for i in range(count)
    ]


def words(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(2, 90) for _ in range(count)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "lfm2", "qwen3_5", "t5", "bart", "bert"])
def test_whoever_leaves_in_whatever_layer_the_others_are_answered_as_if_alone(
    model_of: Load, asks_everywhere: None, name: str, seed: int
) -> None:
    draw = random.Random(seed)
    model = model_of(name)
    staying = crowd(model, draw)
    quiet = alone(model, staying)
    together = [*staying, *leavers(model, draw, 12)]
    draw.shuffle(together)
    # Small enough that some are preempted, with chunks that end within prompts.
    engine = build(model, num_blocks=60, max_num_seqs=8, max_num_batched_tokens=draw.choice([64, 160, 2048]))
    started = [replace(each, arrival_time=0.0) for each in together]
    requeued = Leaving(engine, started, draw, often=0.2)
    answers = requeued.run()
    assert_same(answers, quiet)
    assert set(requeued.num_ends.values()) == {1}
    left = [answers[uid].finish_reason for uid in answers if uid >= FIRST_LEAVER]
    assert "abort" in left
    assert engine.stats().steps_abandoned_total > 0
    assert engine.stats().kv_cache_usage_ratio == 0
    assert engine.capture_bytes == 0


def test_who_stays_is_not_starved_by_those_who_come_and_leave(model_of: Load, asks_everywhere: None) -> None:
    model = model_of("llama-gqa")
    engine = build(model, max_num_batched_tokens=96)
    stream = request(0, [5, 6, 7], generate(12, ignore_eos=True))
    expected = alone(model, [stream])[0]
    engine.watch_aborts(lambda: [uid])  # the newest request is aborted at once, in every step
    engine.add_request(stream)
    uid, answer = 0, Answer()
    budget = engine.state()["capture_budget"]
    while answer.finish_reason is None:
        uid += 1
        engine.add_request(request(uid, [9 + uid] * 90, generate(4)))  # which no cache has yet
        for output in engine.step().outputs:
            if output.uid == 0:
                answer.add(output)
        engine.abort(uid)
        assert uid <= 2 * 12 + 1
        if not answer.tokens:
            assert engine.state()["capture_budget"] == budget  # a stopped step is no measurement of the time of steps
    assert answer == expected
    assert engine.stats().steps_abandoned_total == engine.state()["num_steps_abandoned"] == 12


def test_a_deadline_that_passes_within_a_step_ends_it(
    model_of: Load, asks_everywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show the engine a time before the deadline until the step has begun, and then the real time."""
    engine = build(model_of("llama-gqa"))
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(engine_module, "time", clock)

    def let_time_pass() -> Iterable[int]:
        clock.monotonic = time.monotonic
        return ()

    engine.watch_aborts(let_time_pass)
    engine.add_request(request(1, [4] * 60, generate(4), deadline=time.monotonic()))
    (output,) = engine.step().outputs
    assert (output.uid, output.finish_reason) == (1, "deadline")
    assert engine.stats().steps_abandoned_total == 1
    assert engine.stats().engine_steps_total == 0


def test_a_request_cancels_a_step_of_batch_rows_which_get_the_same_answers(
    model_of: Load, asks_everywhere: None
) -> None:
    model = model_of("llama-gqa")
    rows = [request(uid, [uid] * 40, generate(6)) for uid in (1, 2)]
    expected = alone(model, rows)
    engine = build(model)
    for each in rows:
        engine.add_request(replace(each, priority=BACKGROUND))
    answers = {uid: Answer() for uid in (1, 2, 3)}
    is_waiting = True
    engine.watch_requests(lambda: is_waiting)
    engine.step()
    assert engine.stats().steps_abandoned_total == 1
    engine.add_request(request(3, [7] * 9, generate(1)))
    engine.step()  # another request is not cancelled
    assert engine.stats().steps_abandoned_total == 1
    is_waiting = False
    while engine.has_work:
        for output in engine.step().outputs:
            answers[output.uid].add(output)
    assert [answers[uid] for uid in (1, 2)] == [expected[uid] for uid in (1, 2)]
