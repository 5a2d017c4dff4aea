"""Count the launches and copies of one step of every family without a card:
`python -m benchmarks.gpu.fake_card [FAMILY ...]`.

Exit status 1 if a step launches or copies more than its budget, or an operator mixes devices.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # its kernels would be run
import torch
from torch import Tensor

from benchmarks.gpu.fake_tensors import CUDA, Counts, counted, fake_card
from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionTap, Hooks, RowSink
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda.packed_rows import PackedRows
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import build_model
from lightwell.model.network.transformer import Transformer
from lightwell.model.quantized import LEAST_GROUP, GroupedRows, QuantizedMatrix, Weight
from lightwell.model.sampling.sampler import SamplerRow
from lightwell.server.engine.execution.cuda_graphs import StepSizes
from lightwell.server.engine.execution.device_executor import DeviceExecutor
from lightwell.server.engine.execution.device_runner import DeviceRunner, SampledRow
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests import tiny

BLOCK = 16
_MATRICES = (".qkv.weight", ".attn_out.weight", ".gate_up.weight", ".up.weight", ".down.weight")


@dataclass(frozen=True)
class Budget:
    launches: int
    """Launches a layer."""
    readbacks: int = 0
    outside: int = 20
    """Launches outside the layers: the embedding, the final norm, the head, and the choice of tokens."""


DECODE, WITH_CROSS, ENCODE = Budget(9, readbacks=1), Budget(16, readbacks=1), Budget(12)
WITH_MORE = Budget(14, readbacks=1)
"""Budget of blocks with experts, a recurrent state or per-layer inputs."""
WITH_BOTH = Budget(21, readbacks=1)
"""Budget of blocks with an MLP and experts, each with its own norms."""
SPLIT_PRODUCTS = 4
"""Maximum number of a layer's products that need a second launch with batch invariance (few outputs)."""
GREEDY: Mapping[str, Any] = {"temperature": 0.0}


def main(arguments: list[str] | None = None) -> int:
    """Count, print a table, and return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.fake_card", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAMILY", help=f"of {', '.join(tiny.VARIANTS)}")
    parser.add_argument(
        "--places", action="store_true", help="also print what is launched, and from where it is copied"
    )
    parser.add_argument("--int4", action="store_true", help="of matrices of the blocks with 4 bits")
    parser.add_argument("--batch-invariant", action="store_true", help="of networks whose rows' bits ignore the batch")
    options = parser.parse_args(arguments)
    status = 0
    for name in options.names or tiny.VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            config = read_config(tiny.make_variant(name, Path(folder)))
            weights = load_weights(Path(folder), config, torch.bfloat16)
        packed = packed_weights(weights) if options.int4 else {}
        with fake_card(), mock.patch.object(PackedRows, "of", lambda part, packed=packed: there(packed[id(part)])):
            model = on_card(config, weights, batch_invariant=options.batch_invariant)
            if model.decoder is not None and model.decoder.gpu_program is None:
                print(f"{name:24} block by block: it has no budget")  # a mixture of experts
                continue
            for what, budget, run in steps(model):
                if options.batch_invariant:
                    budget = replace(budget, launches=budget.launches + SPLIT_PRODUCTS)
                counts = counted(run)
                problem = exceeded(counts, budget, layers_of(model, what))
                status |= bool(problem)
                print(line(name, what, counts, layers_of(model, what), problem))
                if options.places:
                    print("   ", dict(counts.launches.most_common()), counts.places)
    return status


def line(name: str, what: str, counts: Counts, layers: int, problem: str) -> str:
    launches = counts.launches.total()
    copies = ", ".join(f"{counts[kind]} {kind}s" for kind in ("upload", "readback", "wait"))
    return f"{name:24} {what:24} {layers:3} layers {launches:5} launches, {copies}  {problem}"


def exceeded(counts: Counts, budget: Budget, layers: int) -> str:
    """Return the counts of a step that exceed its budget as text, or an empty string."""
    most = budget.launches * layers + budget.outside
    found = {
        f"{most} launches": counts.launches.total() > most,
        "1 upload": counts["upload"] > 1,
        f"{budget.readbacks} readbacks": counts["readback"] > budget.readbacks,
        "no waits": counts["wait"] > 0,
    }
    wrong = [accepted for accepted, is_exceeded in found.items() if is_exceeded]
    return f"EXCEEDS {', '.join(wrong)}" if wrong else ""


def packed_weights(weights: dict[str, Weight]) -> dict[int, PackedRows]:
    """Replace the blocks' matrices by quantised ones, and return their packed rows, by the identity of the parts."""
    packed = dict[int, PackedRows]()
    for name, weight in weights.items():
        if name.endswith(_MATRICES) and isinstance(weight, Tensor) and weight.shape[1] % LEAST_GROUP == 0:
            part = GroupedRows.quantize(weight)
            weights[name] = replace(QuantizedMatrix.of([part], weight.dtype), device=CUDA)
            packed[id(part)] = PackedRows.of(part)
    return packed


