"""The KV cache of a simulated worker: how many blocks are free, and which prefixes they still hold.

It does the bookkeeping of `server.engine.scheduling.block_manager` without tokens or hashes: a block of a shared prefix
has a name, the others are counted. So a request costs a few operations instead of one for each of its tokens. A test
compares it with the real one, step by step.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection

from benchmarks.simulation.job import Job

_BLOCKS_OF_A_GROUP = 1 << 24


class KVBlocks:
    """A cache of `num_blocks` usable blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._caching = caching
        self._num_blank = num_blocks
        self._num_cached = 0
        self._num_holders: dict[int, int] = {}  # of each named block that is held or cached
        self._cached: OrderedDict[int, int] = OrderedDict()
        """Free blocks that still hold something, least recently used first: a named block as its name -> 1, the blocks
        that only one job filled as ~uid -> how many, the first ones of them.
        """

    @property
    def num_free(self) -> int:
        return self._num_blank + self._num_cached

    @property
    def usage(self) -> float:
        """Return the share of blocks that jobs hold, 0 to 1."""
        return 1 - self.num_free / self.num_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def take(self, count: int) -> None:
        """Hold `count` free blocks from now on, blank ones first. There must be as many."""
        self._num_blank -= count
        while self._num_blank < 0:
            key, kept = self._cached.popitem(last=False)
            if key >= 0:
                del self._num_holders[key]
                evicted = 1
            else:
                evicted = min(kept, -self._num_blank)  # the last ones first
                if kept > evicted:
                    self._cached[key] = kept - evicted
                    self._cached.move_to_end(key, last=False)
            self._num_cached -= evicted
            self._num_blank += evicted

    def admit(self, job: Job, num_running: int, num_growing: Callable[[], int]) -> bool:
        """Give `job` blocks for all its known tokens, those that the cache holds shared. Return False where there are
        too few.

        One more must stay free for each running job that has yet to grow: at most `num_running`, counted when it
        matters.
        """
        names = self._hits(job)
        own = self._cached.get(~job.uid, 0) if self._caching and len(names) == job.num_prefix_blocks else 0
        revived = sum(not self._num_holders[name] for name in names) + own
        table = self.num_blocks_for(job.num_tokens)
        needed = table - len(names) - own + revived
        if needed + num_running > self.num_free and needed + num_growing() > self.num_free:
            return False
        for name in names:
            if not self._num_holders[name]:
                del self._cached[name]
            self._num_holders[name] += 1
        if own:
            del self._cached[~job.uid]
        elif (forgotten := self._cached.pop(~job.uid, 0)) != 0:  # what led to them was evicted
            self._num_cached -= forgotten
            self._num_blank += forgotten
        self._num_cached -= revived
        self.take(needed - revived)
        job.names, job.table = names, table
        job.num_computed = (len(names) + own) * self.block_size
        return True

    def publish(self, job: Job, start: int) -> None:
        """Offer the blocks of the shared prefix that `job` has filled since `start` tokens of it were computed."""
        if not self._caching:
            return
        for index in range(start // self.block_size, min(job.num_computed // self.block_size, job.num_prefix_blocks)):
            name = _name(job.group, index)
            if name not in self._num_holders:  # else the other one stays, and this one is nobody's prefix
                self._num_holders[name] = 1
                job.names.append(name)

    def free(self, job: Job) -> None:
        """Give back what `job` holds. What is filled stays for others until it is evicted, the last blocks first."""
        table = max(job.table, self.num_blocks_for(job.num_computed))
        own = max(0, job.num_computed // self.block_size - job.num_prefix_blocks) if self._caching else 0
        if own:
            self._cached[~job.uid] = own
        freed = own
        for name in reversed(job.names):
            self._num_holders[name] -= 1
            if not self._num_holders[name]:
                self._cached[name] = 1
                freed += 1
        self._num_cached += freed
        self._num_blank += table - own - len(job.names)
        job.names, job.table = [], 0

    def check(self, num_held: int, holders: Collection[Job]) -> None:
        """Compare the counters with the jobs that hold `num_held` blocks in their tables. Raises AssertionError."""
        held = Counter(name for job in holders for name in job.names)
        noted = {name: count for name, count in self._num_holders.items() if count}
        assert held == noted, f"{held} hold named blocks, {noted} are noted"
        assert sum(self._cached.values()) == self._num_cached, f"{self._num_cached} are noted as cached"
        num_blocks = num_held - held.total() + len(noted) + self._num_blank + self._num_cached
        assert num_blocks == self.num_blocks, f"{num_blocks} blocks of {self.num_blocks}"
        assert self._num_blank >= 0, f"{self._num_blank} blank blocks"

    def _hits(self, job: Job) -> list[int]:
        """Return the names of the leading blocks that the cache holds; the newest token must be computed."""
        if not self._caching:
            return []
        names = []
        for index in range(min(job.num_prefix_blocks, (job.num_tokens - 1) // self.block_size)):
            name = _name(job.group, index)
            if name not in self._num_holders:
                break
            names.append(name)
        return names


def _name(group: int, index: int) -> int:
    return group * _BLOCKS_OF_A_GROUP + index
