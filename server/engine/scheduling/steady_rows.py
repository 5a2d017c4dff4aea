"""Steady rows: texts that need one row in every step, for their newest token, with their numbers as arrays.

While all running sequences are such texts and none waits, a step needs a few operations on arrays in place of work for
each sequence. Before anything else happens to one of them, their sequences get the numbers back (`leave`).
"""

from collections.abc import Sequence as ReadOnlySequence

import numpy as np

from lightwell.server.engine.scheduling.block_manager import BlockManager
from lightwell.server.engine.sequence import NO_STATES, UNKNOWN, Chunk, Sequence

LEAST_ROWS = 4
"""Rows below which arrays are no faster."""


class SteadyRows:
    """The rows of the next steps. The tokens themselves stay in the sequences."""

    def __init__(self, sequences: list[Sequence], block_size: int) -> None:
        """sequences: all of them `are_steady`, in the order of rank."""
        self.sequences = sequences
        self.uids = [seq.uid for seq in sequences]
        self.starts = np.array([seq.num_computed_tokens for seq in sequences])
        """The position of each row in the next step."""
        self.is_live = True
        """True while the arrays, not the sequences, have the current numbers."""
        self._is_ahead = False
        """True while a step runs that chooses the newest token of each row."""
        self._block_size = block_size
        self._most = np.array([seq.max_num_tokens for seq in sequences])
        self._room = np.array([len(seq.block_table) for seq in sequences]) * block_size
        self._stopping = [seq.stopping_ids for seq in sequences]
        self._tables = np.zeros((len(sequences), 0), np.int32)
        self._widen()

    @property
    def tables(self) -> np.ndarray:
        """Return the blocks of each row, padded with zeros: [row, J] int32."""
        return np.ascontiguousarray(self._tables[:, : int(self._room.max()) // self._block_size])

    def grow(self, blocks: BlockManager) -> bool:
        """Give each row a block for its next position. Returns False if one has none, or may have ended."""
        if (self.starts + 1 >= self._most).any():
            return False  # a running step completes it
        for i in np.flatnonzero(self.starts >= self._room).tolist():
            seq = self.sequences[i]
            if not blocks.allocate(seq, int(self.starts[i]) + 1):
                return False
            self._room[i] = len(seq.block_table) * self._block_size
            if len(seq.block_table) > self._tables.shape[1]:
                self._widen()
            self._tables[i, len(seq.block_table) - 1] = seq.block_table[-1]
        return True

    def chunks(self) -> list[Chunk]:
        """Return the chunks of the next step."""
        return [Chunk(seq, start, 1) for seq, start in zip(self.sequences, self.starts.tolist(), strict=True)]

    def advance(self) -> None:
        """Count the positions of a step as computed."""
        self.starts = self.starts + 1  # the array of the step remains
        self._is_ahead = True

    def take(self, token_ids: ReadOnlySequence[int]) -> list[int]:
        """Append the tokens of the step before. Returns the rows that they end."""
        for seq, token_id in zip(self.sequences, token_ids, strict=True):
            seq.token_ids.append(token_id)
        self._is_ahead = False
        ended = {i for i, (token_id, ids) in enumerate(zip(token_ids, self._stopping, strict=True)) if token_id in ids}
        return sorted(ended.union(np.flatnonzero(self.starts + 1 >= self._most).tolist()))

    def filled(self) -> list[int]:
        """Return the rows with a block that the previous step filled."""
        found: list[int] = np.flatnonzero(self.starts % self._block_size == 0).tolist()
        return found

    def leave(self) -> None:
        """Give the sequences their numbers back."""
        if not self.is_live:
            return
        self.is_live = False
        for seq, start in zip(self.sequences, self.starts.tolist(), strict=True):
            seq.num_computed_tokens = start
            seq.captured_upto = max(seq.captured_upto, start)
            if self._is_ahead:
                seq.token_ids.append(UNKNOWN)
                seq.awaits_token = True

    def _widen(self) -> None:
        width = max(len(seq.block_table) for seq in self.sequences) + 8
        self._tables = np.zeros((len(self.sequences), width), np.int32)
        for i, seq in enumerate(self.sequences):
            self._tables[i, : len(seq.block_table)] = seq.block_table


def are_steady(sequences: ReadOnlySequence[Sequence]) -> bool:
    """Return whether all of these running sequences only need a step for each token."""
    return not [
        seq
        for seq in sequences
        if not (
            seq.is_plain
            and seq.num_computed_tokens + 1 == len(seq.token_ids) > seq.num_prompt_tokens
            and len(seq.token_ids) < seq.max_num_tokens
            and seq.states is NO_STATES
        )
    ]
