"""Edits of logits before the choice of a token: banned ids, logit_bias, and penalties of earlier tokens.

The order is vLLM's: banned ids and biases, then the repetition penalty, then presence and frequency penalties. To add
an edit, name its parameter in `EditOptions`, and collect and apply it in `LogitEdits` and in
`model.sampling.device_edits`, which gives the same results.

Axes: R rows, V vocabulary.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Protocol

import torch
from torch import Tensor


class EditOptions(Protocol):
    """The parameters that edit logits. The values are valid."""

    def edits_logits(self, num_generated: int = 0) -> bool:
        """Return whether any parameter edits the logits of the token after `num_generated`."""
        ...

    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def stopping_ids(self) -> Collection[int]: ...


class LogitEdits:
    """The edits of several rows of logits, collected row by row and applied to all at once."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._biases, self._repetitions, self._counts = _CellValues(), _CellValues(), _CellValues()

    def add(self, row: int, options: EditOptions, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Add the edits of one row; `token_ids` are the prompt's and then the generated ones."""
        num_generated = len(token_ids) - num_prompt_tokens
        if not options.edits_logits(num_generated):
            return
        bias = dict(options.logit_bias)
        if num_generated < options.min_tokens:
            bias.update((i, -math.inf) for i in options.stopping_ids if i < self._vocab_size)
        self._biases.add(row, bias, bias.values())
        if options.repetition_penalty != 1.0:
            self._repetitions.add(row, token_ids, repeat(options.repetition_penalty, len(token_ids)))
        if options.presence_penalty != 0.0 or options.frequency_penalty != 0.0:
            counts = Counter(token_ids[num_prompt_tokens:])
            penalties = [options.frequency_penalty * n + options.presence_penalty for n in counts.values()]
            self._counts.add(row, counts, penalties)

    def apply(self, scores: Tensor) -> None:
        """Edit the scores [R, V] in place."""
        self._biases.apply(scores, torch.add)
        # Keskar et al., "CTRL", arXiv 1909.05858, with the sign rule of transformers
        self._repetitions.apply(scores, lambda old, penalty: torch.where(old < 0, old * penalty, old / penalty))
        self._counts.apply(scores, torch.sub)


class _CellValues:
    """Cells (row, token id) of the scores, each with a value: one kind of edit of all rows."""

    def __init__(self) -> None:
        self.ids = array("q")
        self.values: list[float] = []
        self.rows: list[int] = []
        self.lengths: list[int] = []

    def add(self, row: int, ids: Collection[int], values: Iterable[float]) -> None:
        """Add one row's cells; a cell may occur twice, with the same value."""
        self.rows.append(row)
        self.lengths.append(len(ids))
        self.ids.extend(ids)
        self.values.extend(values)

    def apply(self, scores: Tensor, edit: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Set scores[cell] = edit(scores[cell], value), in place."""
        if not self.ids:
            return
        rows = torch.tensor(self.rows).repeat_interleave(torch.tensor(self.lengths))
        cells = (rows * scores.shape[1] + torch.frombuffer(self.ids, dtype=torch.long)).to(scores.device)
        values = torch.tensor(self.values, dtype=scores.dtype, device=scores.device)
        flat = scores.view(-1)
        flat.scatter_(0, cells, edit(flat[cells], values))
