"""The number of threads that compute."""

import logging
from collections.abc import Iterator

import pytest
import torch

from lightwell.model.kernels import library
from lightwell.server.engine.execution.threads import SMALL_MODEL, use_threads
from tests.invariance import num_threads


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with num_threads(torch.get_num_threads()):
        yield


@pytest.mark.parametrize(
    ("variable", "asked", "model_size", "cores", "expected"),
    [
        ("1", 3, SMALL_MODEL, 6, 3),  # a flag counts before the usual variable
        ("1", None, SMALL_MODEL, 6, 1),
        ("3", None, SMALL_MODEL, 6, 3),
        ("", None, SMALL_MODEL, 6, 6),
        ("none", None, SMALL_MODEL, 6, 6),
        ("0", None, SMALL_MODEL, 6, 6),
        ("", None, SMALL_MODEL - 1, 64, 2),  # a small model is not spread over many cores
    ],
)
def test_as_many_threads_compute_for_torch_and_our_kernels_as_a_flag_a_variable_or_the_cores_say(
    variable: str, asked: int | None, model_size: int, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    use_threads(asked, model_size)
    assert (torch.get_num_threads(), library.num_threads()) == (expected, expected)


def test_a_containers_cpu_quota_bounds_the_threads_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Set a CPU quota, which hides no cores: with one thread per core, all waited for the thread that had used up its
    time.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    for module in ("memory.cgroups", "execution.threads"):
        monkeypatch.setattr(f"lightwell.server.engine.{module}.cpu_quota", lambda *_: 4.5)
    with caplog.at_level(logging.INFO):
        use_threads(None, SMALL_MODEL)
    assert torch.get_num_threads() == 4
    assert caplog.messages == ["4 of 8 cores compute: the container's quota is 4.5 CPUs"]
    use_threads(None, SMALL_MODEL, num_workers=2)
    assert torch.get_num_threads() == 2
    use_threads(7, SMALL_MODEL)
    assert torch.get_num_threads() == 7, "what is asked for counts before the quota"
