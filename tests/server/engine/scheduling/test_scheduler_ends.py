"""Ends of sequences: by the number of tokens, a stop, an abort or a deadline, and only once."""

import itertools

import pytest

from lightwell.server.engine.scheduling.deadlines import Deadlines
from lightwell.server.engine.sequence import SequenceStatus
from tests.server.engine.toy_runner import ToyRunner, generate, scheduler, sequence, toy


def test_blocks_are_free_in_the_step_that_ends_a_sequence() -> None:
    sched, runner = toy(sequence(1, range(10), generate(max_tokens=1)), num_blocks=9)
    (ended,) = runner.step()
    assert (ended.finish_reason, ended.status) == ("length", SequenceStatus.FINISHED)
    assert sched.block_manager.num_free_blocks == 8


def test_an_aborted_sequence_is_gone_at_once_waiting_or_running() -> None:
    sched = scheduler(max_num_seqs=1)
    sched.add(sequence(1, range(10)))
    sched.add(sequence(2, range(10)))
    ToyRunner(sched).step()
    for uid in (1, 2):
        seq = sched.abort(uid)
        assert seq is not None
        assert (seq.finish_reason, len(seq.block_table)) == ("abort", 0)
    assert not sched.has_work
    assert sched.block_manager.usage == 0
    assert sched.abort(1) is None


def test_a_sequence_aborted_during_its_step_is_passed_over() -> None:
    sched, runner = toy(sequence(1, range(10)), sequence(2, range(20, 30), generate(max_tokens=1)))
    schedule = sched.schedule()
    new_tokens = runner.run(schedule)
    sched.abort(1)
    assert [seq.uid for seq in sched.commit(schedule, new_tokens)] == [2]
    sched.check_integrity()


def test_a_sequence_past_its_deadline_is_ended_once_with_that_reason() -> None:
    sched, runner = toy()
    for uid, deadline in [(1, 30.0), (2, 10.0), (3, None), (4, 20.0)]:
        sched.add(sequence(uid, range(4), generate(max_tokens=50), deadline))
    runner.step()
    assert sched.expired(9.9) == []
    assert [(seq.uid, seq.finish_reason) for seq in sched.expired(20.0)] == [(2, "deadline"), (4, "deadline")]
    assert sched.expired(20.0) == []
    sched.abort(1)
    assert sched.expired(1e9) == []
    assert [seq.uid for seq in sched.sequences] == [3]


def test_the_deadlines_that_are_kept_expire_in_order() -> None:
    for order in itertools.permutations((10.0, 20.0, 30.0, 40.0)):
        deadlines = Deadlines()
        deadlines.add(sequence(9, range(4), deadline=5.0))
        deadlines.keep([sequence(uid, range(4), deadline=deadline) for uid, deadline in enumerate(order)])
        assert deadlines.next == 10.0
        assert [deadline for deadline, _ in deadlines.take_expired(25.0)] == [10.0, 20.0]
        assert [deadline for deadline, _ in deadlines.take_expired(40.0)] == [30.0, 40.0]
        assert deadlines.next is None


def test_deadlines_of_requests_that_ended_do_not_gather_while_others_run() -> None:
    sched = scheduler()
    sched.add(sequence(0, range(4), generate(max_tokens=50), 30.0))
    for uid in range(1, 2000):
        sched.add(sequence(uid, range(4), deadline=20.0))
        sched.abort(uid)
    assert len(sched._deadlines) < 1000
    assert [seq.uid for seq in sched.expired(25.0)] == []
    assert [seq.uid for seq in sched.expired(30.0)] == [0]


def test_a_deadline_dies_with_its_request_even_if_the_uid_lives_on() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(4), deadline=10.0))
    sched.add(sequence(2, range(4)))
    sched.abort(1)
    sched.add(sequence(1, range(4), deadline=20.0))
    assert sched.expired(15.0) == []
    assert [seq.uid for seq in sched.expired(25.0)] == [1]


def test_a_finished_sequence_keeps_its_first_reason_and_stays_finished() -> None:
    sched = scheduler()
    seq = sequence(1, range(4))
    sched.add(seq)
    sched.abort(1)
    heir = sequence(1, range(4))
    sched.add(heir)
    sched.finish(seq, "error")
    assert (seq.finish_reason, sched.sequences) == ("abort", [heir])


def test_a_uid_in_use_is_refused() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(4)))
    with pytest.raises(ValueError, match="uid 1 is already in use"):
        sched.add(sequence(1, range(4)))


def test_a_step_that_forgets_a_sampled_token_is_refused() -> None:
    sched = scheduler()
    sched.add(sequence(1, range(4)))
    with pytest.raises(ValueError, match=r"uid=1.*sampled tokens None"):
        sched.commit(sched.schedule(), {})
