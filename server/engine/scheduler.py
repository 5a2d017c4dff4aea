"""Which tokens the next step computes: continuous batching with chunked prefill and preemption by recompute.

Decides and keeps the books; never sees a tensor, a clock or a socket. Standard library only.

The order of arrival is the order of priority, always:

- `running` and `waiting` are each ordered by arrival, and everything running arrived before everything waiting, but for
  the looks that text has overtaken (below).
- A step gives one token to every running sequence that has just one left (decode), then the rest of its token budget
  to running prefills, then to new admissions, each first come, first served. So a long prompt never stalls running
  streams.
- While text is being generated, what only looks inside (traces, attention, lenses, head scores) gets as many tokens of
  a step as `schedule` is told, and a quarter of the seats; text overtakes the looks that wait for more. So neither one
  client that looks without pause nor a flood of looks takes the streams' time, and looks still end in their order.
- What an encoder reads is never split: it runs in the step that admits its sequence, in which its tokens count like
  any others. More tokens than a whole budget run where they are the first to be given any after the decodes. So a look
  at an encoder may make one step of the streams longer, by a pass over all that it reads; while text is being
  generated it begins only in a step that has tokens left for looks, and takes them all.
- A sequence gets the blocks of all its known tokens at admission, also those of the encoder's output, so only growth
  by generation can run out of blocks. Then the latest arrival is preempted: it gives up its blocks, goes to the front
  of `waiting`, and is computed again.
- The oldest sequence is never preempted for another, and `add` refuses what could not finish alone, so every step makes
  progress and everything ends.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from server.engine.block_manager import BlockManager
from server.engine.look_budget import StepWork
from server.engine.outputs import FinishReason
from server.engine.sequence import Chunk, Sequence, SequenceStatus

__all__ = ["Chunk", "Schedule", "Scheduler", "SchedulerConfig"]


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
    max_look_tokens: int | None = None
    """Of that budget, for all that only looks inside while tokens are generated; None is no such bound."""
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.max_look_tokens is not None and self.max_look_tokens < 1:
            raise ValueError(f"max_look_tokens is {self.max_look_tokens}; at least 1 is needed")
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}; at least 1 is needed")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence gets a token in every step"
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The work of one step, in order of priority."""

    chunks: list[Chunk]
    num_tokens: int
    """The sum over the chunks and over what the encoder reads."""
    encodes: list[Sequence] = field(default_factory=list)
    """Whose encoder part runs in this step, before the chunks."""
    has_text: bool = False
    """Text was being generated when it was chosen, so looks were bounded."""

    @property
    def work(self) -> StepWork:
        """How much of it is text, and how much looks."""
        looks = sum(chunk.num_tokens for chunk in self.chunks if chunk.sequence.only_looks)
        looks += sum(len(seq.encoder_token_ids) for seq in self.encodes if seq.only_looks)
        decodes = all(chunk.num_tokens == 1 for chunk in self.chunks if not chunk.sequence.only_looks)
        return StepWork(self.num_tokens - looks, looks, decodes and not self.encodes)

    @property
    def sequences(self) -> list[Sequence]:
        """Each sequence that has work in this step, once."""
        found = {chunk.sequence.uid: chunk.sequence for chunk in self.chunks}
        return list((found | {seq.uid: seq for seq in self.encodes}).values())


