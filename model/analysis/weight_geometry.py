"""Geometry of the rows of a matrix: cosines of all pairs, and singular values, computed in blocks.

Cosines are computed in float32 (float64 for float64 weights), counted and summed in float64; the singular values come
from the smaller Gram matrix, which is summed and decomposed in float64, so values under about 1e-8 of the largest are
noise.

Axes: N vectors of dimension d.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from lightwell.model.analysis.spectra import QUANTILES
from lightwell.model.layers.attention_arithmetic import at_least_float32

Check = Callable[[], None]
"""A function called between blocks; it raises to stop the work."""

MAX_PAIRS = 200_000_000
MAX_PRODUCTS = 100_000_000_000
"""Pairs times d up to which all pairs are compared by default: a few seconds of one core."""
SAMPLED_PAIRS = 200_000
FINE_BINS = 4000
"""Bins of the counts from which quantiles are read, each 0.0005 wide."""
BINS = 200
"""Bins of the histogram that is returned, each 0.01 wide."""
MAX_SPECTRUM = 8192
"""The longest smaller side whose Gram matrix is decomposed."""
NUM_CLOSEST = 16
"""How many pairs of largest |cosine| are named."""
_BLOCK = 1024
_GATHERED = 512  # vectors gathered at once: the allocator keeps such buffers, and larger ones take six times as long


@dataclass(slots=True)
class _Tally:
    """Statistics of the cosines so far."""

    counts: torch.Tensor
    """[FINE_BINS] over [-1, 1]."""
    closest: torch.Tensor
    """[n] the largest |cosine|, signed."""
    pairs: torch.Tensor
    """[n, 2] their pairs."""
    number: int = 0
    total: float = 0.0
    squares: float = 0.0
    smallest: float = 1.0
    largest: float = -1.0

    @classmethod
    def empty(cls) -> "_Tally":
        return cls(torch.zeros(FINE_BINS, dtype=torch.float64), torch.empty(0), torch.empty(0, 2, dtype=torch.int64))

    def add(self, cosines: torch.Tensor, name: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Count cosines [n]; `name` gives the pairs [k, 2] of some of their indices [k]."""
        if not len(cosines):
            return
        cosines = cosines.clamp(-1.0, 1.0)  # rounding can exceed it
        self.number += len(cosines)
        self.total += float(cosines.sum(dtype=torch.float64))
        self.squares += float((cosines * cosines).sum(dtype=torch.float64))
        self.counts += torch.histc(cosines, FINE_BINS, -1.0, 1.0)
        self.smallest = min(self.smallest, float(cosines.min()))
        self.largest = max(self.largest, float(cosines.max()))
        sizes = cosines.abs()
        if len(self.closest) == NUM_CLOSEST and float(sizes.max()) <= float(self.closest[-1].abs()):
            return
        best = sizes.topk(min(NUM_CLOSEST, len(sizes))).indices
        values = torch.cat([self.closest.to(cosines.dtype), cosines[best]])
        pairs = torch.cat([self.pairs, name(best)])
        order = values.abs().argsort(descending=True, stable=True)[:NUM_CLOSEST]
        self.closest, self.pairs = values[order], pairs[order]


