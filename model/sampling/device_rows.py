"""Packed rows for `DeviceSampler`: the parameters of a step's rows in one array, and its results from another.

Both are int64, so that they can be part of a larger copy; floats are stored as their float64 bits. Independent of the
device.

Axes: R rows of the graph, K alternatives.
"""

from collections.abc import Sequence
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightwell.model.sampling.distribution import GREEDY_BELOW
from lightwell.model.sampling.philox import random_uniforms
from lightwell.model.sampling.sampler import SampledToken, SamplerRow

Int64 = npt.NDArray[np.int64]

_TEMPERATURE, _MIN_P, _TOP_P, _UNIFORM, _TOP_K = range(5)
"""Lines of packed rows: all but the last are floats."""
_NUM_LINES = 5

_EVERY_P = 2.0
"""The top_p of rows that keep all: no sum of rounded probabilities reaches it, as one might reach 1."""
_EVERY_K = np.iinfo(np.int64).max
_GREEDY_UNIFORM = -1.0


class Kind(IntFlag):
    """The operations that the rows of a batch need in addition to the largest logit. More operations than needed do
    not change the result.
    """

    GREEDY = 0
    RANDOM = 1
    """Temperature, min_p and a draw."""
    TOP_K = 2
    TOP_P = 4

    @classmethod
    def of(cls, rows: Sequence[SamplerRow]) -> "Kind":
        """Return the smallest kind that is sufficient for all rows."""
        drawing = [row.params for row in rows if row.params.temperature >= GREEDY_BELOW]
        return cls(
            (cls.RANDOM if drawing else 0)
            | (cls.TOP_K if any(params.top_k > 0 for params in drawing) else 0)
            | (cls.TOP_P if any(params.top_p < 1.0 for params in drawing) else 0)
        )


def num_alternatives(rows: Sequence[SamplerRow]) -> int | None:
    """Return the largest number of alternatives of any row, or None if no row needs log-probabilities."""
    return max((row.params.logprobs for row in rows if row.params.logprobs is not None), default=None)


def packed_size(num_rows: int) -> int:
    """Return the number of elements of R packed rows."""
    return _NUM_LINES * num_rows


def pack(rows: Sequence[SamplerRow], out: Int64) -> None:
    """Write the rows to out [packed_size], contiguous int64. Unused rows become greedy.

    Raises ValueError if they do not fit.
    """
    lines = out.reshape(_NUM_LINES, -1)
    if len(rows) > lines.shape[1]:
        raise ValueError(f"{len(rows)} rows do not fit {lines.shape[1]} packed ones")
    numbers = lines[:_TOP_K].view(np.float64)
    numbers[:] = ((1.0,), (0.0,), (_EVERY_P,), (_GREEDY_UNIFORM,))
    lines[_TOP_K] = _EVERY_K
    drawing = [r for r, row in enumerate(rows) if row.params.temperature >= GREEDY_BELOW]
    if not drawing:
        return
    params = [rows[r].params for r in drawing]
    at = slice(len(rows)) if len(drawing) == len(rows) else drawing  # which numpy is slower with
    numbers[_TEMPERATURE, at] = [each.temperature for each in params]
    numbers[_MIN_P, at] = [each.min_p for each in params]
    numbers[_TOP_P, at] = [each.top_p if each.top_p < 1.0 else _EVERY_P for each in params]
    numbers[_UNIFORM, at] = random_uniforms([each.seed for each in params], [rows[r].position for r in drawing])
    lines[_TOP_K, at] = [each.top_k if each.top_k > 0 else _EVERY_K for each in params]


class PackedRows:
    """Packed rows on the device, as columns [R, 1], which are read without synchronisation."""

    def __init__(self, packed: Tensor) -> None:
        """Read packed [packed_size] int64."""
        lines = packed.view(_NUM_LINES, -1, 1)
        numbers = lines.view(torch.float64)
        self.scales = numbers[_TEMPERATURE : _MIN_P + 1]
        """Temperature and min_p [2, R, 1], to be converted to the type of the logits."""
        self.top_p = numbers[_TOP_P]
        self.uniform = numbers[_UNIFORM]
        """The random number; negative where the choice is greedy."""
        self.top_k = lines[_TOP_K]


def result_width(k: int | None) -> int:
    """Return the number of columns of a result with log-probabilities and K alternatives, or with none."""
    return 2 if k is None else 4 + 2 * k


def unpack(result: npt.NDArray[Any], rows: Sequence[SamplerRow]) -> list[SampledToken]:
    """Return the tokens of the rows from the host's copy of a result [R, result_width]."""
    ids: list[int] = result[: len(rows), 0].tolist()
    if result.shape[1] == result_width(None):
        return [SampledToken(token_id) for token_id in ids]
    k = (result.shape[1] - result_width(0)) // 2
    numbers = result.view(np.float64)
    logprobs, ranks = numbers[:, 2].tolist(), result[:, 3].tolist()
    top_ids, top_logprobs = result[:, 4 : 4 + k].tolist(), numbers[:, 4 + k :].tolist()
    tokens = []
    for r, (token_id, row) in enumerate(zip(ids, rows, strict=True)):
        asked = row.params.logprobs
        if asked is None:
            tokens.append(SampledToken(token_id))
        else:
            top = tuple(zip(top_ids[r][:asked], top_logprobs[r][:asked], strict=True))
            tokens.append(SampledToken(token_id, logprobs[r], ranks[r], top))
    return tokens


def chosen_logits(result: npt.NDArray[Any], num_rows: int) -> list[float]:
    """Return the logits of the chosen tokens, unedited. They may be infinite or NaN, as in the row."""
    numbers: list[float] = result.view(np.float64)[:num_rows, 1].tolist()
    return numbers
