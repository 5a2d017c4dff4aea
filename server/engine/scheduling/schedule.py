"""The work of one step: a plan while the scheduler fills it, then a schedule. It counts tokens and decides nothing."""

from collections.abc import Collection, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field, replace

from lightwell.server.engine.scheduling.capture_budget import StepWork
from lightwell.server.engine.scheduling.steady_rows import SteadyRows
from lightwell.server.engine.sequence import NO_STATES, UNKNOWN, Chunk, Sequence, SequenceStatus


@dataclass(frozen=True, slots=True)
class Schedule:
    """The work of one step."""

    chunks: list[Chunk]
    num_tokens: int
    """Tokens of the chunks and of the encoder's inputs."""
    encodes: list[Sequence] = field(default_factory=list)
    """Sequences with an encoder input that runs in this step, before the chunks."""
    has_text: bool = False
    """Whether text is being generated, so that captures are bounded."""
    num_decodes: int = 0
    """Number of chunks that continue a generated text."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (source, target) of blocks to copy before the step, in this order."""
    is_background: bool = False
    """True for a step with rows of batches only."""
    rows: SteadyRows | None = None
    """The rows of the chunks, if all of these were steady when the step was scheduled."""

    @property
    def is_steady(self) -> bool:
        """Return whether the chunks are still steady rows."""
        return self.rows is not None and self.rows.is_live

    @property
    def work(self) -> StepWork:
        """Return the step's tokens of text and of captures."""
        if self.num_tokens == self.num_decodes:
            return StepWork(self.num_tokens, 0, only_decodes=True)
        num_captures = sum(chunk.num_tokens for chunk in self.chunks if chunk.sequence.only_captures)
        num_captures += sum(len(seq.encoder_token_ids) for seq in self.encodes if seq.only_captures)
        decodes = all(chunk.num_tokens == 1 for chunk in self.chunks if not chunk.sequence.only_captures)
        return StepWork(self.num_tokens - num_captures, num_captures, decodes and not self.encodes)

    @property
    def num_following(self) -> int:
        """Return the number of tokens after the first of each decode: forced tokens and drafts."""
        if self.num_tokens == self.num_decodes:
            return 0
        return sum([chunk.num_tokens for chunk in self.chunks[: self.num_decodes]]) - self.num_decodes

    @property
    def num_drafts(self) -> int:
        return sum([len(chunk.drafts) for chunk in self.chunks]) if self.num_following else 0

    def num_accepted(self, tokens: Mapping[int, ReadOnlySequence[int]]) -> int:
        """Return the number of drafts that are right. tokens: the chosen tokens of each sequence, by uid."""
        if not self.num_following:
            return 0
        return sum([len(tokens.get(chunk.sequence.uid, (0,))) - 1 for chunk in self.chunks if chunk.drafts])

    @property
    def sequences(self) -> list[Sequence]:
        """Return each sequence that has work in this step, once."""
        if self.rows is not None:
            return self.rows.sequences
        if not self.encodes:  # a sequence has one chunk at most
            return [chunk.sequence for chunk in self.chunks]
        found = {chunk.sequence.uid: chunk.sequence for chunk in self.chunks}
        return list((found | {seq.uid: seq for seq in self.encodes}).values())

    def of(self, uids: Collection[int]) -> "Schedule":
        """Return the work of these sequences; `num_tokens` is still the whole step's."""
        if self.rows is not None:
            self.rows.leave()
        chunks = [chunk for chunk in self.chunks if chunk.sequence.uid in uids]
        return replace(self, rows=None, chunks=chunks, encodes=[seq for seq in self.encodes if seq.uid in uids])

    def without(self, uids: Collection[int]) -> "Schedule":
        """Return the work of the other sequences."""
        return self.of({seq.uid for seq in self.sequences if seq.uid not in uids}) if uids else self

    def advance(self) -> None:
        """Count the step's positions as computed when it begins, so that the next step can be scheduled: each sequence
        that samples gets an unknown token, which the end of the step replaces.
        """
        if self.rows is not None and self.rows.is_live:
            self.rows.advance()
            return
        for seq in self.encodes:
            seq.encoder_is_computed = seq.encoder_is_captured = True
        for chunk in self.chunks:
            seq = chunk.sequence
            if seq.status is not SequenceStatus.RUNNING:
                continue
            end = chunk.start + chunk.num_tokens - len(chunk.drafts)
            seq.num_computed_tokens = end
            if seq.states is not NO_STATES:
                seq.states = seq.states[1], seq.states[0]  # the next step reads the states that this one writes
            seq.captured_upto = max(seq.captured_upto, end)
            if end == len(seq.token_ids) < seq.max_num_tokens:
                seq.token_ids.append(UNKNOWN)
                seq.awaits_token = True

    def retreat(self) -> None:
        """Undo `advance` for a step without a result. Nothing may have been scheduled after it."""
        if self.rows is not None:
            self.rows.leave()
        for chunk in self.chunks:
            seq = chunk.sequence
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens = chunk.start
                seq.states = seq.states[1], seq.states[0]
            if seq.status is not SequenceStatus.FINISHED and seq.awaits_token:
                seq.token_ids.pop()
                seq.awaits_token = False


@dataclass(slots=True)
class StepPlan:
    """A step while it is being filled."""

    chunks: list[Chunk]
    """The chunks of the step; at first only the decodes'."""
    capture_room: int | None
    """Tokens that captures may still have, or None without a bound."""
    encodes: list[Sequence] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """Uids of the prompts that have their part of this step."""
    is_open: bool = True
    """Whether the step admits more sequences: False once one found no slot or no blocks."""
    is_whole: bool = True
    """Whether only decodes have taken from the budget so far."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """As in `Schedule`."""

    def add_encode(self, seq: Sequence, budget: int) -> int:
        """Add the whole encoder input of `seq`. Returns the rest of the budget, in tokens."""
        num_encoded = len(seq.encoder_token_ids)
        self.encodes.append(seq)
        self.is_whole = False
        if seq.only_captures and self.capture_room is not None:
            self.capture_room = max(0, self.capture_room - num_encoded)
        return max(0, budget - num_encoded)

    def add_chunk(self, seq: Sequence, budget: int) -> int:
        """Add as many tokens of `seq` as the budget permits. Returns their number."""
        num_tokens = min(seq.num_uncomputed_tokens, budget)
        if seq.only_captures and self.capture_room is not None:
            num_tokens = min(num_tokens, self.capture_room)
            self.capture_room -= num_tokens
        if num_tokens:
            self.is_whole = False
            self.chunks.append(Chunk(seq, seq.num_computed_tokens, num_tokens))
        return num_tokens

    def schedule(self, num_decodes: int, *, has_text: bool, is_background: bool = False) -> Schedule:
        num_tokens = sum([chunk.num_tokens for chunk in self.chunks])
        num_tokens += sum(len(seq.encoder_token_ids) for seq in self.encodes)
        return Schedule(self.chunks, num_tokens, self.encodes, has_text, num_decodes, self.copies, is_background)