def geometry(
    vectors: torch.Tensor,
    check: Check,
    *,
    max_pairs: int | Literal["all"] | None = None,
    seed: int = 0,
    spectrum: bool = True,
) -> dict[str, torch.Tensor]:
    """Return the statistics of the cosines of N vectors, and the singular values of their matrix.

    Args:
        vectors: [N, d], of any dtype and layout.
        check: called between blocks.
        max_pairs: number of pairs to compare, drawn with replacement and with `seed`, if there are more; "all" compares
            each; None compares all if that is affordable (MAX_PAIRS, MAX_PRODUCTS), else SAMPLED_PAIRS of them.
        seed: of the drawing.
        spectrum: also return the singular values, where the smaller side is at most MAX_SPECTRUM.

    Returns:
        counts int64 [num_vectors, dimension, zero vectors (left out of the pairs), number of pairs, pairs compared,
        whether they were drawn], moments float64 [mean, standard deviation, smallest, largest] of the cosines,
        quantiles [QUANTILES] to within 0.0005, histogram [BINS] over [-1, 1], closest [k] the largest compared
        |cosine|, signed, and closest_pairs int64 [k, 2], norms [smallest, mean, largest length], and singular_values,
        largest first.

    Raises ValueError for vectors with NaN or infinite numbers.
    """
    count, dimension = vectors.shape
    norms = torch.cat([block.norm(dim=1) for block in _blocks(vectors, check)])
    broken = (~norms.isfinite()).nonzero().flatten()
    if len(broken):
        raise ValueError(f"the weights are damaged: {len(broken)} of {count} vectors contain infinite numbers or NaN")
    is_there = norms.nonzero().flatten()
    num_pairs = len(is_there) * (len(is_there) - 1) // 2
    if max_pairs is None:
        max_pairs = "all" if num_pairs <= min(MAX_PAIRS, MAX_PRODUCTS // dimension) else SAMPLED_PAIRS
    wanted = num_pairs if max_pairs == "all" else max_pairs
    is_drawn = wanted < num_pairs
    units = _Units(vectors, norms, is_there)
    tally = _drawn(units, wanted, seed, check) if is_drawn else _all(units, check)
    mean = tally.total / max(tally.number, 1)
    spread = max(tally.squares / max(tally.number, 1) - mean * mean, 0.0) ** 0.5
    counts = [count, dimension, count - len(is_there), num_pairs, tally.number, int(is_drawn)]
    found = {
        "counts": torch.tensor(counts, dtype=torch.int64),
        "moments": torch.tensor([mean, spread, tally.smallest, tally.largest], dtype=torch.float64),
        "quantiles": _quantiles(tally.counts),
        "histogram": tally.counts.view(BINS, -1).sum(1),
        "closest": tally.closest.to(torch.float64),
        "closest_pairs": tally.pairs,
        "norms": torch.stack([norms.min(), norms.mean(), norms.max()]).to(torch.float64),
    }
    if spectrum and min(count, dimension) <= MAX_SPECTRUM:
        found["singular_values"] = singular_values(vectors, check)
    return found


def singular_values(matrix: torch.Tensor, check: Check) -> torch.Tensor:
    """Return the singular values of a matrix [N, d], float64, largest first: the roots of the eigenvalues of its
    smaller Gram matrix.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    for wide in (block.to(torch.float64) for block in _blocks(tall, check)):
        for i in range(0, len(gram), 128):  # only the upper triangle
            gram[i : i + 128, i:] += wide[:, i : i + 128].T @ wide[:, i:]
    check()
    eigenvalues: torch.Tensor = torch.linalg.eigvalsh(gram, UPLO="U")  # ascending
    return eigenvalues.clamp(min=0.0).sqrt().flip(0)


@dataclass(slots=True)
class _Units:
    """The nonzero vectors, scaled to length 1 when they are read."""

    vectors: torch.Tensor
    norms: torch.Tensor
    is_there: torch.Tensor
    """[n], the indices of the nonzero vectors."""

    def __len__(self) -> int:
        return len(self.is_there)

    def take(self, chosen: torch.Tensor | slice) -> torch.Tensor:
        """Return the chosen vectors [k, d]."""
        rows = self.is_there[chosen]
        return self.vectors[rows].to(self.norms.dtype) / self.norms[rows, None]


def _blocks(vectors: torch.Tensor, check: Check) -> Iterator[torch.Tensor]:
    for start in range(0, len(vectors), _BLOCK):
        check()
        yield vectors[start : start + _BLOCK].to(at_least_float32(vectors.dtype))


def _all(units: _Units, check: Check) -> _Tally:
    """Compare each pair once, a block of rows with itself and with later blocks."""
    tally = _Tally.empty()
    for i in range(0, len(units), _BLOCK):
        here = units.take(slice(i, i + _BLOCK))
        for j in range(i, len(units), _BLOCK):
            check()
            cosines = here @ (here if i == j else units.take(slice(j, j + _BLOCK))).T
            height, width = cosines.shape
            if i == j:
                place = torch.triu_indices(height, width, 1)
                tally.add(cosines[place[0], place[1]], lambda k, p=place, i=i: units.is_there[i + p[:, k].T])  # type: ignore[misc]
            else:
                start = torch.tensor([i, j])
                tally.add(
                    cosines.flatten(),
                    lambda k, s=start, w=width: units.is_there[s + torch.stack([k // w, k % w], 1)],  # type: ignore[misc]
                )
    return tally


def _drawn(units: _Units, wanted: int, seed: int, check: Check) -> _Tally:
    """Compare pairs of different vectors, drawn with replacement."""
    tally = _Tally.empty()
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, wanted, 1 << 14):
        check()
        number = min(1 << 14, wanted - start)
        first = torch.randint(len(units), (number,), generator=generator)
        other = torch.randint(len(units) - 1, (number,), generator=generator)
        other += other >= first  # any but the first, all alike
        drawn = torch.stack([first, other], 1)
        cosines = torch.cat([torch.mul(*units.take(each.T)).sum(1) for each in torch.split(drawn, _GATHERED)])
        pairs = units.is_there[drawn]
        tally.add(cosines, lambda k, pairs=pairs: pairs[k])  # type: ignore[misc]
    return tally


def _quantiles(counts: torch.Tensor) -> torch.Tensor:
    """Return the quantiles from the fine counts, interpolated within each bin."""
    cumulated = counts.cumsum(0)
    wanted = torch.tensor(QUANTILES, dtype=torch.float64) * cumulated[-1]
    bins = torch.searchsorted(cumulated, wanted).clamp(max=len(counts) - 1)
    below = cumulated[bins] - counts[bins]
    within = ((wanted - below) / counts[bins].clamp(min=1.0)).clamp(0.0, 1.0)
    return -1.0 + (bins + within) * (2.0 / len(counts))
