"""Time products of few rows with quantised weights of a 1.1B shape, in this process, without a server.

For each level and format: the times of 5 and 12 rows divided by the time of one row, and `share`, the rows per second
with five rows divided by the rows per second with 200. With `--library`, another compiled library runs in turn:
`old/new` is the median ratio of the times over pairs. It needs an idle machine.

    python -m benchmarks.products --threads 2 --library ../old/model/kernels/kernels.so
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from lightwell.model.kernels import library
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.int8_rows import Int8Rows
from lightwell.model.kernels.products import DOT, BlockedWeight, LaidWeight
from lightwell.model.quantized import GroupedRows

SHAPES = ((2048, 2048), (5632, 2048))
"""Outputs and inputs."""
_CACHES = 64 << 20
"""Bytes of weights that no cache keeps: products read them in turn."""
_CODES = (*range(-8, 8),)
FORMATS = {
    # superblock, group, whether there are mins, values
    "q4_0": (32, 32, False, _CODES),
    "q4_1": (32, 32, True, (*range(16),)),
    "q4_k": (256, 32, True, (*range(16),)),
    "q6_k": (256, 16, False, None),
    "q8_0": (32, 32, False, None),
    "mxfp4": (32, 32, False, (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)),
    "gptq": (128, 128, True, (*range(16),)),
}
"""Formats of weights in groups; the others are int8, bfloat16 and float32."""
ROWS = (1, 5, 12, 200)


@contextmanager
def _kernels_of(path: str, level: str) -> Iterator[None]:
    """Use the kernels of a library at a level."""
    found = {library.LIBRARY_VARIABLE: path, library.LEVEL_VARIABLE: level}
    with patch.dict(os.environ, {name: value for name, value in found.items() if value}):
        for cached in (library._library, library.levels, library.kernels):
            cached.cache_clear()
        yield


def make_weight(name: str, outputs: int, inputs: int, rows: str) -> LaidWeight:
    """Return a random weight. rows: their arithmetic, "float32", "bfloat16" or "int8"."""
    dtype = torch.bfloat16 if rows == "bfloat16" else torch.float32
    if name in ("float32", "bfloat16"):
        return BlockedWeight(torch.randn(outputs, inputs).to(getattr(torch, name)), DOT, dtype)
    if name == "int8":
        made = Int8Rows.quantize(torch.randn(outputs, inputs))
        return Int8BlockedWeight(made.values, made.scales, dtype, int8_activations=rows == "int8")
    superblock, group, has_min, values = FORMATS[name]
    is_nested = superblock > group
    shared, of_groups = (outputs, inputs // superblock), (outputs, inputs // group)
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    parts = GroupedRows(
        torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8) if values is None else codes,
        torch.rand(shared).half(),
        torch.rand(shared).half() if has_min else None,
        torch.randint(64, of_groups).char() if is_nested else None,
        torch.randint(64, of_groups).byte() if is_nested and has_min else None,
        values,
    )
    return GroupedWeight([parts], dtype, DOT, int8_activations=rows == "int8")


class Case:
    """Products of one library at one level with weights of one format."""

    def __init__(self, path: str, level: str, name: str, rows: str, threads: int) -> None:
        self._kernels, self._threads = (path, level), threads
        with _kernels_of(*self._kernels):
            first = [make_weight(name, *shape, rows) for shape in SHAPES]
            size = sum(weight.packed.nbytes for weight in first)
            more = [make_weight(name, *shape, rows) for _ in range(_CACHES // size) for shape in SHAPES]
        self._weights = first + more
        self.num_bytes = sum(weight.packed.nbytes for weight in self._weights)
        dtype = self._weights[0].row_dtype
        self._x = {count: torch.randn(count, SHAPES[0][1]).to(dtype) for count in ROWS}

    def seconds(self, count: int) -> float:
        """Return the seconds of one pass over the weights, with `count` rows."""
        weights = self._weights if count < 100 else self._weights[: len(SHAPES)]
        with _kernels_of(*self._kernels):
            library.kernels()  # finds the levels of the library before the time begins
            library.set_num_threads(self._threads)
            started = time.perf_counter()
            for weight in weights:
                weight.multiply(self._x[count])
            return (time.perf_counter() - started) / len(weights)


def main(options: argparse.Namespace) -> None:
    paths = ["", *([options.library] if options.library else [])]
    print(f"{'level':<14}{'format':<10}{'rows':<10}{'5/1':>7}{'12/1':>7}{'share':>7}   old/new of {ROWS}", flush=True)
    for level in options.levels or [library.levels()[0], library.levels()[-1]]:
        for rows in options.rows:
            for name in options.formats:
                cases = [Case(path, level, name, rows, options.threads) for path in paths]
                times = {
                    count: [[case.seconds(count) for case in cases] for _ in range(options.pairs + 1)][1:]
                    for count in ROWS
                }
                median = {count: statistics.median(pair[0] for pair in found) for count, found in times.items()}
                share = 5 / median[5] / (200 / median[200])
                gains = [statistics.median(pair[-1] / pair[0] for pair in found) for found in times.values()]
                ratios = f"{median[5] / median[1]:>7.2f}{median[12] / median[1]:>7.2f}{share:>7.2f}"
                print(
                    f"{level:<14}{name:<10}{rows:<10}{ratios}   {' '.join(f'{gain:.2f}' for gain in gains)}", flush=True
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="", help="the library of other sources, with the same levels")
    parser.add_argument("--levels", nargs="*", help="by default the lowest and the highest of this machine")
    parser.add_argument("--formats", nargs="*", default=[*FORMATS, "int8"])
    parser.add_argument("--rows", nargs="*", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=7)
    main(parser.parse_args())
