"""Which tokens the next step computes: continuous batching with chunked prefill and preemption by recompute.

Decides and keeps the books; never sees a tensor, a clock or a socket. Standard library only.

Every sequence has a rank, and rank decides everything: first the request's priority (lower is earlier, the default is
0), then the turn of its client (clients take turns, one sequence each a round, so nobody's queue holds up another's
first request), then the order of arrival.

- A step gives one token to every running sequence that has only the one left that it wrote last (decode), and the rest
  of its token budget to prompts, running and waiting, in the order of rank. Beside decodes these are as many tokens as
  `schedule` is told for so many streams and prompts, so that neither a long prompt nor many stall running streams.
- A prompt may be overtaken by those at most half as long as what is left of it. Together they get at most half of the
  tokens that it would have had, shared by the same rule. So a short prompt does not wait until a long one is read, and
  the first in line gets at least half of what a step has for prompts: it needs at most twice the steps, and then the
  next one is the first.
- Seats and blocks are given in the order of rank, and nobody is admitted past a sequence that does not fit yet.
- While text is being generated, what only looks inside (traces, attention, lenses, head scores) gets as many tokens of
  a step as `schedule` is told, and a quarter of the seats; text overtakes the looks that wait for more. So neither one
  client that looks without pause nor a flood of looks takes the streams' time, and looks still end in their order.
- What an encoder reads is never split: it runs in the step that admits its sequence, in which its tokens count like
  any others. More tokens than a whole budget run where they are the first to be given any after the decodes. So a look
  at an encoder may make one step of the streams longer, by a pass over all that it reads; while text is being
  generated it begins only in a step that has tokens left for looks, and takes them all.
- A sequence gets the blocks of all its known tokens at admission, also those of the encoder's output, so only growth
  by generation can run out of blocks. Then the last running in rank is preempted: it gives up its blocks, waits again
  in its old rank, and is computed again.
- Nobody who arrives ranks before a sequence of the same priority that has run, and the first in rank is never preempted
  for another, and `add` refuses what could not finish alone. So every step makes progress, and everything ends, unless
  earlier priorities keep coming for ever.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice

from server.engine.outputs import FinishReason
from server.engine.scheduling.block_manager import BlockManager
from server.engine.scheduling.capture_budget import StepWork
from server.engine.scheduling.fair_queue import FairQueue, RoundRobin
from server.engine.scheduling.prompt_budget import PromptBound
from server.engine.sequence import Chunk, Sequence, SequenceStatus

__all__ = ["Chunk", "Schedule", "Scheduler", "SchedulerConfig"]

_LOOKAHEAD = 128
"""Most waiting sequences that one step considers: the rest is too far behind to be admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step.

    Raises:
        ValueError: a limit is below 1, or the token budget cannot give each sequence its token.
    """

    max_num_seqs: int = 64
    """Most sequences running at once."""
    max_num_batched_tokens: int = 2048
    """The token budget of a step."""
    max_capture_tokens: int | None = None
    """Of that budget, for all that only looks inside while tokens are generated; None is no such bound."""
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.max_capture_tokens is not None and self.max_capture_tokens < 1:
            raise ValueError(f"max_capture_tokens is {self.max_capture_tokens}; at least 1 is needed")
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}; at least 1 is needed")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence gets a token in every step"
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The work of one step."""

    chunks: list[Chunk]
    num_tokens: int
    """The sum over the chunks and over what the encoder reads."""
    encodes: list[Sequence] = field(default_factory=list)
    """Whose encoder part runs in this step, before the chunks."""
    has_text: bool = False
    """Text was being generated when it was chosen, so looks were bounded."""
    num_decodes: int = 0
    """Chunks that are one more token of a stream."""

    @property
    def work(self) -> StepWork:
        """How much of it is text, and how much looks."""
        if self.num_tokens == self.num_decodes:
            return StepWork(self.num_tokens, 0, only_decodes=True)
        hooks = sum(chunk.num_tokens for chunk in self.chunks if chunk.sequence.only_captures)
        hooks += sum(len(seq.encoder_token_ids) for seq in self.encodes if seq.only_captures)
        decodes = all(chunk.num_tokens == 1 for chunk in self.chunks if not chunk.sequence.only_captures)
        return StepWork(self.num_tokens - hooks, hooks, decodes and not self.encodes)

    @property
    def sequences(self) -> list[Sequence]:
        """Each sequence that has work in this step, once."""
        if not self.encodes:  # a sequence has one chunk at most
            return [chunk.sequence for chunk in self.chunks]
        found = {chunk.sequence.uid: chunk.sequence for chunk in self.chunks}
        return list((found | {seq.uid: seq for seq in self.encodes}).values())

    def of(self, uids: Collection[int]) -> "Schedule":
        """The work of these; `num_tokens` stays that of the whole step."""
        chunks = [chunk for chunk in self.chunks if chunk.sequence.uid in uids]
        return replace(self, chunks=chunks, encodes=[seq for seq in self.encodes if seq.uid in uids])

    def without(self, uids: Collection[int]) -> "Schedule":
        """The work of the others."""
        return self.of({seq.uid for seq in self.sequences if seq.uid not in uids}) if uids else self


