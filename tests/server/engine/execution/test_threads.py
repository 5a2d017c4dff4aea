"""The number of threads that compute."""

import logging
from collections.abc import Iterator

import pytest
import torch

from model.kernels import library
from server.engine.execution.threads import SMALL_MODEL, use_threads
from tests.invariance import num_threads


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with num_threads(torch.get_num_threads()):
        yield


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_threads_compute_for_torch_as_for_our_kernels(count: int) -> None:
    use_threads(count, SMALL_MODEL)
    assert (torch.get_num_threads(), library.num_threads()) == (count, count)


@pytest.mark.parametrize("told", ["1", "3"])
def test_the_usual_variable_says_how_many_threads_compute(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    use_threads(None, SMALL_MODEL)
    assert torch.get_num_threads() == int(told)


def test_what_is_asked_for_counts_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    use_threads(2, 1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("told", ["", "none", "0"])
def test_a_variable_that_says_nothing_leaves_a_core_each(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(6))
    use_threads(None, SMALL_MODEL)
    assert torch.get_num_threads() == 6


def test_a_small_model_is_not_spread_over_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    use_threads(None, SMALL_MODEL - 1)
    assert torch.get_num_threads() == 2


def test_a_containers_cpu_quota_bounds_the_threads_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Set a CPU quota, which hides no cores: with one thread per core, all waited for the thread that had used up its
    time.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    for module in ("memory.cgroups", "execution.threads"):
        monkeypatch.setattr(f"server.engine.{module}.cpu_quota", lambda *_: 4.5)
    with caplog.at_level(logging.INFO):
        use_threads(None, SMALL_MODEL)
    assert torch.get_num_threads() == 4
    assert caplog.messages == ["4 of 8 cores compute: the container's quota is 4.5 CPUs"]
    use_threads(None, SMALL_MODEL, num_workers=2)
    assert torch.get_num_threads() == 2
    use_threads(7, SMALL_MODEL)
    assert torch.get_num_threads() == 7, "what is asked for counts before the quota"
