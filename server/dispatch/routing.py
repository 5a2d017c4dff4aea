"""Routing policy: chooses the worker with the least remaining work, including the new request.

Work is counted in tokens. Prompt tokens that are expected in the worker's prefix cache do not count. The expectation
comes from the prompts that the worker was given, so an error costs only time. Standard library only; independent of
processes and sockets.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from lightwell.server.engine.messages.request import ClassifyTask, EmbedTask, GenerateTask, Task


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that takes requests."""

    worker_id: int
    num_tokens: int
    """Prompt tokens that its unfinished requests still have to compute, plus the tokens that they may generate."""
    num_requests: int


class Route(NamedTuple):
    """The worker that a request goes to."""

    worker_id: int
    num_prefix_tokens: int
    """Tokens of its prompt that are expected to be there already."""


@dataclass(slots=True)
class RoutedPrompt:
    """The tokens that a request reads, and how it uses the prefix cache."""

    token_ids: Sequence[int]
    encoder_token_ids: Sequence[int] = ()
    _: KW_ONLY
    takes: bool = True
    """Whether the request may reuse the prefix cache's blocks."""
    leaves: bool = True
    """Whether the request's own blocks may enter the prefix cache."""

    @classmethod
    def of(
        cls, task: Task, token_ids: Sequence[int], encoder_token_ids: Sequence[int], *, is_changed: bool
    ) -> "RoutedPrompt":
        """Make one from a request to the engine. is_changed: whether it has interventions.

        A capture does not read the prefix cache, because the captured positions must be computed. It adds no blocks to
        the cache, because it may not compute all layers.
        """
        takes = leaves = not is_changed and isinstance(task, GenerateTask | EmbedTask | ClassifyTask)
        if isinstance(task, GenerateTask):
            takes = takes and not task.attention_prompt and task.sampling.prompt_logprobs is None
        elif isinstance(task, EmbedTask):
            leaves = leaves and task.layer is None
            takes = leaves and (task.modes or (task.pooling,)) == ("last",)
        return cls(token_ids, encoder_token_ids, takes=takes, leaves=leaves)

    def block_hashes(self, block_size: int) -> list[int]:
        """Return one hash for each full block, of all tokens up to its end and of the encoder's tokens."""
        parent = hash(tuple(self.encoder_token_ids))
        hashes = []
        for end in range(block_size, len(self.token_ids) + 1, block_size):
            parent = hash((parent, tuple(self.token_ids[end - block_size : end])))
            hashes.append(parent)
        return hashes


class PrefixIndex:
    """The blocks of prompts that one worker was given recently, at most the number of blocks in its cache."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Blocks by their hashes, least recently used first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def num_held(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks it is expected to hold."""
        return next((i for i, each in enumerate(hashes) if each not in self._blocks), len(hashes))

    def add(self, hashes: Sequence[int]) -> None:
        """Note that the worker is given a prompt of these blocks."""
        # Last block first, as in the worker: the end of a prefix is useless without its beginning.
        for each in reversed(hashes[: self._max_blocks]):
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)


class Router:
    """The routing policy. Call `begin` and `end` when a worker's cache begins and is gone."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._block_size = 1
        self._indices: dict[int, PrefixIndex] = {}
        self._next = 0
        """Which of equal workers is next."""

    def begin(self, worker_id: int, *, num_blocks: int, block_size: int) -> None:
        """Register a worker with an empty cache; num_blocks: 0 if it reuses no prefixes. One worker needs no index."""
        self._block_size = block_size
        if self._num_workers > 1 and num_blocks > 0:
            self._indices[worker_id] = PrefixIndex(num_blocks)

    def end(self, worker_id: int) -> None:
        """Note that the worker's cache is gone."""
        self._indices.pop(worker_id, None)

    def route(self, candidates: Sequence[Candidate], prompt: RoutedPrompt) -> Route:
        """Choose the candidate with the least work; then the one with the fewest requests; then in turn."""
        is_hashed = bool(self._indices) and (prompt.takes or prompt.leaves)
        hashes = prompt.block_hashes(self._block_size) if is_hashed else []
        # The last token is always computed: its output predicts the next token.
        usable = hashes[: (len(prompt.token_ids) - 1) // self._block_size] if prompt.takes and hashes else []

        def rank(candidate: Candidate) -> tuple[int, int, int]:
            turn = (candidate.worker_id - self._next) % self._num_workers
            return candidate.num_tokens - self._num_held(candidate.worker_id, usable), candidate.num_requests, turn

        chosen = min(candidates, key=rank).worker_id
        num_prefix_tokens = self._num_held(chosen, usable)
        self._next = (chosen + 1) % self._num_workers
        if prompt.leaves and chosen in self._indices:
            self._indices[chosen].add(hashes)
        return Route(chosen, num_prefix_tokens)

    def _num_held(self, worker_id: int, hashes: Sequence[int]) -> int:
        index = self._indices.get(worker_id)
        return 0 if index is None else index.num_held(hashes) * self._block_size
