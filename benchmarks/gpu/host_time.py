"""Measure the host's time per step, without a device: `TRITON_INTERPRET=1 python -m benchmarks.gpu.host_time`.

Whole steps are an engine's, with a network that does nothing (`benchmarks.gpu.idle_network`). Each function of
`MEASUREMENTS` measures parts of a step: it takes the rows of a step and returns the timed functions by name.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.idle_network import step_seconds
from lightwell.model.sampling.device_edits import PackedEdits, RowEdits
from lightwell.model.sampling.device_rows import Kind, num_alternatives, pack, packed_size, result_width, unpack
from lightwell.model.sampling.device_sampler import DeviceSampler
from lightwell.model.sampling.sampler import SamplerRow
from lightwell.server.engine.messages.sampling_params import SamplingParams

NUM_ROWS = (1, 32, 256)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_p, 5 logprobs": {"temperature": 0.8, "top_p": 0.9, "logprobs": 5},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1},
}
WHOLE_STEPS = ("greedy", "top_p")
"""The sampling options with which whole steps are measured."""
_LOOKING_STREAMS = 8
"""Number of streams in the measurement with captures: some capture the attention rows of 32 heads of 16 layers."""
_ROUNDS = 3
"""Rounds of each measurement of whole steps; the fastest counts, as other load on the machine varies."""
_VOCAB_SIZE = 128_256
_PROMPT, _ANSWER = 500, 500

Parts = Mapping[str, Callable[[], object]]


def make_rows(num_rows: int, options: Mapping[str, Any]) -> list[SamplerRow]:
    """Return the rows of sequences in the middle of an answer."""
    rng = random.Random(num_rows)
    rows = []
    for _ in range(num_rows):
        params = SamplingParams(max_tokens=_ANSWER, seed=rng.getrandbits(63), **options)
        ids = [rng.randrange(_VOCAB_SIZE) for _ in range(_PROMPT + _ANSWER)]
        rows.append(SamplerRow(params, len(ids), ids, _PROMPT))
    return rows


def sampling(rows: Sequence[SamplerRow]) -> Parts:
    """Return the host's work of the device sampler, without copies and the start of a graph."""
    packed = np.zeros(packed_size(len(rows)), np.int64)
    result = np.zeros((len(rows), result_width(num_alternatives(rows))), np.int64)

    def pack_all() -> None:
        if Kind.of(rows):  # a greedy step needs no numbers
            pack(rows, packed)

    return {"pack": pack_all, "unpack": lambda: unpack(result, rows)}


def edits(rows: Sequence[SamplerRow]) -> Parts:
    """Return the work of edits in a step that adds no tokens, which is nearly their work in any step."""
    if not any(row.params.edits_logits(_ANSWER) for row in rows):
        return {}
    kept = [RowEdits(row.params, _VOCAB_SIZE, row.num_prompt_tokens) for row in rows]
    packed = np.zeros(sum(3 + 2 * len(row.token_ids) for row in rows), np.int64)

    def collect() -> None:
        found = PackedEdits(_VOCAB_SIZE)
        for r, (row, edit) in enumerate(zip(rows, kept, strict=True)):
            found.add(r, edit, row.token_ids)
        capacity = found.least_capacity(len(rows))
        found.pack(packed[: capacity.packed_size], capacity)

    return {"edits": collect}


MEASUREMENTS: tuple[Callable[[Sequence[SamplerRow]], Parts], ...] = (sampling, edits)


def microseconds(function: Callable[[], object], *, least_seconds: float = 0.2) -> float:
    function()
    times: list[float] = []
    gc.collect()
    while sum(times) < least_seconds:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


class _Counter(TorchDispatchMode):
    """Counts operations that are not views: about as many kernels as a graph has."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func.name().startswith(("aten::empty", "aten::_unsafe_view")))
        return func(*args, **(kwargs or {}))


def num_operations(kind: Kind, logprobs: int | None, num_rows: int = 1) -> int:
    logits = torch.empty(num_rows, _VOCAB_SIZE, dtype=torch.bfloat16, device="meta")
    packed = torch.empty(packed_size(num_rows), dtype=torch.int64, device="meta")
    with _Counter() as counter:
        DeviceSampler(_VOCAB_SIZE).sample(kind, logits, packed, logprobs=logprobs)
    found: int = counter.count
    return found


def main() -> None:
    for name, options in OPTIONS.items():
        for num_rows in NUM_ROWS:
            rows = make_rows(num_rows, options)
            parts = {part: call for measured in MEASUREMENTS for part, call in measured(rows).items()}
            times = ", ".join(f"{part} {microseconds(call):.0f} us" for part, call in parts.items())
            if name in WHOLE_STEPS:
                rounds = [step_seconds(num_rows, options, _PROMPT + _ANSWER) for _ in range(_ROUNDS)]
                p50, p90 = min((statistics.median(each), each[int(0.9 * len(each))]) for each in rounds)
                times += f", whole step {1e6 * p50:.0f} us (p90 {1e6 * p90:.0f})"
            print(f"{name:>18} {num_rows:4} rows: {times}", flush=True)
    for num_looking in (0, 1, _LOOKING_STREAMS):
        rounds = [step_seconds(_LOOKING_STREAMS, {}, _PROMPT, num_looking) for _ in range(_ROUNDS)]
        p50 = min(statistics.median(each) for each in rounds)
        print(f"{_LOOKING_STREAMS} rows, {num_looking} with all patterns: whole step {1e6 * p50:.0f} us", flush=True)
    for kind in (Kind.GREEDY, Kind.RANDOM, Kind.RANDOM | Kind.TOP_K, Kind.RANDOM | Kind.TOP_P, Kind(7)):
        counts = [num_operations(kind, k) for k in (None, 0, 5)]
        print(f"{kind!r}: operations {counts[0]}, with log-probabilities {counts[1]}, with alternatives {counts[2]}")


if __name__ == "__main__":
    main()