class Scheduler:
    """The queues. One step is `schedule`, the forward pass, `commit`; `add` and `abort` come between steps."""

    def __init__(self, config: SchedulerConfig, block_manager: BlockManager) -> None:
        self.config = config
        self.block_manager = block_manager
        self.num_preemptions = 0
        self._running: OrderedDict[int, Sequence] = OrderedDict()
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._deadlines: list[tuple[float, int]] = []
        self._num_texts = 0
        """Unfinished sequences that generate."""
        self._look_room: int | None = None
        """What is left of `max_look_tokens` in the step that is being scheduled; None where nothing bounds it."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def sequences(self) -> list[Sequence]:
        """Every unfinished sequence in order of arrival."""
        return [*self._running.values(), *self._waiting.values()]

    def get(self, uid: int) -> Sequence | None:
        """The unfinished sequence of that name, if there is one."""
        return self._running.get(uid) or self._waiting.get(uid)

    def add(self, seq: Sequence) -> None:
        """Queue `seq` behind everything that came before.

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
        self._waiting[seq.uid] = seq
        self._num_texts += seq.sampling_params is not None
        if seq.request.deadline is not None:
            heappush(self._deadlines, (seq.request.deadline, seq.uid))

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
            # A finished request leaves its entry behind, and its uid may since name another with another deadline.
            if seq is not None and seq.request.deadline == deadline:
                self.finish(seq, "deadline")
                ended.append(seq)
        return ended

    def finish(self, seq: Sequence, reason: FinishReason = "done") -> None:
        """Take `seq` out of its queue and free its blocks at once. A finished sequence keeps its first reason."""
        if seq.status is SequenceStatus.FINISHED:
            return
        self._running.pop(seq.uid, None)
        self._waiting.pop(seq.uid, None)
        self._num_texts -= seq.sampling_params is not None
        self.block_manager.free(seq)
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        if not self.has_work:
            self._deadlines.clear()

    def schedule(self, look_tokens: int | None = None) -> Schedule:
        """Choose the next step's chunks and reserve their blocks. Never empty while there is work.

        look_tokens: most tokens of looks, should text run in this step; None is `max_look_tokens`.
        """
        chunks, prefills = self._schedule_decodes()
        running = [*(chunk.sequence for chunk in chunks), *prefills]
        has_text = any(seq.sampling_params is not None for seq in running)
        allowed = self.config.max_look_tokens if look_tokens is None else look_tokens
        self._look_room = allowed if has_text else None
        whole = budget = self.config.max_num_batched_tokens - len(chunks)
        for seq in prefills:
            if not budget:
                break
            budget -= self._append_chunk(chunks, seq, budget)
        encodes = self._admit(chunks, budget, budget == whole)
        num_tokens = sum(chunk.num_tokens for chunk in chunks) + sum(len(seq.encoder_token_ids) for seq in encodes)
        return Schedule(chunks, num_tokens, encodes, has_text)

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
        """Check the blocks against the queues. Raises AssertionError with the facts."""
        self.block_manager.check_integrity(self.sequences)

    def _schedule_decodes(self) -> tuple[list[Chunk], list[Sequence]]:
        """One token for each running sequence that has one left; the others are returned as prefills."""
        chunks: list[Chunk] = []
        prefills: list[Sequence] = []
        block_size = self.block_manager.block_size
        for seq in list(self._running.values()):
            if seq.status is not SequenceStatus.RUNNING:
                break  # preempted by one before it, and so is all that follows
            num_tokens = len(seq.token_ids)
            if num_tokens - seq.num_computed_tokens > 1:
                prefills.append(seq)
            elif len(seq.block_table) * block_size >= num_tokens or self._grow(seq, num_tokens):
                chunks.append(Chunk(seq, num_tokens - 1, 1))
        return chunks, prefills

    def _grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Get `seq` its next block, by preempting later arrivals if need be. False when `seq` itself had to go."""
        while not self.block_manager.allocate(seq, num_tokens):
            _, latest = self._running.popitem()
            self._preempt(latest)
            if latest is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.block_manager.free(seq)
        seq.num_computed_tokens = 0
        seq.encoder_is_computed = not seq.encoder_token_ids
        seq.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self._waiting[seq.uid] = seq
        self._waiting.move_to_end(seq.uid, last=False)
        self.num_preemptions += 1

    def _admit(self, chunks: list[Chunk], budget: int, is_whole: bool) -> list[Sequence]:
        """Let in waiting sequences, oldest first, while budget, seats and blocks allow. `is_whole`: only decodes have
        taken from the budget yet. Returns whose encoder part runs.
        """
        encodes: list[Sequence] = []
        while budget and len(self._running) < self.config.max_num_seqs:
            seq = self._next_waiting()
            if seq is None:
                break
            num_encoded = 0 if seq.encoder_is_computed else len(seq.encoder_token_ids)
            # No one overtakes a sequence that does not fit yet: it would wait for ever behind smaller ones.
            if (num_encoded > budget and not is_whole) or not self._allocate_admitted(seq):
                break
            del self._waiting[seq.uid]
            self._running[seq.uid] = seq
            seq.status = SequenceStatus.RUNNING
            is_whole = False
            if num_encoded:
                encodes.append(seq)
                budget = max(0, budget - num_encoded)
                if seq.only_looks and self._look_room is not None:
                    self._look_room = max(0, self._look_room - num_encoded)
            if budget and seq.num_uncomputed_tokens:
                budget -= self._append_chunk(chunks, seq, budget)
        return encodes

    def _next_waiting(self) -> Sequence | None:
        """The oldest that may come in; while looks have all the seats they may, the oldest that does not only look."""
        seq = next(iter(self._waiting.values()), None)
        if seq is None or not seq.only_looks or self._looks_have_room():
            return seq
        return next((other for other in self._waiting.values() if not other.only_looks), None)

    def _looks_have_room(self) -> bool:
        """Whether one more look may run: always where no text is wanted, else up to a quarter of the seats, and not in
        a step that has no tokens for it.
        """
        if self._look_room == 0:
            return False
        if self.config.max_look_tokens is None or not self._num_texts:
            return True
        return sum(seq.only_looks for seq in self._running.values()) < max(1, self.config.max_num_seqs // 4)

    def _allocate_admitted(self, seq: Sequence) -> bool:
        blocks = self.block_manager
        caching = self.config.enable_prefix_caching
        num_hit_tokens = blocks.match_prefix(seq) if caching else 0
        # One block stays free for each running sequence that has yet to grow, or an admission would soon be undone.
        keep_free = sum(
            1
            for other in self._running.values()
            if len(other.block_table) * blocks.block_size < other.max_num_computed_tokens
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

    def _append_chunk(self, chunks: list[Chunk], seq: Sequence, budget: int) -> int:
        num_tokens = min(seq.num_uncomputed_tokens, budget)
        if seq.only_looks and self._look_room is not None:
            num_tokens = min(num_tokens, self._look_room)
            self._look_room -= num_tokens
        if num_tokens:
            chunks.append(Chunk(seq, seq.num_computed_tokens, num_tokens))
        return num_tokens
