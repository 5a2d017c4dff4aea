"""Questions about the weights: answered in parallel with the steps, one at a time, and ended when no client waits
any more.
"""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from lightwell.server.engine.execution.weight_queries import WeightQueries
from lightwell.server.engine.messages.outputs import RequestOutput
from lightwell.server.engine.messages.request import EngineRequest, WeightsTask
from tests.support.panics import PanicException

PATIENCE = 300.0


class Asked:
    """An inspector that answers the question "wait" when `go` is set, and a semaphore of its wake-ups."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.started = threading.Event()
        self.woken = threading.Semaphore(0)
        self.threads: list[int] = []
        self.inspector = WeightQueries(self.answer)
        self.inspector.call_when_ready(self.woken.release)

    def answer(self, task: WeightsTask, check: Callable[[], None]) -> dict[str, torch.Tensor]:
        self.threads.append(torch.get_num_threads())
        self.started.set()
        if task.question == "fail":
            raise ValueError("no such matrix")
        if task.question == "panic":
            raise PanicException("a library in Rust panicked")
        while task.question == "wait" and not self.go.wait(0.001):
            check()
        return {"x": torch.tensor([[1.5, 2.0]], dtype=torch.float64)}

    def ask(self, uid: int, question: str, deadline: float | None = None) -> None:
        task = WeightsTask(question=question)
        self.inspector.add(
            EngineRequest(uid=uid, prompt_token_ids=(), task=task, arrival_time=time.monotonic(), deadline=deadline)
        )

    def ends(self, count: int) -> list[RequestOutput]:
        """Wait until `count` results were announced, and return them."""
        for _ in range(count):
            assert self.woken.acquire(timeout=PATIENCE)
        return self.inspector.take_results()


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_an_answer_wakes_who_waits_and_has_its_tensors(asked: Asked) -> None:
    asked.ask(1, "now")
    (output,) = asked.ends(1)
    assert (output.uid, output.finish_reason) == (1, "done")
    array = output.tensors["x"]
    assert (array.dtype, array.shape) == ("float64", (1, 2))
    assert bytes(array.data) == torch.tensor([1.5, 2.0], dtype=torch.float64).numpy().tobytes()
    assert output.timing is not None
    assert output.timing.finished is not None
    assert not asked.inspector.has_results


def test_it_computes_with_one_thread_and_leaves_the_engines_alone(asked: Asked) -> None:
    before = torch.get_num_threads()
    asked.ask(1, "now")
    asked.ends(1)
    assert asked.threads == [1]
    assert torch.get_num_threads() == before


def test_questions_are_answered_one_after_another(asked: Asked) -> None:
    asked.ask(1, "wait")
    asked.ask(2, "now")
    assert asked.started.wait(PATIENCE)
    assert not asked.inspector.has_results
    asked.go.set()
    assert [output.uid for output in asked.ends(2)] == [1, 2]


def test_an_aborted_question_ends_whether_it_runs_or_waits(asked: Asked) -> None:
    asked.ask(1, "wait")
    assert asked.started.wait(PATIENCE)
    asked.ask(2, "wait")
    assert asked.inspector.abort(2)
    assert [(output.uid, output.finish_reason) for output in asked.inspector.take_results()] == [(2, "abort")]
    assert asked.inspector.abort(1)
    assert [(output.uid, output.finish_reason) for output in asked.ends(1)] == [(1, "abort")]
    assert not asked.inspector.abort(1)


def test_a_deadline_ends_a_question(asked: Asked) -> None:
    asked.ask(1, "wait", deadline=time.monotonic() + 0.05)
    asked.ask(2, "now", deadline=time.monotonic() - 1.0)
    assert [output.finish_reason for output in asked.ends(2)] == ["deadline", "deadline"]


@pytest.mark.parametrize(
    ("question", "logged"),
    [("fail", "ValueError: no such matrix"), ("panic", "PanicException: a library in Rust panicked")],
)
def test_a_question_that_fails_ends_itself_alone(
    asked: Asked, question: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked.ask(1, question)
    asked.ask(2, "now")
    failed, done = asked.ends(2)
    assert (failed.finish_reason, failed.error) == ("error", "the server's log has the reason")
    assert logged in caplog.text
    assert done.finish_reason == "done"


def test_a_thread_that_could_not_be_started_is_started_with_the_next_question(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short_of_memory:
        short_of_memory.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            asked.ask(1, "now")
    asked.ask(2, "now")
    assert [output.uid for output in asked.ends(1)] == [2]
