"""Places of the workers of `--devices`: on cores without a GPU, or on the GPUs that torch counts."""

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.server.config.devices import Places, as_text, bind_to_cores, core_groups, places, visible_cards
from lightwell.server.config.setting_types import devices
from tests.server.running import running_server, wait_for


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("12", 12), ("all", "all"), ("0,2", (0, 2)), ("3,", (3,)), ("1,0,2", (1, 0, 2))]
)
def test_a_number_all_or_a_list_is_read_and_shown_as_it_was_written(text: str, value: object) -> None:
    found = devices().parse(text)
    assert found == value
    assert as_text(found) == text


@pytest.mark.parametrize("text", ["0", "-1", "", "two", "0,0", ",", "0,,1", "0,a", "1.5", "0 2"])
def test_anything_else_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match="an integer of at least 1, all, or numbers of GPUs such as 0,2"):
        devices().parse(text)


def test_one_worker_stays_where_it_was_and_nothing_is_counted() -> None:
    def never() -> int:
        raise AssertionError("cards are counted")

    assert places(1, "auto", never) == places(1, "cpu", never) == Places("cpu")
    assert places(1, "cuda", never) == Places("cuda", cards=(0,))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_there_is_a_worker_for_each_card_asked_for(device: str) -> None:
    assert places("all", device, lambda: 4).cards == (0, 1, 2, 3)
    assert places(2, device, lambda: 4).cards == (0, 1)
    assert places((3, 1), device, lambda: 4) == Places("cuda", cards=(3, 1))
    assert places((3,), device, lambda: 4).num_workers == 1


@pytest.mark.parametrize(
    ("asked", "device", "count", "says"),
    [
        (5, "auto", 4, "5 workers need as many GPUs, but torch finds 4; at most 4 are accepted"),
        (2, "auto", 1, "2 workers need as many GPUs, but torch finds 1; 1 is accepted"),
        ((0, 4, 7), "cuda", 4, "there is no GPU 4, 7; torch finds 4; 0 to 3 are accepted"),
        ((1,), "cuda", 1, "there is no GPU 1; torch finds 1; 0 is accepted"),
        (2, "cuda", 0, "--device cuda needs a GPU.*--device cpu is accepted"),
        ("all", "auto", 0, "torch finds none here; a number of workers is accepted"),
        ((0, 1), "cpu", 4, "GPUs are requested, but --device is cpu; a number of workers is accepted"),
    ],
)
def test_cards_that_are_not_there_are_named(asked: object, device: str, count: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        places(asked, device, lambda: count)


def test_without_cards_each_worker_has_its_share_of_our_cores() -> None:
    cores = os.sched_getaffinity(0)
    found = places(2, "auto", lambda: 0)
    assert found.accelerator == "cpu"
    assert found.num_workers == 2
    assert {core for group in found.core_groups for core in group} == cores


@given(cores=st.lists(st.integers(0, 300), unique=True, min_size=1, max_size=40), num_groups=st.integers(1, 40))
def test_cores_are_shared_out_evenly_and_each_once(cores: list[int], num_groups: int) -> None:
    groups = core_groups(cores, num_groups)
    assert len(groups) == num_groups
    if num_groups <= len(cores):
        assert [core for group in groups for core in group] == cores
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
    else:
        assert all(len(group) == 1 for group in groups)
        shared = [sum(core in group for group in groups) for core in cores]
        assert max(shared) - min(shared) <= 1


def test_more_workers_than_cores_are_told_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with caplog.at_level(logging.WARNING):
        places(2, "cpu")
        assert not caplog.messages
        places(4, "cpu")
    assert caplog.messages == ["4 workers share 2 CPU cores; each would need one"]


def test_workers_are_counted_against_the_time_that_a_quota_gives(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr("lightwell.server.engine.memory.cgroups.cpu_quota", lambda _: 2.0)
    found = places(2, "cpu")
    assert [len(group) for group in found.core_groups] == [4, 4], "all cores: others of the machine may use them too"
    assert not caplog.messages
    places(3, "cpu")
    assert caplog.messages == ["3 workers share 2 CPU cores; each would need one"]
    with pytest.raises(ValueError, match="too many workers for 2 CPU cores; at most 8"):
        places(9, "cpu")


def test_more_workers_than_a_cpu_could_carry_are_refused() -> None:
    most = 4 * len(os.sched_getaffinity(0))
    assert places(most, "cpu").num_workers == most
    with pytest.raises(ValueError, match=f"too many workers for .* CPU cores; at most {most} are accepted"):
        places(most + 1, "auto", lambda: 0)
    assert places(most + 1, "cuda", lambda: most + 1).num_workers == most + 1


NO_CORE = 1 << 13
"""A number that no core has."""


def bound_to(*cores: int) -> set[int]:
    """Return the cores that a thread with its own set of cores may use after it was bound."""

    def bind() -> set[int]:
        bind_to_cores(cores)
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(bind).result()


def test_a_worker_is_bound_to_those_of_its_cores_that_are_left(caplog: pytest.LogCaptureFixture) -> None:
    cores = os.sched_getaffinity(0)
    first = min(cores)
    assert bound_to(first, NO_CORE) == {first}
    assert not caplog.messages
    assert bound_to(NO_CORE) == cores
    assert caplog.messages == ["CPU cores 8192 may not be used any more; this worker is bound to none"]


def test_cards_are_counted_as_a_worker_would_see_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # only in the test: the server counts without torch

    (tmp_path / "torch.py").write_text("raise SystemExit('somebody else lies in this folder')")
    monkeypatch.chdir(tmp_path)
    assert visible_cards() == torch.cuda.device_count()


def test_why_cards_could_not_be_counted_is_told_in_torchs_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12 is not there')")
    with pytest.raises(ValueError, match=r"could not be counted: .* ImportError: libcudart\.so\.12 is not there$"):
        visible_cards()
    (tmp_path / "torch.py").write_text("import os\nos._exit(3)")  # without a word
    with pytest.raises(ValueError, match=r"non-zero exit status 3\.$"):
        visible_cards()


def test_a_signal_while_cards_are_counted_ends_the_server_without_a_traceback(tmp_path: Path) -> None:
    counting = tmp_path / "counting"
    (tmp_path / "torch.py").write_text(
        f"import pathlib, time\npathlib.Path({str(counting)!r}).touch()\ntime.sleep(60)\n"
    )
    with running_server("--devices", "2", PYTHONPATH=str(tmp_path)) as server:
        wait_for(counting.exists, "the cards are counted")
        server.signal(signal.SIGINT)
        assert server.wait_exit() == 128 + signal.SIGINT
        assert server.output == ""
        server.wait_all_gone()
