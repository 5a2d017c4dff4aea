"""The state of one request in the engine: its tokens, the number of computed ones, and the places of their K/V.

A sequence has up to two parts. An encoder's input is computed first, whole, in one step. A decoder's tokens are
computed in chunks, with K/V in the cache; in an encoder-decoder the decoder also sees the encoder's output, with its
K/V in separate blocks.
"""

import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from lightwell.server.engine.grammar import Grammar
from lightwell.server.engine.messages.base_task import NOT_AT_ALL, Stacks, required_depths
from lightwell.server.engine.messages.outputs import FinishReason
from lightwell.server.engine.messages.request import AttentionCapture, EngineRequest, GenerateTask, Intervention, Task
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.engine.repetitions import Repetitions

UNKNOWN = -1
"""A token that a running step will choose."""
NO_STATES = (0, 0)
"""The states of a sequence without any, or of a network without recurrence."""
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


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """The state of one request. Only the scheduler, the schedule and the block manager change it.

    Positions are absolute: position p is the p-th token of prompt + generated, from 0. Positions below
    `num_computed_tokens` have their K/V in the cache, position p in block `block_table[p // block_size]`.

    Raises ValueError if a stack has an empty input.
    """

    request: EngineRequest
    stacks: InitVar[Stacks]
    adapter: object | None = None
    """The adapter that changes the model for this request, or None."""
    grammar: Grammar | None = None
    """The grammar of the text, or None. It survives preemption, as `token_ids` do."""

    uid: int = field(init=False)
    rank: Rank = field(init=False)
    """The place among the other sequences; the scheduler sets it."""
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)
    finish_reason: FinishReason | None = field(init=False, default=None)
    sampling_params: SamplingParams | None = field(init=False, default=None)
    row_capture: AttentionCapture | None = field(init=False, default=None)
    """The attention row that chose a token, captured with each token."""
    stopping_ids: frozenset[int] = field(init=False, default=frozenset())
    takes_largest_logit: bool = field(init=False)
    is_changed: bool = field(init=False)
    """True for a request with interventions."""
    first_changed_position: int = field(init=False)
    """The first position with changed numbers: the blocks before it may come from the prefix cache."""
    is_background: bool = field(init=False)
    """True for a row of a batch."""
    only_captures: bool = field(init=False)
    """Whether the sequence only inspects: while others generate or embed text, it may wait."""
    publishes_prefix: bool = field(init=False)
    """Whether other sequences may reuse the blocks: only if these hold every layer, without changes."""

    encoder_token_ids: tuple[int, ...] = field(init=False)
    encoder_is_computed: bool = field(init=False)
    """Whether the encoder's part is computed, or there is none. A preemption discards the encoder's K/V."""
    encoder_is_captured: bool = field(init=False, default=False)
    """Whether the encoder's captures were delivered; it survives preemption, as the captures do."""
    num_encoder_layers_needed: int = field(init=False)
    needs_encoder_output: bool = field(init=False)

    token_ids: list[int] = field(init=False, default_factory=list)
    """The decoder's tokens, prompt and generated; empty if the decoder has no part in the answer."""
    num_cross_tokens: int = field(init=False)
    """Number of encoder positions that the decoder sees."""
    num_layers_needed: int = field(init=False)
    """Number of decoder blocks to run: only these layers have K/V."""
    needs_output: bool = field(init=False)
    """Whether anything after the last block's queries, keys and values is needed."""
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = field(init=False, default=0)
    num_cached_tokens: int = field(init=False, default=0)
    """Prompt tokens from the prefix cache when the sequence first ran (not after a preemption)."""
    max_num_tokens: int = field(init=False)
    """Most tokens of prompt and answer together."""
    max_num_computed_tokens: int = field(init=False)
    """Most positions that the decoder may compute; the cache must be able to hold them."""
    num_preemptions: int = field(init=False, default=0)
    captured_upto: int = field(init=False, default=0)
    """Prompt positions below this one are captured; it survives preemption, as the captures do."""
    forced: list[int] = field(init=False, default_factory=list)
    """The last of `token_ids`, which the grammar forced after the last chosen one."""
    awaits_token: bool = field(init=False, default=False)
    """Whether a running step chooses the last of `token_ids`, which is `UNKNOWN`."""
    chooses_on_host: bool = field(init=False)
    """Whether the host must see its logits: a device applies no grammar, and reports few alternatives."""
    edits_logits: bool = field(init=False, default=False)
    """Whether sampling parameters may change its logits."""
    is_plain: bool = field(init=False)
    """True for a text without captures, interventions, a grammar, an adapter, an encoder or edits of its logits."""
    first_forced: list[int] = field(init=False, default_factory=list)
    """Tokens that the grammar forced before the first chosen one, until they are sent."""
    repetitions: Repetitions | None = field(init=False, default=None)
    """The source of drafts, from the first step that may have some."""
    predicted: list[int] = field(init=False, default_factory=list)
    """The next tokens, as the draft model predicts them."""
    num_predicted_tokens: int = field(init=False, default=0)
    """Positions with K/V in the draft model's cache."""
    num_accepted: int = field(init=False, default=0)
    """Drafts that became tokens of the text."""
    num_rejected: int = field(init=False, default=0)
    """The other drafts that steps have computed."""

    block_table: "array[int]" = field(init=False, default_factory=lambda: array("i"))  # of int32: every step copies it
    cross_block_table: "array[int]" = field(init=False, default_factory=lambda: array("i"))
    """Blocks of the encoder's positions."""
    states: tuple[int, int] = field(init=False, default=NO_STATES)
    """States of layers without attention: the one that the next step reads, and the one that it writes."""
    rotary_start: int = field(init=False, default=0)
    """The row of the rotary tables for position 0."""
    block_hashes: list[bytes] = field(init=False, default_factory=list)
    """Chained digests of the first full blocks, as far as the block manager has needed them."""
    num_published_blocks: int = field(init=False, default=0)
    """Blocks at the start of the table that the prefix cache knows."""
    _captured_positions: ReadOnlySequence[int] = field(init=False, default=())

    def __post_init__(self, stacks: Stacks) -> None:
        request, task = self.request, self.request.task
        self.is_changed = bool(request.interventions)
        self.first_changed_position = min(map(_first_changed, request.interventions), default=sys.maxsize)
        encoder, decoder = required_depths(task, stacks, is_changed=self.is_changed)
        _check_inputs(request, stacks, reads_prompt=decoder is not None)
        self.uid = request.uid
        self.rank = Rank(request.priority, 0, 0)
        self.takes_largest_logit = False
        self.chooses_on_host = self.grammar is not None
        max_tokens = 0
        if isinstance(task, GenerateTask):
            self.sampling_params = params = task.sampling
            self.row_capture = task.attention
            self.stopping_ids = params.stopping_ids
            self.takes_largest_logit = self.grammar is None and params.takes_largest_logit
            self.chooses_on_host |= bool(params.logprob_token_ids)
            self.edits_logits = params.edits_logits()
            max_tokens = params.max_tokens
        self.encoder_token_ids = request.encoder_token_ids if stacks.decoder else request.prompt_token_ids
        self.encoder_is_computed = not stacks.encoder
        self.num_encoder_layers_needed, self.needs_encoder_output = encoder
        if decoder is not None:
            self.token_ids = list(request.prompt_token_ids)
            self._captured_positions = task.captured_positions(len(self.token_ids))
        self.num_layers_needed, self.needs_output = decoder or NOT_AT_ALL
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cross_tokens = len(self.encoder_token_ids) if self.token_ids else 0
        self.max_num_tokens = self.num_prompt_tokens + max_tokens
        # The last generated token is never computed, so it needs no room.
        self.max_num_computed_tokens = self.num_prompt_tokens + max(0, max_tokens - 1)
        self.is_background = request.is_background
        self.only_captures = task.is_inspection
        special = self.chooses_on_host or self.edits_logits or self._notes_each_token or self.adapter is not None
        self.is_plain = self.sampling_params is not None and not (
            special or self.is_changed or self.is_background or stacks.encoder
        )
        self.publishes_prefix = self.num_layers_needed == stacks.decoder and not self.is_changed

    @property
    def task(self) -> Task:
        return self.request.task

    @property
    def num_tokens(self) -> int:
        """Return the number of prompt and generated tokens together."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def first_needed_position(self) -> int:
        """Return the first position that must be computed; those before it may come from the prefix cache.

        It is the first position that is still to be captured or that interventions change, at the latest the newest
        token.
        """
        positions = self._captured_positions
        index = bisect_left(positions, self.captured_upto)
        first = positions[index] if index < len(positions) else max(0, len(self.token_ids) - 1)
        return min(first, self.first_changed_position)

    def rotate_from(self, rotary_start: int) -> None:
        """Set `rotary_start`, before anything is computed."""
        if rotary_start != self.rotary_start:
            self.rotary_start = rotary_start
            self.block_hashes.clear()

    def take_first_forced(self) -> None:
        """Append the tokens that the grammar forces first, so that one step computes them and the prompt. Call it
        before the sequence runs.
        """
        params, grammar = self.sampling_params, self.grammar
        if params is None or grammar is None or self._notes_each_token:
            return
        if params.prompt_logprobs is not None:  # for lack of memory it may begin again, after which nothing may be sent
            return
        room = min(MOST_FORCED, max(0, params.max_tokens - 1))
        if not grammar.ends_with_forced and self.stopping_ids.isdisjoint(grammar.forced[:room]):  # only a step ends it
            self.first_forced = grammar.take_forced(room)
            self.token_ids += self.first_forced

    def pop_first_forced(self) -> list[int]:
        """Return the forced tokens before the first chosen one, to be sent now."""
        tokens, self.first_forced = self.first_forced, []
        return tokens

    @property
    def prediction(self) -> ReadOnlySequence[int]:
        """Return the tokens that the client expects, for drafts."""
        return self.task.prediction if isinstance(self.task, GenerateTask) else ()

    def take_tokens(self, token_ids: ReadOnlySequence[int], num_drafts: int, takes_forced: bool) -> None:
        """Replace the unknown token by the step's choice: the accepted ones of its drafts, and one more token. If
        `takes_forced`, also append the tokens that the grammar then forces, unless each token has captures or
        log-probabilities.
        """
        self.token_ids[-1:] = token_ids
        self.awaits_token = False
        num_accepted = len(token_ids) - 1
        self.num_computed_tokens += num_accepted
        self.captured_upto = max(self.captured_upto, self.num_computed_tokens)
        self.num_predicted_tokens = min(self.num_predicted_tokens, self.num_computed_tokens)
        self.num_accepted += num_accepted
        self.num_rejected += num_drafts - num_accepted
        params = self.sampling_params
        if self.grammar is None or params is None:
            return
        for token_id in token_ids:
            self.grammar.accept(token_id)
        self.forced = []
        if takes_forced and not self._notes_each_token and token_ids[-1] not in self.stopping_ids:
            room = params.max_tokens - (len(self.token_ids) - self.num_prompt_tokens)
            for token in self.grammar.take_forced(min(room, MOST_FORCED)):
                self.forced.append(token)
                if token in self.stopping_ids:
                    break
            self.token_ids += self.forced

    @property
    def _notes_each_token(self) -> bool:
        """Return whether each token has captures or log-probabilities, and so needs its own step."""
        params = self.sampling_params
        return self.row_capture is not None or (params is not None and params.logprobs is not None)

    def completion(self) -> FinishReason | None:
        """Return the reason why the sequence is complete now, or None if it is not.

        Generation ends with a stopping token or where the grammar allows no more ("stop"), or at max_tokens ("length");
        with max_tokens 0, once the prompt is computed. Other tasks are "done" once the prompt is computed.
        """
        params = self.sampling_params
        num_generated = len(self.token_ids) - self.num_prompt_tokens
        if params is not None and num_generated and self.token_ids[-1] in self.stopping_ids:
            return "stop"  # also if it was preempted while this token was chosen
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
    """Raise ValueError for a stack without input, or an input without a stack."""
    is_encoder = not stacks.decoder
    if request.encoder_token_ids and (is_encoder or not stacks.encoder):
        raise ValueError(f"request {request.uid}: encoder_token_ids are given; this model is no encoder-decoder")
    needed = {"prompt_token_ids": reads_prompt or is_encoder, "encoder_token_ids": stacks.encoder and not is_encoder}
    for name, is_needed in needed.items():
        if is_needed and not getattr(request, name):
            raise ValueError(f"request {request.uid}: {name} is empty; at least one token is needed")


class Draft(NamedTuple):
    """A possible next token of a text."""

    token_id: int
    grammar: Grammar | None = None
    """The text's grammar after this token, or None."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """The positions [start, start + num_tokens) of one sequence, to be computed in one step. It is a struct, which is
    fast to create, since every step creates one for each running sequence.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    drafts: tuple[Draft, ...] = ()
    """The tokens of the last positions, if they are not known yet; the step finds out how many are right."""

    @property
    def token_ids(self) -> list[int]:
        """Return the tokens of its positions."""
        known = self.sequence.token_ids[self.start : self.end]
        return [*known, *[draft.token_id for draft in self.drafts]] if self.drafts else known

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def needs_sample(self) -> bool:
        """Return whether tokens are sampled from its last positions: before and at each of its drafts."""
        seq = self.sequence
        return self.start + self.num_tokens - len(self.drafts) == len(seq.token_ids) < seq.max_num_tokens

    @property
    def capture_start(self) -> int:
        """Return the first position of this chunk that was not captured before. After a preemption, earlier positions
        run again only for their K/V. The value is valid until the step is committed.
        """
        return max(self.start, min(self.sequence.captured_upto, self.end))


def _first_changed(change: Intervention) -> int:
    """Return the first position that an intervention may change: no position reads the numbers of a later one."""
    if change.stack == "encoder":
        return 0
    if change.positions:
        return min(change.positions)
    added = change.array
    if added is None or not added.shape or (change.op, change.point) != ("add", "attn.hook_attn_scores"):
        return 0
    num_keys, data = added.shape[-1], bytes(added.data)
    item_size = len(data) // math.prod(added.shape)
    size = num_keys * item_size
    rows = (data[start : start + size] for start in range(0, len(data), size))
    return min(size - len(row.lstrip(b"\0")) for row in rows) // item_size % num_keys
