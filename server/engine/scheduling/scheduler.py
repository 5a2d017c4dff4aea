"""Scheduler: chooses the tokens of the next step. Continuous batching, chunked prefill, preemption by recompute.

Every sequence has a rank. It is ordered by the request's priority (lower is earlier, the default is 0), then by its
client's round (round robin, one sequence per client and round), then by arrival.

- **Decodes first.** Each running sequence with only its newest token left gets this token. The rest of the token budget
  goes to prompts, running and waiting, in the order of rank. Next to decodes, prompts get at most the tokens of
  `prompt_tokens`, so that neither a long prompt nor many of them stall running streams.
- **Short prompts overtake.** Prompts at most half as long as another one's rest may overtake it. Together they get at
  most half of its tokens, shared by the same rule. So a short prompt need not wait for a long one, and the first prompt
  of the queue gets at least half of the tokens: it needs at most twice the steps.
- **Admission.** Slots and blocks are given in the order of rank; no sequence overtakes one that does not fit yet. At
  admission, a sequence gets blocks for all its known tokens, also for the encoder's output, so only generation can run
  out of blocks.
- **Preemption.** Without a free block for a generated token, the running sequence with the last rank gives up its
  blocks, waits at its old rank, and is computed again. So is a text that becomes long for rotary embeddings.
- **Inspection requests.** While text is being generated, inspection requests (traces, attention, lenses, head scores)
  get at most `capture_tokens` tokens of a step and a quarter of the slots; text overtakes those that wait for more.
- **Encoders.** An encoder's input is never split: it runs in the step that admits its sequence, and its tokens count
  like any others. An input above the whole budget runs if it comes first after the decodes. While text is being
  generated, an inspection request with an encoder begins only in a step that has tokens left for inspection requests,
  and takes them all.
- **Background.** Rows of batches (`EngineRequest.is_background`) have queues of their own. They run only in steps in
  which no other request runs or waits, and such a step has at most `max_tokens` tokens. Meanwhile they keep their
  blocks, unless another request needs them.
- **Progress.** No new sequence gets a rank before one of its priority that has run, the first in rank is never
  preempted for another, and `add` rejects a sequence that could not finish alone. So every sequence ends, unless
  requests of earlier priorities keep coming.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field
from itertools import islice

from lightwell.server.engine.messages.outputs import FinishReason
from lightwell.server.engine.scheduling.block_manager import BlockManager
from lightwell.server.engine.scheduling.deadlines import Deadlines
from lightwell.server.engine.scheduling.fair_queue import FairQueue, RoundRobin
from lightwell.server.engine.scheduling.prompt_budget import PromptBound
from lightwell.server.engine.scheduling.schedule import Schedule, StepPlan
from lightwell.server.engine.scheduling.scheduler_config import SchedulerConfig
from lightwell.server.engine.scheduling.speculation import Speculation
from lightwell.server.engine.scheduling.steady_rows import LEAST_ROWS, SteadyRows, are_steady
from lightwell.server.engine.sequence import Chunk, Draft, Sequence, SequenceStatus

_LOOKAHEAD = 128
"""Most waiting sequences that one step considers; those behind them could not be admitted."""


@dataclass(slots=True)
class _Queues:
    """The unfinished sequences of one class: of batches, or all others."""

    running: FairQueue = field(default_factory=FairQueue)
    waiting: FairQueue = field(default_factory=FairQueue)
    num_texts: int = 0
    """Number of sequences that generate."""

    @property
    def has_work(self) -> bool:
        return bool(len(self.running) or len(self.waiting))


class Scheduler:
    """The queues of sequences. One step is `schedule`, the forward pass, `commit`; `add` and `abort` come between."""

    def __init__(
        self, config: SchedulerConfig, block_manager: BlockManager, speculation: Speculation | None = None
    ) -> None:
        self.config = config
        self.block_manager = block_manager
        self._speculation = speculation or Speculation()
        self.num_preemptions = 0
        self._requests = _Queues()
        self._background = _Queues()
        self._round_robin = RoundRobin()
        self._deadlines = Deadlines()
        self._rows: SteadyRows | None = None

    @property
    def num_running(self) -> int:
        return len(self._requests.running) + len(self._background.running)

    @property
    def num_waiting(self) -> int:
        """Return the number of waiting sequences. Rows of batches do not count: they are no sign of a full server."""
        return len(self._requests.waiting)

    @property
    def has_requests(self) -> bool:
        """Return whether a sequence other than rows of batches is unfinished."""
        return self._requests.has_work

    @property
    def has_work(self) -> bool:
        return self._requests.has_work or self._background.has_work

    @property
    def sequences(self) -> list[Sequence]:
        """Return every unfinished sequence: running, then waiting, each in order of rank; batches are last."""
        self.leave_rows()
        return [seq for each in (self._requests, self._background) for seq in (*each.running, *each.waiting)]

    def get(self, uid: int) -> Sequence | None:
        """Return the unfinished sequence with this uid, or None."""
        queues = (queue for each in (self._requests, self._background) for queue in (each.running, each.waiting))
        return next((seq for queue in queues if (seq := queue.get(uid)) is not None), None)

    def _queues_of(self, seq: Sequence) -> _Queues:
        return self._background if seq.is_background else self._requests

    def add(self, seq: Sequence) -> None:
        """Queue `seq` behind the sequences of its client.

        Raises ValueError when it could not fit into an empty cache, or its uid is in use.
        """
        if self.get(seq.uid) is not None:
            raise ValueError(f"request uid {seq.uid} is already in use")
        self.block_manager.check_fits(seq)
        if self.config.takes_forced:
            seq.take_first_forced()
        queues = self._queues_of(seq)
        seq.rank = self._round_robin.rank(seq.request.priority, seq.request.client, queues.waiting)
        queues.waiting.add(seq)
        queues.num_texts += seq.sampling_params is not None
        self._deadlines.add(seq)
        if len(self._deadlines) > 2 * (self.num_running + self.num_waiting) + _LOOKAHEAD:
            self._deadlines.keep(self.sequences)  # drops those of finished sequences

    def abort(self, uid: int, reason: FinishReason = "abort") -> Sequence | None:
        """End a sequence early, free its blocks and return it, or return None if there is no such sequence."""
        seq = self.get(uid)
        if seq is not None:
            self.finish(seq, reason)
        return seq

    def expired(self, now: float) -> list[Sequence]:
        """End every sequence with a deadline at or before `now` (CLOCK_MONOTONIC seconds) and return them."""
        ended: list[Sequence] = []
        for deadline, uid in self._deadlines.take_expired(now):
            seq = self.get(uid)
            if seq is not None and seq.request.deadline == deadline:
                self.finish(seq, "deadline")
                ended.append(seq)
        return ended

    @property
    def next_deadline(self) -> float | None:
        """Return a time (CLOCK_MONOTONIC seconds) before which no deadline of an unfinished sequence passes, or None
        without deadlines.
        """
        return self._deadlines.next

    def finish(self, seq: Sequence, reason: FinishReason = "done") -> None:
        """Remove `seq` from its queue and free its blocks. A finished sequence keeps its first reason."""
        if seq.status is SequenceStatus.FINISHED:
            return
        self.leave_rows()
        queues = self._queues_of(seq)
        queues.running.discard(seq)
        queues.waiting.discard(seq)
        queues.num_texts -= seq.sampling_params is not None
        self.block_manager.free(seq)
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        if not self.has_work:
            self._deadlines.keep(())
            self._round_robin.forget()

    def schedule(
        self,
        capture_tokens: int | None = None,
        prompt_tokens: PromptBound | None = None,
        background_tokens: int | None = None,
    ) -> Schedule:
        """Choose the next step's chunks and reserve their blocks. Never empty while there is work.

        capture_tokens: most tokens of captures while text runs; None is `max_capture_tokens`.
        prompt_tokens: returns the most tokens next to the decodes; None is no such bound.
        background_tokens: most tokens of a step of rows of batches, at least 1; None is `max_num_batched_tokens`.
        """
        rows = self._steady_rows()
        if rows is not None:
            chunks = rows.chunks()
            return Schedule(chunks, len(chunks), has_text=True, num_decodes=len(chunks), rows=rows)
        is_background, most = not self._requests.has_work, self.config.max_num_batched_tokens
        queues = self._background if is_background else self._requests
        if is_background and background_tokens is not None:
            most = min(most, background_tokens)
        chunks, prefills = self._schedule_decodes(queues, most)
        num_decodes = len(chunks)
        has_text = num_decodes > 0 or any(seq.sampling_params is not None for seq in prefills)
        allowed = self.config.max_capture_tokens if capture_tokens is None else capture_tokens
        step = StepPlan(chunks, allowed if has_text else None)
        budget = most - sum([chunk.num_tokens for chunk in chunks])
        candidates = self._candidates(step, queues, prefills) if budget else []
        if prompt_tokens is not None and not is_background:
            budget = min(budget, prompt_tokens(num_decodes, sum(not seq.only_captures for seq in candidates)))
        self._schedule_prompts(step, candidates, budget)
        return step.schedule(num_decodes, has_text=has_text, is_background=is_background)

    def with_room_for(self, num_drafts: int) -> list[Sequence]:
        """Return the texts that may have drafts in the next step, after giving them blocks for this number."""
        queues = self._requests if self._requests.has_work else self._background
        return [
            seq
            for seq in queues.running
            if (params := seq.sampling_params) is not None
            and params.speculation
            and 0 < seq.num_tokens - seq.num_prompt_tokens < params.max_tokens - 1
            and seq.num_uncomputed_tokens <= 1 + len(seq.forced)
            and self.block_manager.allocate(seq, seq.num_tokens + num_drafts)
        ]

    def commit(self, schedule: Schedule, new_tokens: Mapping[int, ReadOnlySequence[int]]) -> list[Sequence]:
        """Account for a step that has run, if no other was scheduled after it: advance its sequences, append their
        sampled tokens, publish full blocks, and end complete sequences. Chunks of sequences that were finished since
        `schedule` are skipped.

        Args:
            schedule: what `schedule()` returned.
            new_tokens: the sampled tokens of each sequence, by uid, for exactly the chunks that need some: the drafts
                that are right, and one more.

        Returns:
            The sequences that this step completed, each with its `finish_reason`.

        Raises:
            ValueError: a chunk that needs a sample has no token, or one has a token that it does not need.
        """
        schedule.advance()
        return self.settle(schedule, new_tokens)

    def settle(self, schedule: Schedule, new_tokens: Mapping[int, ReadOnlySequence[int]]) -> list[Sequence]:
        """Account for the result of a step that was advanced at its begin: the rest of `commit`. Meanwhile the next
        step may have been scheduled, but not advanced.
        """
        if schedule.rows is not None and schedule.rows.is_live:
            if len(new_tokens) == len(schedule.chunks):
                return self._settle_rows(schedule.rows, new_tokens)
            self.leave_rows()
        ended = [seq for seq in schedule.encodes if not seq.token_ids and seq.status is SequenceStatus.RUNNING]
        for seq in ended:
            self.finish(seq)
        publishing = self.config.enable_prefix_caching
        block_size = self.block_manager.block_size
        for chunk in schedule.chunks:
            seq = chunk.sequence
            if seq.status is SequenceStatus.FINISHED:
                continue
            tokens = new_tokens.get(seq.uid)
            if (tokens is None) is seq.awaits_token:
                raise ValueError(f"{seq}: sampled tokens {tokens}, needs_sample {seq.awaits_token}")
            is_plain = tokens is not None and seq.grammar is None and not (chunk.drafts or seq.num_predicted_tokens)
            if tokens is not None and is_plain:  # as nearly always
                seq.token_ids[-1] = tokens[0]
                seq.awaits_token = False
            elif tokens is not None:
                seq.take_tokens(tokens, len(chunk.drafts), self.config.takes_forced)
            num_full = seq.num_computed_tokens // block_size
            if publishing and num_full > seq.num_published_blocks and seq.status is SequenceStatus.RUNNING:
                self.block_manager.publish(seq)
            if is_plain and len(seq.token_ids) < seq.max_num_tokens and seq.token_ids[-1] not in seq.stopping_ids:
                continue
            reason = seq.completion()
            if reason is not None:
                self.finish(seq, reason)
                ended.append(seq)
        return ended

    def _steady_rows(self) -> SteadyRows | None:
        """Return the rows of the next step if all running sequences are steady and none waits, else None."""
        running = self._requests.running
        may_be = len(running) >= LEAST_ROWS and not len(self._requests.waiting)
        if self._rows is not None and not self._rows.is_live:
            self._rows = None
        may_be &= self.config.rotary_switch is None and not self._speculation.may_draft(len(running))
        if self._rows is None and may_be:
            sequences = list(running)
            if are_steady(sequences):
                self._rows = SteadyRows(sequences, self.block_manager.block_size)
        if self._rows is not None and not (may_be and self._rows.grow(self.block_manager)):
            self.leave_rows()
        return self._rows

    def leave_rows(self) -> None:
        """Give steady rows their numbers back: work for a single row follows."""
        if self._rows is not None:
            self._rows.leave()
            self._rows = None

    def _settle_rows(self, rows: SteadyRows, new_tokens: Mapping[int, ReadOnlySequence[int]]) -> list[Sequence]:
        """Account for the tokens of steady rows, as `settle` does."""
        ended = rows.take([new_tokens[uid][0] for uid in rows.uids])
        if ended:
            self.leave_rows()
        for i in sorted({*ended, *rows.filled()}):
            seq = rows.sequences[i]
            seq.num_computed_tokens = int(rows.starts[i])
            if self.config.enable_prefix_caching:
                self.block_manager.publish(seq)
            if i in ended:
                reason = seq.completion()
                assert reason is not None, seq
                self.finish(seq, reason)
        return [rows.sequences[i] for i in ended]

    def check_integrity(self) -> None:
        """Check the queues, and the blocks against them. Raises AssertionError with the facts."""
        self.block_manager.check_integrity(self.sequences)
        for queues in (self._requests, self._background):
            sequences = [*queues.running, *queues.waiting]
            wrong = [seq for seq in queues.running if seq.status is not SequenceStatus.RUNNING]
            wrong += [seq for seq in queues.waiting if seq.status is not SequenceStatus.WAITING or seq.block_table]
            wrong += [seq for seq in sequences if self._queues_of(seq) is not queues]
            if wrong:
                raise AssertionError(f"in a queue where they do not belong: {wrong}")
            num_texts = sum(seq.sampling_params is not None for seq in sequences)
            if num_texts != queues.num_texts:
                raise AssertionError(f"{num_texts} sequences generate, but {queues.num_texts} are counted")
        if self._deadlines and not self.has_work:
            raise AssertionError(f"{len(self._deadlines)} deadlines are left of requests that are gone")

    def _schedule_decodes(self, queues: _Queues, most: int) -> tuple[list[Chunk], list[Sequence]]:
        """Return the chunks of at most `most` decodes, each a newest token with the forced tokens and drafts after it,
        and the other running sequences, which are in their prompts.
        """
        chunks: list[Chunk] = []
        prefills: list[Sequence] = []
        block_size = self.block_manager.block_size
        num_texts = len(queues.running)
        room = max(0, most - num_texts)
        for_prompts = room - room // 2  # no draft takes these
        switch, drafting = self.config.rotary_switch, self._speculation.may_draft(num_texts)
        drafts: tuple[Draft, ...] = ()
        for seq in list(queues.running):
            if seq.status is not SequenceStatus.RUNNING or len(chunks) >= most:
                break  # this one and all after it were preempted, or have no place
            num_tokens = len(seq.token_ids)
            if (
                seq.encoder_is_computed
                if seq.num_computed_tokens == num_tokens
                else (seq.awaits_token and num_tokens >= seq.max_num_tokens)
            ):
                continue  # a running step completes it, or may do so
            if switch is not None and self.config.rotary_start(num_tokens) != seq.rotary_start:
                self._preempt(seq)
                continue
            # A prompt's last token is no decode: it counts among the tokens that short prompts may overtake.
            num_forced = num_tokens - seq.num_computed_tokens - 1
            if num_forced > len(seq.forced) or num_tokens == seq.num_prompt_tokens:
                prefills.append(seq)
                continue
            if drafting:
                drafts = self._drafts(seq, room - for_prompts - num_forced, num_texts)
            num_tokens = 1 + min(num_forced, room) + len(drafts)
            end = seq.num_computed_tokens + num_tokens
            if len(seq.block_table) * block_size >= end or self._grow(seq, end):
                chunks.append(Chunk(seq, seq.num_computed_tokens, num_tokens, drafts))
                room -= num_tokens - 1
        return chunks, prefills

    def _drafts(self, seq: Sequence, room: int, num_texts: int) -> tuple[Draft, ...]:
        """Return at most `room` drafts for a text, none that would take a block from another sequence or belong to
        other rotary tables.
        """
        drafts = self._speculation.drafts(seq, room, num_texts) if room > 0 else ()
        num_tokens = seq.num_tokens + len(drafts)
        if not drafts or self.config.rotary_start(num_tokens) != seq.rotary_start:
            return ()
        return drafts if self.block_manager.allocate(seq, num_tokens) else ()

    def _grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Allocate blocks for `num_tokens` tokens of `seq`, and preempt the last in rank while none is free. Returns
        False if `seq` itself was preempted.
        """
        while not self.block_manager.allocate(seq, num_tokens):
            if not seq.is_background and self._preempt_background():
                continue
            self._preempt(last := self._queues_of(seq).running.pop_last())
            self.num_preemptions += 1
            if last is seq:
                return False
        return True

    def _preempt_background(self) -> bool:
        """Free the blocks of the last row of a batch. Returns whether there was one."""
        if not len(self._background.running):
            return False
        self._preempt(self._background.running.pop_last())
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.leave_rows()
        queues = self._queues_of(seq)
        queues.running.discard(seq)
        self.block_manager.free(seq)
        seq.num_computed_tokens = 0
        seq.encoder_is_computed = not seq.encoder_token_ids
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        queues.waiting.add(seq)

    def _candidates(self, step: StepPlan, queues: _Queues, prefills: list[Sequence]) -> list[Sequence]:
        """Return the sequences for the budget that the decodes have left, in order of rank."""
        if not len(queues.waiting) or len(queues.running) >= self.config.max_num_seqs:
            return prefills
        captures_may = self._captures_have_room(step, queues)
        may_begin = (seq for seq in queues.waiting if not seq.awaits_token)
        waiting = (seq for seq in may_begin if captures_may or not seq.only_captures)
        candidates = [*prefills, *islice(waiting, _LOOKAHEAD)]
        # Preempted sequences, and overtaken inspections, rank before some that run.
        candidates.sort(key=lambda seq: seq.rank)
        return candidates

    def _schedule_prompts(self, step: StepPlan, candidates: Iterable[Sequence], budget: int) -> int:
        """Share `budget` tokens in order of rank, shorter prompts first if one would take all. Returns the rest."""
        rest = [seq for seq in candidates if seq.uid not in step.served]
        for place, seq in enumerate(rest):
            if not budget:
                break
            if seq.uid in step.served or not self._runs_or_is_admitted(step, seq, budget):
                continue
            step.served.add(seq.uid)
            if not seq.encoder_is_computed:
                budget = step.add_encode(seq, budget)
            num_left = seq.num_uncomputed_tokens
            if 1 < budget <= num_left:
                shorter = [
                    other
                    for other in rest[place + 1 :]
                    if 2 * other.num_uncomputed_tokens <= num_left and other.encoder_is_computed
                ]
                half = budget // 2
                budget -= half - self._schedule_prompts(step, shorter, half)
            budget -= step.add_chunk(seq, budget)
        return budget

    def _runs_or_is_admitted(self, step: StepPlan, seq: Sequence, budget: int) -> bool:
        """Return whether the sequence runs, after admitting it if there is room."""
        if seq.status is SequenceStatus.RUNNING:
            return True
        queues = self._queues_of(seq)
        if not step.is_open or (seq.only_captures and not self._captures_have_room(step, queues)):
            return False
        has_seat = len(queues.running) < self.config.max_num_seqs
        must_wait = not seq.encoder_is_computed and len(seq.encoder_token_ids) > budget and not step.is_whole
        # No sequence overtakes one that does not fit yet: it would wait forever behind smaller ones.
        if not has_seat or must_wait or not self._has_blocks(seq, step):
            step.is_open = False
            return False
        queues.waiting.discard(seq)
        queues.running.add(seq)
        self._round_robin.note_admitted(seq.rank)
        seq.status = SequenceStatus.RUNNING
        return True

    def _has_blocks(self, seq: Sequence, step: StepPlan) -> bool:
        """Give `seq` its blocks; batch rows give up theirs for it. Returns False if too few are free."""
        while not self._allocate_admitted(seq, step):
            if seq.is_background or not self._preempt_background():
                return False
        return True

    def _captures_have_room(self, step: StepPlan, queues: _Queues) -> bool:
        """Return whether one more inspection request may run: always without text; next to text, in up to a quarter of
        the slots and in steps that have tokens for it.
        """
        if step.capture_room == 0:
            return False
        if self.config.max_capture_tokens is None or not queues.num_texts:
            return True
        return sum(seq.only_captures for seq in queues.running) < max(1, self.config.max_num_seqs // 4)

    def _allocate_admitted(self, seq: Sequence, step: StepPlan) -> bool:
        """Give `seq` its blocks, some of them from the prefix cache. Returns False if too few are free."""
        blocks = self.block_manager
        seq.rotate_from(self.config.rotary_start(seq.num_tokens))
        caching = self.config.enable_prefix_caching
        num_hit_tokens = blocks.match_prefix(seq) if caching else 0
        part = blocks.match_part(seq, num_hit_tokens)
        # One block stays free for each running sequence that will grow; otherwise a preemption would follow soon.
        running = self._queues_of(seq).running
        keep_free = sum(
            1 for other in running if len(other.block_table) * blocks.block_size < other.max_num_computed_tokens
        )
        if not blocks.allocate(seq, seq.num_tokens, num_hit_tokens=num_hit_tokens, keep_free=keep_free):
            return False
        if part is not None:
            step.copies.append((part.block, seq.block_table[num_hit_tokens // blocks.block_size]))
        seq.num_computed_tokens = num_hit_tokens + (0 if part is None else part.num_tokens)
        # Counted as in vLLM: not after a preemption, and not where a capture rules out a hit. Only whole blocks count:
        # otherwise another client's prompt could be guessed token by token.
        if caching and not seq.num_preemptions and seq.first_needed_position:
            seq.num_cached_tokens = min(num_hit_tokens, seq.num_prompt_tokens)  # without forced tokens
            blocks.prefix_cache_queries += seq.num_prompt_tokens
            blocks.prefix_cache_hits += seq.num_cached_tokens
        return True
