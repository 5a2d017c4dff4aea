"""Where the workers of `--devices` compute: cores without a GPU, cards by torch's own count."""

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.devices import Places, core_groups, places, visible_cards
from server.setting_kinds import devices


def four() -> int:
    return 4


def none() -> int:
    return 0


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("12", 12), ("all", "all"), ("0,2", (0, 2)), ("3,", (3,)), ("1,0,2", (1, 0, 2))]
)
def test_a_number_all_or_a_list_is_read(text: str, value: object) -> None:
    assert devices().parse(text) == value


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
    assert places("all", device, four).cards == (0, 1, 2, 3)
    assert places(2, device, four).cards == (0, 1)
    assert places((3, 1), device, four) == Places("cuda", cards=(3, 1))
    assert places((3,), device, four).num_workers == 1


@pytest.mark.parametrize(
    ("asked", "device", "count", "says"),
    [
        (5, "auto", four, "5 workers need as many GPUs, and torch finds 4"),
        ((0, 4, 7), "cuda", four, "there is no GPU 4, 7; torch finds 4, numbered from 0"),
        (2, "cuda", none, "torch finds no GPU here.*--device cpu is accepted"),
        ("all", "auto", none, "torch finds none here; a number of workers is accepted"),
        ((0, 1), "cpu", four, "GPUs are asked for, but --device is cpu; a number of workers is accepted"),
    ],
)
def test_cards_that_are_not_there_are_named(asked: object, device: str, count: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        places(asked, device, count)  # type: ignore[arg-type]


def test_without_cards_each_worker_has_its_share_of_our_cores() -> None:
    cores = os.sched_getaffinity(0)
    found = places(2, "auto", none)
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


def test_more_workers_than_cores_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        core_groups([0, 1], 2)
        assert not caplog.messages
        core_groups([0, 1], 4)
    assert caplog.messages == ["4 workers share 2 CPU cores, of which each would need one"]


def test_cards_are_counted_as_a_worker_would_see_them() -> None:
    import torch  # here alone: the server counts without it

    assert visible_cards() == torch.cuda.device_count()