@dataclass(slots=True)
class _StepPlan:
    """A step while it is being filled."""

    chunks: list[Chunk]
    capture_room: int | None
    """Tokens that looks may still have; None where nothing bounds them."""
    encodes: list[Sequence] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """Uids of prompts that had their turn in this step."""
    is_open: bool = True
    """No one was turned away yet, for want of a seat or of blocks: until then others are admitted."""
    is_whole: bool = True
    """Only decodes have taken from the budget yet."""


class Scheduler:
    """The queues. One step is `schedule`, the forward pass, `commit`; `add` and `abort` come between steps."""

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager) -> None:
        self.config = config
        self.block_manager = block_manager
        self.num_preemptions = 0
        self._running = FairQueue()
        self._waiting = FairQueue()
        self._round_robin = RoundRobin()
        self._deadlines: list[tuple[float, int]] = []
        self._num_texts = 0
        """Unfinished sequences that generate."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(len(self._running) or len(self._waiting))

    @property
    def sequences(self) -> list[Sequence]:
        """Every unfinished sequence, those that run first, each kind in order of rank."""
        return [*self._running, *self._waiting]

    def get(self, uid: int) -> Sequence | None:
        """The unfinished sequence of that name, if there is one."""
        return self._running.get(uid) or self._waiting.get(uid)

    def add(self, seq: Sequence) -> None:
        """Queue `seq` behind what its client has queued, and rank it among the others.

        Raises:
            ValueError: it could not fit into an empty cache, or its uid is in use.
        """
        if self.get(seq.uid) is not None:
            raise ValueError(f"request uid {seq.uid} is already in use")
        blocks = self.block_manager
        num_needed = blocks.num_blocks_for(seq.max_num_computed_tokens) + blocks.num_blocks_for(seq.num_cross_tokens)
        if num_needed > blocks.num_usable_blocks:
            num_tokens = seq.max_num_computed_tokens + seq.num_cross_tokens
            raise ValueError(
                f"the request needs room for {num_tokens} tokens ({num_needed} blocks of "
                f"{blocks.block_size}), but the KV cache holds {blocks.num_usable_blocks * blocks.block_size} tokens "
                f"({blocks.num_usable_blocks} blocks); shorten the prompt or max_tokens, or enlarge the cache"
            )
        seq.rank = self._round_robin.rank(seq.request.priority, seq.request.client, self._waiting)
        self._waiting.add(seq)
        self._num_texts += seq.sampling_params is not None
        if seq.request.deadline is not None:
            heappush(self._deadlines, (seq.request.deadline, seq.uid))
            if len(self._deadlines) > 2 * (self.num_running + self.num_waiting) + _LOOKAHEAD:
                self._forget_deadlines_of_ended()

    def abort(self, uid: int, reason: FinishReason = "abort") -> Sequence | None:
        """End a sequence early and free its blocks at once. None when there is no such sequence (any more)."""
        seq = self.get(uid)
        if seq is not None:
            self.finish(seq, reason)
        return seq

    def expired(self, now: float) -> list[Sequence]:
        """End every sequence whose deadline is at or before `now` (CLOCK_MONOTONIC seconds) and return them."""
        ended: list[Sequence] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, uid = heappop(self._deadlines)
            seq = self.get(uid)
            if seq is not None and seq.request.deadline == deadline:
                self.finish(seq, "deadline")
                ended.append(seq)
        return ended

    @property
    def next_deadline(self) -> float | None:
        """No unfinished sequence's is earlier (CLOCK_MONOTONIC seconds); None where none has one."""
        return self._deadlines[0][0] if self._deadlines else None

    def _forget_deadlines_of_ended(self) -> None:
        """A finished request leaves its entry behind, and its uid may since name another with another deadline. Under
        load that never ends they would gather.
        """
        live = ((seq.request.deadline, seq.uid) for seq in self.sequences)
        self._deadlines = [(deadline, uid) for deadline, uid in live if deadline is not None]
        heapify(self._deadlines)

    def finish(self, seq: Sequence, reason: FinishReason = "done") -> None:
        """Take `seq` out of its queue and free its blocks at once. A finished sequence keeps its first reason."""
        if seq.status is SequenceStatus.FINISHED:
            return
        self._running.discard(seq)
        self._waiting.discard(seq)
        self._num_texts -= seq.sampling_params is not None
        self.block_manager.free(seq)
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        if not self.has_work:
            self._deadlines.clear()
            self._round_robin.forget()

    def schedule(self, capture_tokens: int | None = None, prompt_tokens: PromptBound | None = None) -> Schedule:
        """Choose the next step's chunks and reserve their blocks. Never empty while there is work.

        capture_tokens: most tokens of captures, should text run in this step; None is `max_capture_tokens`.
        prompt_tokens: tells the most tokens of prompts beside decodes; None is no such bound.
        """
        chunks, prefills = self._schedule_decodes()
        num_decodes = len(chunks)
        has_text = num_decodes > 0 or any(seq.sampling_params is not None for seq in prefills)
        allowed = self.config.max_capture_tokens if capture_tokens is None else capture_tokens
        step = _StepPlan(chunks, allowed if has_text else None)
        budget = self.config.max_num_batched_tokens - num_decodes
        line = self._line(step, prefills) if budget else []
        if num_decodes and prompt_tokens is not None:
            bound = prompt_tokens(num_decodes, sum(not seq.only_captures for seq in line))
            budget = budget if bound is None else min(budget, bound)
        self._share(step, line, budget)
        num_tokens = sum(chunk.num_tokens for chunk in chunks) + sum(len(seq.encoder_token_ids) for seq in step.encodes)
        return Schedule(chunks, num_tokens, step.encodes, has_text, num_decodes)

    def commit(self, schedule: Schedule, new_tokens: Mapping[int, int]) -> list[Sequence]:
        """Book a step that has run.

        Advances the sequences, appends their sampled tokens, publishes full blocks, and ends what is complete (its
        blocks are free when this returns). Chunks of sequences that were finished since `schedule` are passed over.

        Args:
            schedule: what `schedule()` returned.
            new_tokens: the sampled token of each sequence, by uid, for exactly the chunks that need one.

        Returns:
            The sequences that this step completed, each with its `finish_reason`.

        Raises:
            ValueError: a chunk that needs a sample has no token, or one has a token that it does not need.
        """
        for seq in schedule.encodes:
            seq.encoder_is_computed = seq.encoder_is_captured = True
        ended = [seq for seq in schedule.encodes if not seq.token_ids and seq.status is SequenceStatus.RUNNING]
        for seq in ended:
            self.finish(seq)
        publishing = self.config.enable_prefix_caching
        block_size = self.block_manager.block_size
        for chunk in schedule.chunks:
            seq, start, num_tokens = chunk
            if seq.status is not SequenceStatus.RUNNING:
                continue
            token = new_tokens.get(seq.uid)
            if (token is None) is seq.needs_sample(chunk):
                raise ValueError(f"{seq}: sampled token {token}, needs_sample {seq.needs_sample(chunk)}")
            end = start + num_tokens
            seq.num_computed_tokens = end
            seq.captured_upto = max(seq.captured_upto, end)
            if publishing and end // block_size > seq.num_published_blocks:
                self.block_manager.publish(seq)
            if token is not None:
                seq.token_ids.append(token)
            reason = seq.completion()
            if reason is not None:
                self.finish(seq, reason)
                ended.append(seq)
        return ended

    def check_integrity(self) -> None:
        """Check the queues, and the blocks against them. Raises AssertionError with the facts."""
        self.block_manager.check_integrity(self.sequences)
        wrong = [seq for seq in self._running if seq.status is not SequenceStatus.RUNNING]
        wrong += [seq for seq in self._waiting if seq.status is not SequenceStatus.WAITING or seq.block_table]
        if wrong:
            raise AssertionError(f"in a queue where they do not belong: {wrong}")
        num_texts = sum(seq.sampling_params is not None for seq in self.sequences)
        if num_texts != self._num_texts:
            raise AssertionError(f"{num_texts} sequences generate, but {self._num_texts} are counted")
        if self._deadlines and not self.has_work:
            raise AssertionError(f"deadlines of nobody: {self._deadlines}")

    def _schedule_decodes(self) -> tuple[list[Chunk], list[Sequence]]:
        """One token for each running sequence that has only its newest left; the others are returned as prefills."""
        chunks: list[Chunk] = []
        prefills: list[Sequence] = []
        block_size = self.block_manager.block_size
        for seq in list(self._running):
            if seq.status is not SequenceStatus.RUNNING:
                break  # preempted for one before it, and so is all that follows
            num_tokens = len(seq.token_ids)
            # A prompt's last token is no decode: it counts in what those who overtake may take together.
            if num_tokens - seq.num_computed_tokens > 1 or num_tokens == seq.num_prompt_tokens:
                prefills.append(seq)
            elif len(seq.block_table) * block_size >= num_tokens or self._grow(seq, num_tokens):
                chunks.append(Chunk(seq, num_tokens - 1, 1))
        return chunks, prefills

    def _grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Get `seq` its next block, by preempting those after it if need be. False when `seq` itself had to go."""
        while not self.block_manager.allocate(seq, num_tokens):
            last = self._running.pop_last()
            self._preempt(last)
            if last is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.block_manager.free(seq)
        seq.num_computed_tokens = 0
        seq.encoder_is_computed = not seq.encoder_token_ids
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self._waiting.add(seq)
        self.num_preemptions += 1

    def _line(self, step: _StepPlan, prefills: list[Sequence]) -> list[Sequence]:
        """Who may have tokens of this step after the decodes, in order of rank."""
        if not len(self._waiting) or len(self._running) >= self.config.max_num_seqs:
            return prefills
        captures_may = self._captures_have_room(step)
        waiting = (seq for seq in self._waiting if captures_may or not seq.only_captures)
        line = [*prefills, *islice(waiting, _LOOKAHEAD)]
        line.sort(key=lambda seq: seq.rank)  # preempted ones, and overtaken looks, rank before some that run
        return line

    def _share(self, step: _StepPlan, line: Iterable[Sequence], budget: int) -> int:
        """Hand out `budget` tokens in the order of the line, to the shorter ones first where one would take all; what
        is left.
        """
        rest = [seq for seq in line if seq.uid not in step.served]
        for place, seq in enumerate(rest):
            if not budget:
                break
            if seq.uid in step.served or not self._takes_part(step, seq, budget):
                continue
            step.served.add(seq.uid)
            if not seq.encoder_is_computed:
                budget = self._append_encode(step, seq, budget)
            num_left = seq.num_uncomputed_tokens
            if 1 < budget <= num_left:
                shorter = [
                    other
                    for other in rest[place + 1 :]
                    if 2 * other.num_uncomputed_tokens <= num_left and other.encoder_is_computed
                ]
                half = budget // 2
                budget -= half - self._share(step, shorter, half)
            budget -= self._append_chunk(step, seq, budget)
        return budget

    def _takes_part(self, step: _StepPlan, seq: Sequence, budget: int) -> bool:
        """Whether it runs, or is admitted now."""
        if seq.status is SequenceStatus.RUNNING:
            return True
        if not step.is_open or (seq.only_captures and not self._captures_have_room(step)):
            return False
        has_seat = len(self._running) < self.config.max_num_seqs
        must_wait = not seq.encoder_is_computed and len(seq.encoder_token_ids) > budget and not step.is_whole
        # No one overtakes a sequence that does not fit yet: it would wait for ever behind smaller ones.
        if not has_seat or must_wait or not self._allocate_admitted(seq):
            step.is_open = False
            return False
        self._waiting.discard(seq)
        self._running.add(seq)
        self._round_robin.note_admitted(seq.rank)
        seq.status = SequenceStatus.RUNNING
        return True

    def _captures_have_room(self, step: _StepPlan) -> bool:
        """Whether one more look may run: always where no text is wanted, else up to a quarter of the seats, and not in
        a step that has no tokens for it.
        """
        if step.capture_room == 0:
            return False
        if self.config.max_capture_tokens is None or not self._num_texts:
            return True
        return sum(seq.only_captures for seq in self._running) < max(1, self.config.max_num_seqs // 4)

    def _allocate_admitted(self, seq: Sequence) -> bool:
        blocks = self.block_manager
        caching = self.config.enable_prefix_caching
        num_hit_tokens = blocks.match_prefix(seq) if caching else 0
        # One block stays free for each running sequence that has yet to grow, or an admission would soon be undone.
        keep_free = sum(
            1 for other in self._running if len(other.block_table) * blocks.block_size < other.max_num_computed_tokens
        )
        if not blocks.allocate(seq, seq.num_tokens, num_hit_tokens=num_hit_tokens, keep_free=keep_free):
            return False
        seq.num_computed_tokens = num_hit_tokens
        # Counted as vLLM counts: not again after a preemption, and not where a capture leaves nothing to look up.
        if caching and not seq.num_preemptions and seq.first_needed_position:
            blocks.prefix_cache_queries += seq.num_tokens
            blocks.prefix_cache_hits += num_hit_tokens
            seq.num_cached_tokens = num_hit_tokens
        return True

    def _append_encode(self, step: _StepPlan, seq: Sequence, budget: int) -> int:
        """Let the encoder read for `seq`, all at once; what is left of the budget."""
        num_encoded = len(seq.encoder_token_ids)
        step.encodes.append(seq)
        step.is_whole = False
        if seq.only_captures and step.capture_room is not None:
            step.capture_room = max(0, step.capture_room - num_encoded)
        return max(0, budget - num_encoded)

    def _append_chunk(self, step: _StepPlan, seq: Sequence, budget: int) -> int:
        """Give `seq` as many of its tokens as it may have; how many these are."""
        num_tokens = min(seq.num_uncomputed_tokens, budget)
        if seq.only_captures and step.capture_room is not None:
            num_tokens = min(num_tokens, step.capture_room)
            step.capture_room -= num_tokens
        if num_tokens:
            step.is_whole = False
            step.chunks.append(Chunk(seq, seq.num_computed_tokens, num_tokens))
        return num_tokens
