"""What one step computes: a plan while the scheduler fills it, and the schedule that it becomes.

It counts tokens; it decides nothing, knows neither queues nor blocks, and needs the standard library only.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from server.engine.scheduling.capture_budget import StepWork
from server.engine.sequence import Chunk, Sequence


@dataclass(frozen=True, slots=True)
class Schedule:
    """The work of one step."""

    chunks: list[Chunk]
    num_tokens: int
    """Total tokens of the chunks and of what the encoder reads."""
    encodes: list[Sequence] = field(default_factory=list)
    """Sequences whose encoder part runs in this step, before the chunks."""
    has_text: bool = False
    """Text was being generated when it was chosen, so captures were bounded."""
    num_decodes: int = 0
    """Number of chunks that are one more token of a stream."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Blocks to be copied before it runs, each with the block that it is copied to, in this order."""

    @property
    def work(self) -> StepWork:
        """Return how much of it is text, and how much captures."""
        if self.num_tokens == self.num_decodes:
            return StepWork(self.num_tokens, 0, only_decodes=True)
        num_captures = sum(chunk.num_tokens for chunk in self.chunks if chunk.sequence.only_captures)
        num_captures += sum(len(seq.encoder_token_ids) for seq in self.encodes if seq.only_captures)
        decodes = all(chunk.num_tokens == 1 for chunk in self.chunks if not chunk.sequence.only_captures)
        return StepWork(self.num_tokens - num_captures, num_captures, decodes and not self.encodes)

    @property
    def sequences(self) -> list[Sequence]:
        """Return each sequence that has work in this step, once."""
        if not self.encodes:  # a sequence has one chunk at most
            return [chunk.sequence for chunk in self.chunks]
        found = {chunk.sequence.uid: chunk.sequence for chunk in self.chunks}
        return list((found | {seq.uid: seq for seq in self.encodes}).values())

    def of(self, uids: Collection[int]) -> "Schedule":
        """Return the work of these; `num_tokens` stays that of the whole step."""
        chunks = [chunk for chunk in self.chunks if chunk.sequence.uid in uids]
        return replace(self, chunks=chunks, encodes=[seq for seq in self.encodes if seq.uid in uids])

    def without(self, uids: Collection[int]) -> "Schedule":
        """Return the work of the others."""
        return self.of({seq.uid for seq in self.sequences if seq.uid not in uids}) if uids else self


@dataclass(slots=True)
class StepPlan:
    """A step while it is being filled."""

    chunks: list[Chunk]
    """At first those of the decodes."""
    capture_room: int | None
    """Tokens that captures may still have, or None if nothing bounds them."""
    encodes: list[Sequence] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """Uids of prompts that have been served in this step."""
    is_open: bool = True
    """Whether more sequences are admitted: False once one was refused for lack of a slot or of blocks."""
    is_whole: bool = True
    """Whether only decodes have taken from the budget so far."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Blocks of admitted sequences that begin as others do, as in `Schedule`."""

    def add_encode(self, seq: Sequence, budget: int) -> int:
        """Let the encoder read for `seq`, all at once. Returns what is left of the budget, in tokens."""
        num_encoded = len(seq.encoder_token_ids)
        self.encodes.append(seq)
        self.is_whole = False
        if seq.only_captures and self.capture_room is not None:
            self.capture_room = max(0, self.capture_room - num_encoded)
        return max(0, budget - num_encoded)

    def add_chunk(self, seq: Sequence, budget: int) -> int:
        """Give `seq` as many of its tokens as it may have. Returns how many these are."""
        num_tokens = min(seq.num_uncomputed_tokens, budget)
        if seq.only_captures and self.capture_room is not None:
            num_tokens = min(num_tokens, self.capture_room)
            self.capture_room -= num_tokens
        if num_tokens:
            self.is_whole = False
            self.chunks.append(Chunk(seq, seq.num_computed_tokens, num_tokens))
        return num_tokens

    def schedule(self, num_decodes: int, *, has_text: bool) -> Schedule:
        num_tokens = sum(chunk.num_tokens for chunk in self.chunks)
        num_tokens += sum(len(seq.encoder_token_ids) for seq in self.encodes)
        return Schedule(self.chunks, num_tokens, self.encodes, has_text, num_decodes, self.copies)
