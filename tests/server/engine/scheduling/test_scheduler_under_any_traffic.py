"""With any requests and any size of the cache, every request ends with a correct answer, and none waits for ever."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lightwell.server.engine.messages.request import BACKGROUND, EmbedTask, GenerateTask, Intervention, Task
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.sequence import Sequence, SequenceStatus
from tests.server.engine.toy_runner import (
    ToyRunner,
    answer_alone,
    attend,
    attend_encoder,
    generate,
    generated,
    scheduler,
    sequence,
)

SHARED_TEXT = [1, 2, 3, 4, 1, 1, 2, 2, 3, 3, 4, 4, 4, 3, 2, 1, 4, 3, 1, 2]
CHANGE = Intervention(stack="decoder", layer=0, point="hook_resid_post", op="scale", value=0.5)

tasks: st.SearchStrategy[Task] = st.one_of(
    st.builds(generate, st.integers(0, 24)),
    st.builds(generate, st.integers(1, 24), prompt_logprobs=st.just(1)),
    st.builds(generate, st.integers(1, 24), stop=st.just((0,))),
    st.sampled_from([attend(), attend(layer=0), attend(0), EmbedTask(), EmbedTask(pooling="mean"), EmbedTask(layer=1)]),
)


class AnyTraffic(RuleBasedStateMachine):
    """Random arrivals, aborts and steps over a random, mostly too small cache."""

    @initialize(
        options=st.fixed_dictionaries(
            {
                "num_blocks": st.integers(8, 20),
                "block_size": st.integers(1, 5),
                "max_num_seqs": st.integers(2, 6),
                "capture_tokens": st.none() | st.integers(1, 4),
                "caching": st.booleans(),
                "copying": st.booleans(),
                "rotary_switch": st.none() | st.integers(1, 20),
                "drafting": st.booleans(),
            }
        ),
        extra_budget=st.integers(0, 12),
        background_tokens=st.none() | st.integers(1, 8),
    )
    def start(self, options: dict[str, Any], extra_budget: int, background_tokens: int | None) -> None:
        self.background_tokens = background_tokens
        self.scheduler = scheduler(**options, budget=options["max_num_seqs"] + extra_budget)
        self.runner = ToyRunner(self.scheduler)
        self.seqs: dict[int, Sequence] = {}
        self.ended: set[int] = set()

    @rule(
        num_shared=st.integers(0, 20),
        of=st.integers(0, 30),
        tail=st.lists(st.integers(0, 4), min_size=1, max_size=6),
        task=tasks,
        options=st.fixed_dictionaries(
            {
                "encoded": st.just(()) | st.sampled_from([(1, 2, 3), (1, 2), tuple(range(30))]),
                "interventions": st.sampled_from([(), (), (), (CHANGE,)]),
                "priority": st.sampled_from([0, 0, 0, -1, 2, BACKGROUND, BACKGROUND]),
                "client": st.sampled_from("abc"),
            }
        ),
    )
    def arrive(self, num_shared: int, of: int, tail: list[int], task: Task, options: dict[str, Any]) -> None:
        uid = len(self.seqs)
        shared = self.seqs[of].token_ids if of < uid else SHARED_TEXT
        self._add(sequence(uid, [*shared[:num_shared], *tail], task, **options))

    @rule(length=st.integers(1, 40), task=st.sampled_from([EmbedTask(), attend_encoder()]))
    def arrive_at_an_encoder(self, length: int, task: Task) -> None:
        self._add(sequence(len(self.seqs), [1] * length, task, is_encoder=True))

    def _add(self, seq: Sequence) -> None:
        blocks = self.scheduler.block_manager
        num_blocks = sum(
            -(-num_tokens // blocks.block_size) for num_tokens in (seq.max_num_computed_tokens, seq.num_cross_tokens)
        )
        if num_blocks > blocks.num_usable_blocks:
            with pytest.raises(ValueError, match="room for"):
                self.scheduler.add(seq)
        else:
            self.scheduler.add(seq)
            self.seqs[seq.uid] = seq
            for other in self.scheduler.sequences:
                has_run = other.status is SequenceStatus.RUNNING or other.num_preemptions
                if has_run and other.rank.priority == seq.rank.priority:
                    assert other.rank < seq.rank, "who comes now ranks before one that has run"

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.scheduler.sequences))
        assert self.scheduler.abort(seq.uid) is seq
        self.ended.add(seq.uid)

    @rule(num_steps=st.integers(1, 6))
    def work(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    def step(self) -> None:
        unfinished = self.scheduler.sequences
        is_background = all(seq.is_background for seq in unfinished)
        running = [seq for seq in unfinished if seq.status is SequenceStatus.RUNNING]
        running = [seq for seq in running if seq.is_background == is_background]
        switch = self.scheduler.config.rotary_switch or 1000
        begin_again = [seq for seq in running if len(seq.token_ids) > switch and not seq.rotary_start]
        first = None if running[:1] == begin_again[:1] else next(iter(running), None)
        running = [seq for seq in running if seq not in begin_again]
        need_one = [seq for seq in running if seq.num_uncomputed_tokens == 1]
        schedule = self.scheduler.schedule(background_tokens=self.background_tokens)
        assert all(seq.is_background == is_background for seq in schedule.sequences), "a batch ran next to others"
        chunked = [chunk.sequence for chunk in schedule.chunks]
        scheduled = schedule.sequences
        assert bool(scheduled) == self.scheduler.has_work, "a step without progress"
        assert len(set(chunked)) == len(chunked)
        assert set(scheduled) == {*chunked, *schedule.encodes}
        self.check_budget(schedule)
        assert len(scheduled) <= self.scheduler.config.max_num_seqs
        assert all(chunk.num_tokens > 0 for chunk in schedule.chunks)
        self.check_last_tokens(need_one, schedule)
        assert first is None or first.status is SequenceStatus.RUNNING, "the first in rank was preempted"
        self.check_shares(schedule)
        for seq in self.scheduler.commit(schedule, self.runner.run(schedule)):
            self.check_answer(seq)
            self.ended.add(seq.uid)

    def check_last_tokens(self, need_one: list[Sequence], schedule: Schedule) -> None:
        """Check that this step holds every stream that needed only one more token, unless the stream was preempted.

        A sequence that needs the last token of its prompt is no stream yet. It may wait only if the step is full and
        all its other prompts have a better rank, or if the sequence only captures and text is being generated.
        """
        streams = [seq for seq in need_one if generated(seq)]
        prompts = [seq for seq in schedule.sequences if seq not in streams]
        is_full = schedule.num_tokens >= self.most_tokens(schedule)
        for seq in need_one:
            if seq in schedule.sequences or seq.status is SequenceStatus.WAITING:
                continue
            assert seq not in streams or (schedule.is_background and is_full), "a stream was stalled"
            if not (seq.only_captures and schedule.has_text):
                assert is_full, "a prompt's last token was left out of a step that had room for it"
                assert all(other.rank < seq.rank for other in prompts), "a prompt's last token was left for a later one"

    def most_tokens(self, schedule: Schedule) -> int:
        most = self.scheduler.config.max_num_batched_tokens
        return min(most, self.background_tokens or most) if schedule.is_background else most

    def check_budget(self, schedule: Schedule) -> None:
        """Check that a step holds no more tokens than its budget. The exception is one input of an encoder that is
        larger and cannot be split: it shares the step only with sequences that decode.
        """
        encoded = [len(seq.encoder_token_ids) for seq in schedule.encodes]
        assert sum(chunk.num_tokens for chunk in schedule.chunks) + sum(encoded) == schedule.num_tokens
        if schedule.num_tokens > self.most_tokens(schedule):
            assert len(encoded) == 1, "an oversized step holds more than it must"
            assert all(chunk.num_tokens == 1 + len(chunk.drafts) for chunk in schedule.chunks)

    def check_shares(self, schedule: Schedule) -> None:
        """Check that the first sequence in rank that reads its prompt gets at least half of the tokens for prompts."""
        read = [chunk for chunk in schedule.chunks if chunk.sequence.num_uncomputed_tokens > 1]
        if not read or schedule.encodes:
            return
        first = min(read, key=lambda chunk: chunk.sequence.rank)
        budget = self.most_tokens(schedule) - (len(schedule.chunks) - len(read))
        if not (first.sequence.only_captures and schedule.has_text):
            least = min(first.sequence.num_uncomputed_tokens, -(-budget // 2))
            assert first.num_tokens >= least, "the first in line was starved"

    def check_answer(self, seq: Sequence) -> None:
        task = seq.task
        if isinstance(task, GenerateTask):
            answer = answer_alone(seq.request.prompt_token_ids, task, seq.encoder_token_ids)
            is_stopped = bool(answer) and answer[-1] in task.sampling.stopping_ids
            assert (generated(seq), seq.finish_reason) == (answer, "stop" if is_stopped else "length")
        assert self.runner.encoded.get(seq.uid, 0) == bool(seq.encoder_token_ids), "captured twice, or never"
        if not seq.token_ids:
            return
        captured = self.runner.captured[seq.uid]
        assert captured == sorted(set(captured)), "captured twice"
        if not seq.num_preemptions:  # a sequence that begins again may find blocks that others have computed meanwhile
            assert captured == list(range(captured[0], captured[-1] + 1)), "captured with a gap"
        if seq.is_changed:
            assert captured[0] == 0, "a changed sequence took from the prefix cache"
            assert not seq.block_hashes, "a changed sequence gave to the prefix cache"
        prompt_only = sequence(seq.uid, seq.request.prompt_token_ids, task, encoded=seq.request.encoder_token_ids)
        assert captured[0] <= prompt_only.first_needed_position, "a wanted position came from the prefix cache"

    @invariant()
    def no_block_is_lost_or_owned_twice(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    @invariant()
    def everyone_is_running_or_waiting(self) -> None:
        if hasattr(self, "scheduler"):
            uids = [seq.uid for seq in self.scheduler.sequences]
            assert len(uids) == len(set(uids))
            assert set(uids) == set(self.seqs) - self.ended

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        left = sum(seq.max_num_computed_tokens + 1 for seq in self.scheduler.sequences)
        for _ in range(50 * left):
            if not self.scheduler.has_work:
                break
            self.step()
        assert self.ended == set(self.seqs), "some requests never end"
        assert self.scheduler.block_manager.usage == 0
        self.scheduler.check_integrity()


@pytest.mark.parametrize("num_examples", [50, pytest.param(100, marks=pytest.mark.nightly)])
def test_any_traffic_ends_with_the_right_answers_and_an_empty_cache(num_examples: int) -> None:
    run_state_machine_as_test(AnyTraffic, settings=settings(max_examples=num_examples, stateful_step_count=25))
