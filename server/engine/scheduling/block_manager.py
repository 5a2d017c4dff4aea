"""Block manager: the owners of the blocks of the paged KV cache, and the prefix cache. It also assigns the states of
layers without attention. It works with block numbers only.

A block holds the K/V of `block_size` consecutive positions of one sequence, at every layer. It is in one of three
places:

    blank   free, without reusable content; blocks used before are taken first, since a block takes memory from its
            first use on
    cached  free, but with a published prefix: reused on a hit, evicted (least recently used first) when blank blocks
            run out
    held    in the block table of one sequence, or of several that share a prefix (reference count)

Only computed blocks are published, and a sequence only writes positions after its shared blocks, so a shared block is
never written. Only full blocks are shared. If blocks can be copied, a sequence may also copy a block that begins with
its next tokens; for this, the incomplete last block of a finished sequence is published under its own digest.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import sha256

from lightwell.server.engine.scheduling.block_contents import BlockContents, Part
from lightwell.server.engine.sequence import NO_STATES, Sequence

NULL_BLOCK = 0
"""A block that no sequence gets: the padding of block tables."""


class BlockManager:
    """Reference counts, free lists and the prefix index of the blocks of one KV cache."""

    def __init__(
        self, num_blocks: int, block_size: int = 32, num_sequences: int = 0, *, copies_blocks: bool = False
    ) -> None:
        """Manage `num_blocks` blocks, including the null block, of `block_size` positions each; and two states for each
        of `num_sequences` sequences, or none if it is 0.

        copies_blocks: whether the caller copies the blocks that `match_part` finds.

        Raises:
            ValueError: fewer than 2 blocks (block 0 is reserved), or a block size below 1.
        """
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; at least 2 are needed, for block 0 is reserved")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; at least 1 token is needed")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache_queries = 0
        """Tokens that requests looked up in the prefix cache when they first ran."""
        self.prefix_cache_hits = 0
        """Number of these tokens that were found."""
        self.num_committed_blocks = self.num_committed_states = 0
        """Blocks and states that were ever in use."""
        self._num_holders = [0] * num_blocks
        self._hash_of_block: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self._contents = BlockContents() if copies_blocks else None
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))  # taken from the end: used ones, then low numbers
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._has_states = num_sequences > 0
        self._free_states = [(2 * n - 1, 2 * n) for n in range(num_sequences, 0, -1)]  # taken from the end

    @property
    def num_usable_blocks(self) -> int:
        """Return the number of all blocks but the null block."""
        return self.num_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        """Return the number of blocks that no sequence holds, those with a cached prefix included."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached_blocks(self) -> int:
        """Return the number of free blocks that still hold a prefix."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Return the share of usable blocks that sequences hold, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_usable_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def check_fits(self, seq: Sequence) -> None:
        """Raise ValueError when even an empty cache could not hold all that `seq` may compute."""
        num_tokens = seq.max_num_computed_tokens + seq.num_cross_tokens
        num_needed = self.num_blocks_for(seq.max_num_computed_tokens) + self.num_blocks_for(seq.num_cross_tokens)
        if num_needed > self.num_usable_blocks:
            raise ValueError(
                f"the request needs room for {num_tokens} tokens ({num_needed} blocks of "
                f"{self.block_size}), but the KV cache holds {self.num_usable_blocks * self.block_size} tokens "
                f"({self.num_usable_blocks} blocks); shorten the prompt or the answer, or enlarge the cache"
            )

    def match_prefix(self, seq: Sequence) -> int:
        """Return the number of leading tokens of `seq` in the cache. It changes only `seq.block_hashes`.

        Only whole blocks before `seq.first_needed_position` match: captured positions and the newest token must be
        computed.
        """
        num_blocks = seq.first_needed_position // self.block_size
        num_hits = 0
        for digest in self._hashes(seq, num_blocks):
            if digest not in self._block_of_hash:
                break
            num_hits += 1
        return num_hits * self.block_size

    def match_part(self, seq: Sequence, num_hit_tokens: int) -> Part | None:
        """Return the block with the longest common beginning with the tokens after `num_hit_tokens`, the result of
        `match_prefix`; None if there is none, or blocks are not copied.

        The caller copies it to the block of these positions before the next step writes anything.
        """
        end = min(seq.first_needed_position, num_hit_tokens + self.block_size)
        if self._contents is None or end <= num_hit_tokens:
            return None
        part = self._contents.longest_match(
            self._parent(seq, num_hit_tokens // self.block_size), seq.token_ids[num_hit_tokens:end]
        )
        if part is not None and part.block in self._cached:
            self._cached.move_to_end(part.block)
        return part

    def allocate(self, seq: Sequence, num_tokens: int, *, num_hit_tokens: int = 0, keep_free: int = 0) -> bool:
        """Extend the block table of `seq` to positions [0, num_tokens), its other table to the encoder's positions, and
        give it states if it has none.

        Args:
            seq: gets private blocks; its table must be empty when there are hits.
            num_tokens: number of positions that the table must cover.
            num_hit_tokens: the result of `match_prefix`; these blocks are shared instead of taken.
            keep_free: number of blocks that must stay free.

        Returns:
            Whether enough blocks and states were free. If not, nothing has changed.
        """
        hits: list[int] = []
        if num_hit_tokens:
            assert not seq.block_table, f"prefix hit for {seq}, which already holds blocks"
            hits = [self._block_of_hash[digest] for digest in seq.block_hashes[: num_hit_tokens // self.block_size]]
        num_new = self.num_blocks_for(num_tokens) - len(seq.block_table) - len(hits)
        num_cross = self.num_blocks_for(seq.num_cross_tokens) - len(seq.cross_block_table)
        num_revived = sum(1 for block in hits if not self._num_holders[block])
        if num_new + num_cross + num_revived + keep_free > self.num_free_blocks:
            return False
        if self._has_states and seq.states == NO_STATES:
            if not self._free_states:
                return False
            seq.states = self._free_states.pop()
            self.num_committed_states = max(self.num_committed_states, *seq.states)
        for block in hits:
            if not self._num_holders[block]:
                del self._cached[block]
            self._num_holders[block] += 1
        if hits:
            seq.block_table.extend(hits)
            seq.num_published_blocks = len(hits)
        for _ in range(num_new):
            seq.block_table.append(self._take_free_block())
        for _ in range(num_cross):
            seq.cross_block_table.append(self._take_free_block())
        return True

    def publish(self, seq: Sequence) -> None:
        """Add the full, computed blocks of `seq` to the prefix cache.

        If another block already holds the same prefix, this one remains private. Does nothing for a sequence that does
        not compute every layer.
        """
        num_full = seq.num_computed_tokens // self.block_size
        first = seq.num_published_blocks
        if not seq.publishes_prefix or num_full <= first:
            return
        hashes = self._hashes(seq, num_full)
        for index in range(first, num_full):
            if hashes[index] not in self._block_of_hash:
                self._index(seq, index, hashes[index], self.block_size)
        seq.num_published_blocks = num_full

    def free(self, seq: Sequence) -> None:
        """Free every block and state of `seq`, if it has any. Published blocks stay reusable until evicted."""
        self._publish_end(seq)
        # Last block first: the end of a prefix is useless without its beginning, so it is evicted first.
        for block in reversed(seq.cross_block_table + seq.block_table):
            self._num_holders[block] -= 1
            if self._num_holders[block]:
                continue
            if self._hash_of_block[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None
        del seq.block_table[:]
        del seq.cross_block_table[:]
        seq.num_published_blocks = seq.num_predicted_tokens = 0
        if seq.states != NO_STATES:
            self._free_states.append((min(seq.states), max(seq.states)))
            seq.states = NO_STATES

    def check_integrity(self, holders: Iterable[Sequence] | None = None) -> None:
        """Check that every block is in exactly one place and that the prefix index agrees with the blocks.

        Args:
            holders: every sequence that may hold blocks; when given, the reference counts are checked against them.

        Raises:
            AssertionError: with the blocks and figures that disagree.
        """
        sizes = (len(self._num_holders), len(self._hash_of_block))
        _require(sizes == (self.num_blocks,) * 2, f"books of {sizes} blocks for {self.num_blocks}")
        _require(self._num_holders[NULL_BLOCK] == 0, "the null block is held")
        _require(self._hash_of_block[NULL_BLOCK] is None, "the null block has a prefix")
        _require(min(self._num_holders) >= 0, f"negative reference count: {min(self._num_holders)}")
        held = [block for block, count in enumerate(self._num_holders) if count > 0]
        places = [*self._blank, *self._cached, *held]
        if sorted(places) != list(range(1, self.num_blocks)):  # quick, for a cache may have 10^5 blocks
            counts, expected = Counter(places), Counter(range(1, self.num_blocks))
            lost, wrong = dict(expected - counts), dict(counts - expected)
            raise AssertionError(f"lost blocks: {lost}, blocks in two places or out of range: {wrong}")
        indexed = {block: digest for digest, block in self._block_of_hash.items()}
        noted = {block: digest for block, digest in enumerate(self._hash_of_block) if digest is not None}
        _require(
            indexed == noted and len(self._block_of_hash) == len(noted),
            f"prefix index and blocks differ: {sorted(self._block_of_hash.values())} against {sorted(noted)}",
        )
        told = noted.keys() if self._contents is None else self._contents.blocks
        _require(told == noted.keys(), f"contents are known of blocks {sorted(told)}, prefixes of {sorted(noted)}")
        nameless = [block for block in self._cached if block not in noted]
        _require(not nameless, f"kept as cached without a prefix: {nameless}")
        named = [block for block in self._blank if block in noted]
        _require(not named, f"kept as blank with a prefix: {named}")
        found, looked_up = self.prefix_cache_hits, self.prefix_cache_queries
        _require(0 <= found <= looked_up, f"{found} of {looked_up} tokens were found in the prefix cache")
        if holders is None:
            return
        holders = list(holders)
        counts = Counter(block for seq in holders for block in seq.block_table + seq.cross_block_table)
        actual = Counter({block: self._num_holders[block] for block in held})
        _require(counts == actual, f"reference counts {dict(actual)}, but block tables hold {dict(counts)}")
        for seq in holders:
            self._check_tables(seq)
            _require(not self._has_states or bool(seq.block_table) == (seq.states != NO_STATES), f"no states: {seq}")
        states = [state for pair in self._free_states for state in pair]
        states += [state for seq in holders if seq.states != NO_STATES for state in seq.states]
        _require(len(set(states)) == len(states), f"a state is in two places: {sorted(states)}")

    def _check_tables(self, seq: Sequence) -> None:
        """Check that a sequence writes to no other sequence's block, and shares exactly its published blocks."""
        table, num_shared = seq.block_table, seq.num_published_blocks
        private = table[num_shared:] + seq.cross_block_table
        _require(len({*table, *seq.cross_block_table}) == len(table + seq.cross_block_table), f"a block twice: {seq}")
        _require(num_shared <= len(table), f"{num_shared} blocks are published: {seq}")
        num_computed = seq.num_computed_tokens if table else 0
        _require(num_shared * self.block_size <= num_computed, f"published before it was computed: {seq}")
        _require(num_computed <= len(table) * self.block_size, f"computed without a block: {seq}")
        shared = [block for block in private if self._num_holders[block] != 1 or self._hash_of_block[block] is not None]
        _require(not shared, f"it writes to {shared}, which others may read: {seq}")
        for block, digest in zip(table[:num_shared], seq.block_hashes, strict=False):
            _require(self._hash_of_block[block] in (None, digest), f"block {block} holds another prefix: {seq}")

    def _take_free_block(self) -> int:
        if self._blank:
            block = self._blank.pop()
            self.num_committed_blocks = max(self.num_committed_blocks, block)
        else:
            block, _ = self._cached.popitem(last=False)
            digest = self._hash_of_block[block]
            assert digest is not None, f"block {block} is cached without a prefix"
            del self._block_of_hash[digest]
            self._hash_of_block[block] = None
            if self._contents is not None:
                self._contents.remove(block)
        self._num_holders[block] = 1
        return block

    def _publish_end(self, seq: Sequence) -> None:
        """Add the incomplete last block of a finished sequence to the prefix cache."""
        index, num_tokens = divmod(seq.num_computed_tokens, self.block_size)
        if self._contents is None or not seq.publishes_prefix or not num_tokens or index >= len(seq.block_table):
            return
        if seq.num_published_blocks == index:
            digest = _digest(self._parent(seq, index), self._tokens_of(seq, index, num_tokens))
            if digest not in self._block_of_hash:
                self._index(seq, index, digest, num_tokens)

    def _index(self, seq: Sequence, index: int, digest: bytes, num_tokens: int) -> None:
        """Add the block number `index` of a sequence, with `num_tokens` tokens, to the prefix index."""
        block = seq.block_table[index]
        self._block_of_hash[digest] = block
        self._hash_of_block[block] = digest
        if self._contents is not None:
            self._contents.add(block, self._parent(seq, index), self._tokens_of(seq, index, num_tokens))

    def _tokens_of(self, seq: Sequence, index: int, num_tokens: int) -> list[int]:
        return seq.token_ids[index * self.block_size : index * self.block_size + num_tokens]

    def _parent(self, seq: Sequence, index: int) -> bytes:
        """Return the digest of the prefix before the block number `index` of a sequence."""
        return self._hashes(seq, index)[-1] if index else _digest_before(seq)

    def _hashes(self, seq: Sequence, num_blocks: int) -> list[bytes]:
        """Return the digests of the first `num_blocks` full blocks of `seq`, which are stored on it since tokens are
        only ever appended.

        Each digest covers the block's tokens and its parent's digest, hence the whole prefix; the first one also covers
        the encoder's tokens, the adapter, the cache salt, and whether the text is long. They use SHA-256, so that no
        prompt can be made to collide with another's.
        """
        hashes = seq.block_hashes
        parent = hashes[-1] if hashes else _digest_before(seq)
        for index in range(len(hashes), num_blocks):
            parent = _digest(parent, self._tokens_of(seq, index, self.block_size))
            hashes.append(parent)
        return hashes[:num_blocks]


def _digest(parent: bytes, tokens: list[int]) -> bytes:
    return sha256(parent + array("q", tokens).tobytes()).digest()


def _digest_before(seq: Sequence) -> bytes:
    """Return the parent digest of a sequence's first block."""
    digest = sha256(array("q", seq.encoder_token_ids).tobytes()).digest()
    adapter, salt = seq.request.adapter, seq.request.cache_salt
    if adapter or salt:
        digest = sha256(digest + adapter.to_bytes(8, "little") + salt.encode()).digest()
    if seq.rotary_start:  # in a long text the same tokens have different keys
        digest = sha256(digest + b"long").digest()
    return digest


def _require(holds: bool, message: str) -> None:
    # Not an assert statement: the check must also work under python -O.
    if not holds:
        raise AssertionError(message)
