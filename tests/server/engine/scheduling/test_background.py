"""Rows of batches: they run only while no other request does, keep their blocks meanwhile, and take short steps."""

from lightwell.server.config.auth.quotas import PRIORITIES
from lightwell.server.engine.messages.request import BACKGROUND, EmbedTask
from lightwell.server.engine.scheduling.prompt_budget import ON_A_CPU
from lightwell.server.engine.scheduling.step_budgets import StepBudgets
from lightwell.server.engine.sequence import Sequence, SequenceStatus
from tests.server.engine.toy_runner import ToyRunner, answer_alone, chunk_sizes, generate, generated, sequence, toy


def row(uid: int, num_tokens: int = 4, max_tokens: int = 4) -> Sequence:
    return sequence(uid, range(100 * uid, 100 * uid + num_tokens), generate(max_tokens), priority=BACKGROUND)


def test_no_client_can_set_the_priority_of_rows() -> None:
    assert BACKGROUND not in PRIORITIES


def test_rows_wait_while_any_other_request_runs_and_then_go_on_where_they_were() -> None:
    sched, runner = toy(row(1, max_tokens=3))
    assert chunk_sizes(runner) == {1: 4}
    sched.add(sequence(2, range(8), generate(2), priority=max(PRIORITIES)))
    assert [chunk_sizes(runner) for _ in range(3)] == [{2: 8}, {2: 1}, {1: 1}]
    assert sched.num_preemptions == 0


def test_rows_take_no_slot_of_other_requests() -> None:
    sched, runner = toy(row(1), row(2), max_num_seqs=2)
    assert chunk_sizes(runner) == {1: 4, 2: 4}
    for uid in (3, 4):
        sched.add(sequence(uid, range(4), generate(2)))
    assert chunk_sizes(runner).keys() == {3, 4}


def test_rows_give_up_their_blocks_the_last_one_first_and_are_computed_again() -> None:
    rows = [row(uid, num_tokens=8, max_tokens=9) for uid in (1, 2)]
    sched, runner = toy(*rows, num_blocks=7)
    chunk_sizes(runner)
    sched.add(sequence(3, range(12), generate(3)))
    assert chunk_sizes(runner).keys() == {3}
    assert [each.status for each in rows] == [SequenceStatus.RUNNING, SequenceStatus.WAITING]
    sched.add(sequence(4, range(50, 66), EmbedTask()))
    chunk_sizes(runner)
    assert rows[0].status is SequenceStatus.WAITING
    runner.drain()
    for each in rows:
        task = each.task
        assert generated(each) == answer_alone(each.request.prompt_token_ids, task)  # type: ignore[arg-type]
    assert sched.block_manager.usage == 0


def test_waiting_rows_are_no_sign_of_a_full_server() -> None:
    sched, runner = toy(*(row(uid) for uid in range(5)), max_num_seqs=2)
    runner.step()
    assert (sched.num_running, sched.num_waiting) == (2, 0)


def test_steps_of_rows_take_less_than_20_ms_whatever_a_token_costs() -> None:
    for plain, per_token in ((0.001, 0.0001), (0.004, 0.002), (0.015, 0.0005), (0.100, 0.010)):
        sched, runner = toy(num_blocks=4000, max_num_seqs=64, budget=2048)
        budgets = StepBudgets(None, ON_A_CPU)
        for uid in range(40):
            sched.add(row(uid, num_tokens=60, max_tokens=60))
        seconds, sizes = [], []
        while sched.has_work:
            schedule = budgets.schedule(sched)
            seconds.append(plain + per_token * schedule.num_tokens)
            sizes.append(schedule.num_tokens)
            sched.commit(schedule, runner.run(schedule))
            budgets.note(seconds[-1], schedule)
            budgets.check_integrity()
        if plain + per_token < 0.020:
            assert max(seconds[8:]) < 0.020
        else:  # no step is shorter
            assert set(sizes[8:]) == {1}


def test_other_requests_have_steps_as_large_as_ever() -> None:
    sched, runner = toy(row(1, num_tokens=60), num_blocks=400, budget=256)
    budgets = StepBudgets(None, ON_A_CPU)
    assert budgets.schedule(sched).num_tokens < 60
    sched.add(sequence(2, range(200), generate(1)))
    assert budgets.schedule(sched).num_tokens == 200
    assert isinstance(runner, ToyRunner)
