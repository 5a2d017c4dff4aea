"""A toy network over a paged cache that detects every wrong read and write.

The K/V of a position are the position, the token and the number of layers that were run. The next token is a digest of
all tokens in the cache, so one wrong block gives a wrong answer. For an encoder-decoder the digest also covers the
tokens of the encoder, which have their own blocks. The toy network is independent of the scheduler that it checks.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

from lightwell.server.engine.messages.base_task import Stacks
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EngineRequest,
    GenerateTask,
    Intervention,
    Task,
)
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.engine.scheduling.block_manager import NULL_BLOCK, BlockManager
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.scheduler import Scheduler
from lightwell.server.engine.scheduling.scheduler_config import SchedulerConfig
from lightwell.server.engine.scheduling.speculation import Speculation
from lightwell.server.engine.sequence import Chunk, Sequence

NUM_LAYERS = 3
VOCAB_SIZE = 5


def generate(max_tokens: int = 4, *, prompt_logprobs: int | None = None, stop: tuple[int, ...] = ()) -> GenerateTask:
    params = SamplingParams(max_tokens=max_tokens, seed=0, prompt_logprobs=prompt_logprobs, stop_token_ids=stop)
    return GenerateTask(sampling=params)


def attend(*queries: int, layer: int = NUM_LAYERS - 1) -> AttentionTask:
    """Return a task for the attention rows of `queries` (none named: all) of one head of `layer`."""
    return AttentionTask(capture=AttentionCapture(pairs=((layer, 0),), queries=queries or None))


def attend_encoder() -> AttentionTask:
    """Return a task for all attention rows of the first head of an encoder."""
    return AttentionTask(capture=AttentionCapture(pairs=((NUM_LAYERS - 1, 0),), part="encoder"))


def sequence(
    uid: int,
    prompt: Iterable[int],
    task: Task | None = None,
    deadline: float | None = None,
    *,
    encoded: Iterable[int] = (),
    interventions: tuple[Intervention, ...] = (),
    is_encoder: bool = False,
    priority: int = 0,
    client: str = "",
    adapter: int = 0,
    cache_salt: str = "",
) -> Sequence:
    """Return a sequence of a decoder; of an encoder-decoder if `encoded` has tokens; or of an encoder."""
    encoder_token_ids = tuple(encoded)
    if is_encoder:
        stacks = Stacks(decoder=0, encoder=NUM_LAYERS)
    else:
        stacks = Stacks(decoder=NUM_LAYERS, encoder=NUM_LAYERS if encoder_token_ids else 0)
    return Sequence(
        EngineRequest(
            uid=uid,
            prompt_token_ids=tuple(prompt),
            task=task or generate(),
            arrival_time=float(uid),
            deadline=deadline,
            encoder_token_ids=encoder_token_ids,
            interventions=interventions,
            priority=priority,
            client=client,
            adapter=adapter,
            cache_salt=cache_salt,
        ),
        stacks,
    )


def computed(blocks: BlockManager, seq: Sequence) -> Sequence:
    """Return `seq` with its whole prompt computed in `blocks` and published."""
    assert blocks.allocate(seq, seq.num_tokens, num_hit_tokens=blocks.match_prefix(seq))
    seq.num_computed_tokens = seq.num_tokens
    blocks.publish(seq)
    return seq


def generated(seq: Sequence) -> list[int]:
    return seq.token_ids[seq.num_prompt_tokens :]


def scheduler(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 64,
    capture_tokens: int | None = None,
    caching: bool = True,
    copying: bool = False,
    rotary_switch: int | None = None,
    drafting: bool = False,
) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_capture_tokens=capture_tokens,
        enable_prefix_caching=caching,
        rotary_switch=rotary_switch,
    )
    blocks = BlockManager(num_blocks, block_size, copies_blocks=caching and copying)
    return Scheduler(config, blocks, Speculation("ngram" if drafting else "off"))


def next_token(tokens: list[int]) -> int:
    return crc32(repr(tokens).encode()) % VOCAB_SIZE


def answer_alone(prompt: Iterable[int], task: GenerateTask, encoded: Iterable[int] = ()) -> list[int]:
    """Return the tokens that the toy network generates without any cache, batch or scheduler."""
    tokens, encoded = list(prompt), list(encoded)
    num_prompt_tokens = len(tokens)
    while len(tokens) - num_prompt_tokens < task.sampling.max_tokens:
        tokens.append(next_token(encoded + tokens))
        if tokens[-1] in task.sampling.stopping_ids:
            break
    return tokens[num_prompt_tokens:]


class Slot(NamedTuple):
    position: int
    token: int
    num_layers: int
    rotary_start: int = 0


class ToyRunner:
    """Computes schedules, and stores the captured positions of each sequence."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.num_tokens_run = 0
        self.captured: dict[int, list[int]] = {}
        """Positions in the order in which they were captured, by uid."""
        self.encoded: dict[int, int] = {}
        """Number of times the encoder's numbers were captured, by uid."""
        self._block_size = scheduler.block_manager.block_size
        self._cache: dict[tuple[int, int], Slot] = {}

    def step(self) -> list[Sequence]:
        """Run one engine step; return the sequences that it completed."""
        schedule = self.scheduler.schedule()
        return self.scheduler.commit(schedule, self.run(schedule))

    def drain(self, max_steps: int = 10_000) -> list[Sequence]:
        """Step until nothing is left; return the sequences in the order in which they ended."""
        ended: list[Sequence] = []
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return ended
            ended += self.step()
        raise AssertionError(f"still at work after {max_steps} steps: {self.scheduler.sequences}")

    def run(self, schedule: Schedule) -> dict[int, list[int]]:
        """Run the forward pass; return the sampled tokens of each chunk that needs some: its right drafts, and one."""
        holders = Counter(
            block for seq in self.scheduler.sequences for block in seq.block_table + seq.cross_block_table
        )
        for source, target in schedule.copies:
            for place in range(self._block_size):
                if (slot := self._cache.get((source, place))) is not None:
                    self._cache[target, place] = slot
        for seq in schedule.encodes:
            self._encode(seq, holders)
        for chunk in schedule.chunks:
            self._write(chunk, holders)
        new_tokens = {}
        for chunk in schedule.chunks:
            tokens = self._read(chunk)
            num_right = 0
            if chunk.needs_sample:
                end, drafts = len(tokens) - len(chunk.drafts), [draft.token_id for draft in chunk.drafts]
                drawn = [next_token(tokens[: end + i]) for i in range(len(drafts) + 1)]
                num_right = next((i for i, token in enumerate(drafts) if token != drawn[i]), len(drafts))
                new_tokens[chunk.sequence.uid] = drawn[: num_right + 1]
            end = chunk.end - len(chunk.drafts) + num_right
            self.captured.setdefault(chunk.sequence.uid, []).extend(range(chunk.capture_start, end))
        self.num_tokens_run += schedule.num_tokens
        return new_tokens

    def _encode(self, seq: Sequence, holders: Counter[int]) -> None:
        for position, token in enumerate(seq.encoder_token_ids[: seq.num_cross_tokens]):
            block = seq.cross_block_table[position // self._block_size]
            assert block != NULL_BLOCK, f"{seq} writes to the null block"
            assert holders[block] == 1, f"{seq} writes what it encoded to block {block}, which others hold too"
            self._cache[block, position % self._block_size] = Slot(position, token, NUM_LAYERS)
        self.encoded[seq.uid] = self.encoded.get(seq.uid, 0) + (not seq.encoder_is_captured)

    def _write(self, chunk: Chunk, holders: Counter[int]) -> None:
        seq = chunk.sequence
        for position, token in zip(range(chunk.start, chunk.end), chunk.token_ids, strict=True):
            block = seq.block_table[position // self._block_size]
            assert block != NULL_BLOCK, f"{seq} writes to the null block"
            assert holders[block] == 1, f"{seq} writes position {position} to block {block}, which others hold too"
            slot = Slot(position, token, seq.num_layers_needed, seq.rotary_start)
            self._cache[block, position % self._block_size] = slot

    def _read(self, chunk: Chunk) -> list[int]:
        seq = chunk.sequence
        tokens = []
        for position, token in enumerate(seq.encoder_token_ids):
            slot = self._cache[seq.cross_block_table[position // self._block_size], position % self._block_size]
            assert (slot.position, slot.token) == (position, token), f"{seq} finds {slot} for what it encoded"
            tokens.append(token)
        switch = self.scheduler.config.rotary_switch
        start = switch if switch is not None and len(seq.token_ids) > switch else 0
        token_ids = seq.token_ids + [draft.token_id for draft in chunk.drafts]
        for position in range(chunk.end):
            slot = self._cache[seq.block_table[position // self._block_size], position % self._block_size]
            assert slot.position == position, f"{seq} finds position {slot.position} at {position}"
            assert slot.token == token_ids[position], f"{seq} finds token {slot.token} at {position}"
            assert slot.num_layers >= seq.num_layers_needed, f"{seq} finds {slot.num_layers} layers at {position}"
            assert slot.rotary_start == start, f"{seq} finds a key rotated from row {slot.rotary_start} at {position}"
            tokens.append(slot.token)
        return tokens


def chunk_sizes(runner: ToyRunner) -> dict[int, int]:
    """Run one step; return how many tokens it computed of each sequence."""
    schedule = runner.scheduler.schedule()
    runner.scheduler.commit(schedule, runner.run(schedule))
    return {chunk.sequence.uid: chunk.num_tokens for chunk in schedule.chunks}


def toy(*sequences: Sequence, **options: Any) -> tuple[Scheduler, ToyRunner]:
    """Return a scheduler with these sequences, and its runner. options: as in `scheduler`."""
    sched = scheduler(**options)
    for seq in sequences:
        sched.add(seq)
    return sched, ToyRunner(sched)
