"""Holds the state of one request in the engine: its tokens, how many of them are computed, and where their K/V are
stored.

A sequence has up to two parts. What an encoder reads is computed first, whole, in one step. What a decoder reads and
writes is computed in chunks, with K/V in the cache; in an encoder-decoder it also sees the encoder's output, whose K/V
are stored in separate blocks. It knows nothing of tensors, of which sequences own blocks, or of other sequences.
Standard library only.
"""

from array import array
from bisect import bisect_left
from enum import Enum
from typing import NamedTuple

from server.engine.base_task import Stacks
from server.engine.grammar import Grammar
from server.engine.outputs import FinishReason
from server.engine.request import AttentionCapture, EngineRequest, GenerateTask, Task
from server.engine.required_layers import NOT_AT_ALL, required_depths
from server.engine.sampling_params import SamplingParams

UNKNOWN = -1
"""A token that a step which still runs will choose."""


NO_STATES = (0, 0)
"""The states of a sequence that has none, or whose network keeps none."""


MOST_FORCED = 64
"""Most tokens that a sequence takes at a time without a step for each."""


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Rank(NamedTuple):
    """The order in which sequences are served, smallest first."""

    priority: int
    turn: int
    """The client's round; clients of one priority are served round robin."""
    arrival: int


class Sequence:
    """The state of one request. Only the scheduler and the block manager change it.

    Positions are absolute: position p is the p-th token of prompt + generated, from 0. Positions below
    `num_computed_tokens` have their K/V in the cache; `block_table[p // block_size]` is the block that holds p.
    """

    __slots__ = (
        "_captured_positions",
        "adapter",
        "block_hashes",
        "block_table",
        "captured_upto",
        "cross_block_table",
        "encoder_is_captured",
        "encoder_is_computed",
        "encoder_token_ids",
        "finish_reason",
        "first_forced",
        "forced",
        "grammar",
        "is_changed",
        "max_num_computed_tokens",
        "needs_encoder_output",
        "needs_output",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_encoder_layers_needed",
        "num_layers_needed",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "only_captures",
        "publishes_prefix",
        "rank",
        "request",
        "rotary_start",
        "row_capture",
        "sampling_params",
        "states",
        "status",
        "stopping_ids",
        "takes_largest_logit",
        "token_ids",
        "uid",
    )

    def __init__(
        self, request: EngineRequest, stacks: Stacks, adapter: object | None = None, grammar: Grammar | None = None
    ) -> None:
        """Start `request` on a model with these stacks; `adapter` is what changes the model for it, or None, and
        `grammar` what its text keeps to, or None. Raises ValueError if what a stack is to read is empty.
        """
        self.is_changed = is_changed = bool(request.interventions)
        """Whether interventions change its numbers: no other sequence may reuse them, and it reuses no other's."""
        encoder, decoder = required_depths(request.task, stacks, is_changed=is_changed)
        is_encoder = not stacks.decoder
        _check_inputs(request, stacks, reads_prompt=decoder is not None)
        generation = request.task if isinstance(request.task, GenerateTask) else None
        self.request = request
        self.uid = request.uid
        self.adapter = adapter
        self.rank = Rank(request.priority, 0, 0)
        """Its place among the other sequences; the scheduler sets it when the sequence is added."""
        self.sampling_params: SamplingParams | None = generation.sampling if generation else None
        self.row_capture: AttentionCapture | None = generation.attention if generation else None
        """The attention row that chose a token, captured with each token."""
        params = self.sampling_params
        self.stopping_ids: frozenset[int] = params.stopping_ids if params else frozenset()
        self.grammar = grammar
        """What the text keeps to. It survives preemption, as `token_ids` do."""
        self.forced: list[int] = []
        """The tokens that the grammar forced after the last one that was chosen, the last of `token_ids`."""
        self.first_forced: list[int] = []
        """The tokens that the grammar forced before any was chosen, until they are sent."""
        self.takes_largest_logit = params is not None and grammar is None and params.takes_largest_logit
        self.encoder_token_ids = request.prompt_token_ids if is_encoder else request.encoder_token_ids
        self.encoder_is_computed = not stacks.encoder
        """Whether the encoder's part is computed, or there is none. A preemption discards the encoder's K/V and
        resets this.
        """
        self.encoder_is_captured = False
        """Whether the encoder's captures were delivered; this survives preemption, as the captured data must."""
        self.token_ids: list[int] = list(request.prompt_token_ids) if decoder is not None else []
        """Tokens that the decoder has read and written; empty if the decoder has no part in the answer."""
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens taken from the prefix cache when the sequence first ran (not after a preemption)."""
        self.num_preemptions = 0
        self.block_table = array("i")  # of int32, since every step copies it
        self.cross_block_table = array("i")
        """Blocks of the encoder's positions."""
        self.states = NO_STATES  # of layers without attention: which one the next step reads, and which it writes
        self.rotary_start = 0  # the row of the rotary tables for position 0
        self.block_hashes: list[bytes] = []
        """Chained digests of the full blocks, from the first, as far as the block manager has asked for them."""
        self.num_published_blocks = 0
        """Blocks at the start of the table that the prefix cache has already seen."""
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.captured_upto = 0
        """Prompt positions below this one are captured; this survives preemption, as the captured data must."""
        self.num_layers_needed, self.needs_output = decoder or NOT_AT_ALL
        """Number of decoder blocks to run for this sequence, since its K/V exist in these layers only; and whether
        anything after the last block's queries, keys and values is needed.
        """
        self.only_captures = request.task.is_inspection
        """Whether the sequence neither generates text nor embeds it: while others do, it may wait."""
        self.num_encoder_layers_needed, self.needs_encoder_output = encoder
        self.publishes_prefix = self.num_layers_needed == stacks.decoder and not self.is_changed
        """Whether other sequences may reuse the blocks: only if these hold every layer as the model computes it."""
        self._captured_positions = () if decoder is None else request.task.captured_positions(self.num_prompt_tokens)
        max_tokens = params.max_tokens if params else 0
        # The last generated token is never fed back, so it needs no room.
        self.max_num_computed_tokens = self.num_prompt_tokens + max(0, max_tokens - 1)
        """Most positions that the decoder will ever compute, which the cache must be able to hold."""

    @property
    def task(self) -> Task:
        return self.request.task

    @property
    def num_tokens(self) -> int:
        """Return the number of prompt and generated tokens together."""
        return len(self.token_ids)

    @property
    def num_cross_tokens(self) -> int:
        """Return the number of encoder positions that the decoder sees."""
        return len(self.encoder_token_ids) if self.token_ids else 0

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def awaits_token(self) -> bool:
        """Return whether a step that still runs chooses its newest token."""
        return bool(self.token_ids) and self.token_ids[-1] == UNKNOWN

    @property
    def has_all_work_running(self) -> bool:
        """Return whether a step that still runs completes it, or may, so that nothing is left to be scheduled."""
        if self.num_computed_tokens == len(self.token_ids):
            return self.encoder_is_computed
        params = self.sampling_params
        return (
            self.awaits_token and params is not None and self.num_tokens - self.num_prompt_tokens >= params.max_tokens
        )

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def first_needed_position(self) -> int:
        """Return the first position whose forward pass must really run; everything below may come from the prefix
        cache.

        It is the first position that the request captures and that has not been captured yet, or at the latest the
        newest token, whose logits or hidden state are always needed. It is 0 if the request has interventions, since
        every position's numbers are then its own.
        """
        if self.is_changed:
            return 0
        positions = self._captured_positions
        index = bisect_left(positions, self.captured_upto)
        return positions[index] if index < len(positions) else max(0, len(self.token_ids) - 1)

    def rotate_from(self, rotary_start: int) -> None:
        """Set the row of the rotary tables for position 0, before anything is computed."""
        if rotary_start != self.rotary_start:
            self.rotary_start = rotary_start
            self.block_hashes.clear()

    def take_first_forced(self) -> None:
        """Take the tokens that the grammar forces before any is chosen, so that one step computes them and the prompt.
        It must be called before the sequence runs.
        """
        params, grammar = self.sampling_params, self.grammar
        if params is None or grammar is None or self._notes_each_token:
            return
        if params.prompt_logprobs is not None:  # it may begin anew for lack of memory, and nothing may be sent before
            return
        room = min(MOST_FORCED, max(0, params.max_tokens - 1))
        if not grammar.ends_with_forced and self.stopping_ids.isdisjoint(grammar.forced[:room]):  # only a step ends it
            self.first_forced = grammar.take_forced(room)
            self.token_ids += self.first_forced

    def pop_first_forced(self) -> list[int]:
        """Return the tokens that were forced before any was chosen, which are to be sent now."""
        tokens, self.first_forced = self.first_forced, []
        return tokens

    def take_token(self, token_id: int, takes_forced: bool) -> None:
        """Take the token that a step has chosen in the place of the unknown one. If `takes_forced`, also take those
        that the grammar then forces, unless something is captured of each token.
        """
        self.token_ids[-1] = token_id
        params = self.sampling_params
        if self.grammar is None or params is None:
            return
        self.grammar.accept(token_id)
        self.forced = []
        if takes_forced and not self._notes_each_token and token_id not in self.stopping_ids:
            room = params.max_tokens - (len(self.token_ids) - self.num_prompt_tokens)
            for token in self.grammar.take_forced(min(room, MOST_FORCED)):
                self.forced.append(token)
                if token in self.stopping_ids:
                    break
            self.token_ids += self.forced

    @property
    def _notes_each_token(self) -> bool:
        """Return whether something comes with each token that only a step of its own finds."""
        params = self.sampling_params
        return self.row_capture is not None or (params is not None and params.logprobs is not None)

    @property
    def chooses_on_host(self) -> bool:
        """Return whether the host must see its logits: a device knows no grammar, and reports no tokens but the
        likeliest.
        """
        params = self.sampling_params
        return self.grammar is not None or (params is not None and bool(params.logprob_token_ids))

    def needs_sample(self, chunk: "Chunk") -> bool:
        """Return whether a token is to be sampled from the last position of `chunk`."""
        return (
            self.sampling_params is not None
            and chunk.start + chunk.num_tokens == len(self.token_ids)
            and len(self.token_ids) - self.num_prompt_tokens < self.sampling_params.max_tokens
        )

    def completion(self) -> FinishReason | None:
        """Return why the sequence is complete now, or None if it is not.

        Generation ends with a stopping token or where the grammar allows no more ("stop"), or at max_tokens ("length");
        with max_tokens 0, once the prompt is computed. Other tasks are "done" once the prompt is computed, by the
        encoder and by the decoder.
        """
        params = self.sampling_params
        num_generated = len(self.token_ids) - self.num_prompt_tokens
        if params is not None and num_generated and self.token_ids[-1] in self.stopping_ids:
            return "stop"  # even if it was preempted while this token was chosen, and has nothing computed any more
        if self.grammar is not None and num_generated and self.grammar.is_complete:
            return "stop"
        if not self.encoder_is_computed:
            return None
        if params is None:
            return "done" if self.num_computed_tokens >= self.num_prompt_tokens else None
        if num_generated >= params.max_tokens and self.num_computed_tokens >= self.num_prompt_tokens:
            return "length"
        return None

    def __repr__(self) -> str:
        return (
            f"Sequence(uid={self.uid}, {self.status.value}, {self.num_computed_tokens}/{len(self.token_ids)} computed, "
            f"prompt {self.num_prompt_tokens}, blocks {self.block_table.tolist()})"
        )


def _check_inputs(request: EngineRequest, stacks: Stacks, *, reads_prompt: bool) -> None:
    """Raise ValueError where a stack has nothing to read, or there is no stack that would."""
    is_encoder = not stacks.decoder
    if request.encoder_token_ids and (is_encoder or not stacks.encoder):
        raise ValueError(f"request {request.uid}: encoder_token_ids are given; this model is no encoder-decoder")
    needed = {"prompt_token_ids": reads_prompt or is_encoder, "encoder_token_ids": stacks.encoder and not is_encoder}
    for name, is_needed in needed.items():
        if is_needed and not getattr(request, name):
            raise ValueError(f"request {request.uid}: {name} is empty; at least one token is needed")


class Chunk(NamedTuple):
    """The positions [start, start + num_tokens) of one sequence, to be computed in one step.

    It is a named tuple because one is created for every running sequence in every step.
    """

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def capture_start(self) -> int:
        """Return the first position of this chunk that has not been captured before.

        Positions below it (there are some only after a preemption) run again for their K/V; capturing them again would
        duplicate them. The value is valid until the step is committed.
        """
        return max(self.start, min(self.sequence.captured_upto, self.end))
