"""Requests without memory: which ones wait or are retried until other requests free memory, and which ones fail."""

import pytest

from lightwell.server.engine.memory.memory_retry import MemoryRetry
from lightwell.server.engine.messages.request import AttentionCapture, AttentionTask, EngineRequest

NOBODY, SOMEBODY = (lambda: False), (lambda: True)


def look(uid: int, deadline: float | None = None) -> EngineRequest:
    task = AttentionTask(capture=AttentionCapture(pairs=((0, 0),)))
    return EngineRequest(uid=uid, prompt_token_ids=(1,), task=task, arrival_time=0.0, deadline=deadline)


def begun(aside: MemoryRetry, is_anyone_gathering: bool = False) -> int | None:
    request = aside.next(SOMEBODY if is_anyone_gathering else NOBODY)
    return None if request is None else request.uid


def test_two_too_large_together_begin_one_after_the_other_and_who_comes_waits_behind_them() -> None:
    aside = MemoryRetry()
    assert aside.decide([1, 2], holders=[1, 2], scheduled=[1, 2]).requeued == {1, 2}
    for uid in (1, 2):
        aside.add(look(uid))
    assert aside.is_memory_short
    for uid in (3, 4):
        aside.add(look(uid), is_to_blame=False)
    assert begun(aside) == 1
    assert begun(aside, is_anyone_gathering=True) is None
    aside.forget(1)
    assert begun(aside) == 2
    aside.forget(2)
    assert [begun(aside), begun(aside, is_anyone_gathering=True)] == [3, 4]  # both may start at once
    assert not aside.is_memory_short


def test_who_finds_memory_only_without_the_others_shows_that_they_are_to_blame() -> None:
    aside = MemoryRetry()
    for _ in range(2):
        decision = aside.decide([7], holders=[1], scheduled=[1, 7])
        assert decision.requeued == {1}
        aside.add(look(1))
        assert not aside.decide([], holders=[], scheduled=[7]).ending
        assert begun(aside) == 1
    assert aside.has_had_its_tries(1)


def test_who_finds_none_without_the_others_either_ends_and_they_are_as_before() -> None:
    aside = MemoryRetry()
    for greedy in (7, 8, 9):
        assert aside.decide([greedy], holders=[1], scheduled=[1, greedy]).requeued == {1}
        aside.add(look(1))
        assert aside.decide([greedy], holders=[], scheduled=[greedy]).ending == {greedy}
        aside.forget(greedy)
        assert begun(aside) == 1
        assert not aside.is_last_try(1)
    assert not aside.is_memory_short


def test_one_that_leaves_before_it_was_tried_again_holds_nobody_up() -> None:
    aside = MemoryRetry()
    assert aside.decide([7], holders=[1], scheduled=[7]).requeued == {1}
    aside.add(look(1))
    aside.forget(7)
    assert begun(aside) == 1
    assert not aside.is_last_try(1)


def test_a_line_that_waits_for_one_who_is_gone_is_found() -> None:
    aside = MemoryRetry()
    aside.decide([7], holders=[1], scheduled=[1, 7])
    aside.add(look(1))
    aside.check_integrity({7})
    with pytest.raises(AssertionError, match=r"requests \[7\] are gone, and others wait"):
        aside.check_integrity(())
    with pytest.raises(AssertionError, match=r"requests \[1\] wait to be retried, and have begun"):
        aside.check_integrity({1, 7})
    aside.forget(7)
    assert begun(aside) == 1
    aside.check_integrity({1})


def test_each_that_waited_has_its_turn_and_is_told_why_it_ends() -> None:
    aside = MemoryRetry()
    aside.add(look(1, deadline=5.0))
    for _ in range(2):
        aside.add(look(2))
    aside.add(look(3), is_to_blame=False)
    turns = [(turn.uid, getattr(turn, "finish_reason", None)) for turn in aside.turns(5.0, NOBODY)]
    assert turns == [(1, "deadline"), (2, "memory"), (2, "memory"), (3, None)]


def test_a_turn_that_gathers_ends_the_turns_of_those_behind_it() -> None:
    aside = MemoryRetry()
    for uid in (1, 2):
        aside.add(look(uid))
    gathering: list[int] = []
    for turn in aside.turns(0.0, lambda: bool(gathering)):
        gathering.append(turn.uid)
    assert gathering == [1]
    assert aside.uids == [2]


def test_who_finds_no_memory_to_begin_waits_once_and_then_ends() -> None:
    aside = MemoryRetry()
    assert aside.wait_again(look(1))
    assert begun(aside) == 1
    assert not aside.wait_again(look(1))


def test_only_text_that_ends_while_nobody_gathers_leaves_no_hope() -> None:
    aside = MemoryRetry()
    assert not aside.decide([7], holders=[], scheduled=[7]).is_hopeless  # it is tried again
    assert not aside.decide([7], holders=[1], scheduled=[7]).is_hopeless
    aside.decide([8], holders=[], scheduled=[8])
    assert not aside.decide([8], holders=[], scheduled=[8], others_gather=True).is_hopeless
    aside.decide([9], holders=[], scheduled=[9])
    assert aside.decide([9], holders=[], scheduled=[9]).is_hopeless