def there(rows: PackedRows) -> PackedRows:
    """Return rows on the card, without numbers."""
    empty = {name: torch.empty(each.shape, dtype=each.dtype, device=CUDA) for name, each in rows.tensors.items()}
    return replace(rows, **empty)


def on_card(config: ModelConfig, weights: Mapping[str, Weight], *, batch_invariant: bool = False) -> Transformer:
    there = {
        name: torch.empty(each.shape, dtype=each.dtype, device=CUDA) if isinstance(each, Tensor) else each
        for name, each in weights.items()
    }
    with mock.patch.object(Tensor, "__float__", return_value=1.0):  # factors that the host reads once, at load
        return build_model(
            config, there, context=config.max_model_len, kernels=KernelConfig("triton"), batch_invariant=batch_invariant
        )


def layers_of(model: Transformer, what: str) -> int:
    stack = model.encoder if what.startswith("encode") else model.decoder
    assert stack is not None
    return stack.config.num_layers


def steps(model: Transformer) -> Iterator[tuple[str, Budget, Callable[[], object]]]:
    if model.encoder is not None:
        layers = model.encoder.config.num_layers
        yield (
            "encode 32 texts",
            ENCODE,
            lambda: model.encode(Batch.unchunked([[5] * 30] * 32, BLOCK, CUDA, [layers] * 32)),
        )
    if model.decoder is None:
        return
    layers, heads = model.config.num_layers, model.config.num_heads
    cache = KVCache(model.cache_config, 400, BLOCK, torch.bfloat16, CUDA, keys_in_rows=True)
    has_cross = model.config.kind == "encoder-decoder"
    cross: dict[str, object] = {"cross_block_table": [390, 391], "num_cross_keys": 30} if has_cross else {}
    config = model.config
    has_more = config.experts is not None or config.recurrence is not None or config.per_layer_size is not None
    decode = WITH_CROSS if has_cross else WITH_MORE if has_more else DECODE
    if config.experts is not None and config.experts.beside_mlp:
        decode = WITH_BOTH

    def span(count: int, start: int, i: int) -> Span:
        num_blocks = -(-(start + count) // BLOCK)
        return Span([5] * count, start, range(1 + i * num_blocks, 1 + (i + 1) * num_blocks), layers, **cross)

    executor = DeviceExecutor(model, cache, StepSizes(64, 256, model.config.max_model_len), has_graphs=False)
    runner = DeviceRunner(model, executor)

    def forward(
        spans: list[Span], taps: tuple[AttentionTap, ...] = (), options: Mapping[str, Any] = GREEDY
    ) -> Callable[[], object]:
        params = SamplingParams(max_tokens=9, seed=1, **options)
        rows = [
            SampledRow(i, i, SamplerRow(params, 9, [5] * 9, 5)) for i, each in enumerate(spans) if each.num_rows == 1
        ]
        hooks = Hooks(attention=taps) if taps else None
        return lambda: runner.run(Batch(spans, BLOCK, CUDA), hooks, rows)

    def looking(i: int) -> AttentionTap:
        every = HeadPairs.of([(layer, head) for layer in range(layers) for head in range(heads)], layers, heads)
        return AttentionTap(i, [i], every, "pattern", RowSink())

    single = [span(1, 40, i) for i in range(32)]
    yield "decode 32 rows", decode, forward(single)
    drawing = replace(decode, outside=decode.outside + 2)
    yield "decode, top-p", drawing, forward(single, options={"temperature": 0.8, "top_p": 0.9})
    edits = {"repetition_penalty": 1.1, "logprobs": 3}
    yield "decode, edited, logprobs", replace(decode, outside=100), forward(single, options=edits)
    more = Budget(decode.launches + 1, readbacks=2)
    yield "decode, 8 of 32 look", more, forward(single, tuple(looking(i) for i in range(8)))
    more = replace(decode, launches=decode.launches + (6 if has_cross else 4))
    yield "31 decode, 4 chunks", more, forward([*single[:31], *(span(9, 9, 10 + i) for i in range(4))])
    yield "prompts", replace(decode, readbacks=0), forward([span(9 + i, 0, i) for i in range(4)])


if __name__ == "__main__":
    sys.exit(main())
