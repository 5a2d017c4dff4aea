"""Run the engine as on a card with a network that does nothing, so that a step's time is only the host's part.

Only the kernels, the graphs and the choice of tokens are left out. A step is scheduled while the previous one runs, its
inputs are written and copied, the tokens are read back and processed. On a card, starting a graph, copies and events
add some tens of microseconds.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.checkpoint import random_prompts
from benchmarks.gpu.networks import Network, llama, make_ours
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.device_batch import BatchShape
from lightwell.model.network.gpu_program import GpuProgram
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.device_rows import Kind
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution.cuda_graphs import StepGraphs
from lightwell.server.engine.memory.process_memory import freeze_garbage
from lightwell.server.engine.messages.request import AttentionCapture, GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests.server.engine.driving import request

_VOCAB_SIZE, _WIDTH, _TOKEN = 1000, 32, 5
_NETWORK = llama("idle", _WIDTH, _WIDTH, 1, 2, 2, _VOCAB_SIZE)
_LAYERS, _HEADS = 16, 32
_LOOKED_AT = llama("idle, of many heads", _WIDTH, _WIDTH, _LAYERS, _HEADS, 2, _VOCAB_SIZE, head_dim=16)
"""A network for captures of all heads of all layers."""
_WARM_UP, _MEASURED = 150, 200
"""Number of warm-up steps and of measured steps."""


def step_seconds(
    num_rows: int, options: Mapping[str, Any], num_keys: int, num_looking: int | None = None
) -> list[float]:
    """Return the seconds of each step in which all sequences get a token, with a server's engine.

    options: the sampling parameters. num_keys: tokens of each prompt. num_looking: number of sequences that capture the
    attention rows of all heads of all layers, in a network with many layers; None means a network of one layer.
    """
    # The first sequence gets tokens while the others' prompts are read.
    num_tokens = _WARM_UP + _MEASURED + num_rows + 10
    with _idle():
        engine = _engine(_NETWORK if num_looking is None else _LOOKED_AT, num_rows, num_keys + num_tokens)
        pairs = tuple((layer, head) for layer in range(_LAYERS) for head in range(_HEADS))
        prompts = random_prompts(num_rows, 1, num_keys, _VOCAB_SIZE)
        for uid, prompt in enumerate(prompts):
            sampling = SamplingParams(max_tokens=num_tokens, seed=uid, ignore_eos=True, **options)
            looking = AttentionCapture(pairs=pairs, dtype="float16") if uid < (num_looking or 0) else None
            engine.add_request(request(uid, prompt, GenerateTask(sampling=sampling, attention=looking)))
        waiting = set(range(num_rows))
        while waiting:
            waiting -= {output.uid for output in engine.step().outputs}
        freeze_garbage()
        seconds = []
        for _ in range(_WARM_UP + _MEASURED):
            began = time.perf_counter()
            outputs = engine.step().outputs
            seconds.append(time.perf_counter() - began)
            assert len(outputs) == num_rows, "a step that does not give each sequence a token is another one"
    return sorted(seconds[_WARM_UP:])


def _engine(network: Network, num_rows: int, context: int) -> Engine:
    device = torch.device("cpu")
    config = EngineConfig(model=Path("in memory"), max_num_seqs=num_rows, kernels="triton")
    model = make_ours(network, torch.bfloat16, device, context, KernelConfig("triton"))
    num_blocks = num_rows * math.ceil(context / config.block_size) + 1
    cache = KVCache(model.cache_config, num_blocks, config.block_size, model.dtype, device, keys_in_rows=True)
    return Engine(model, cache, config, context)


@contextmanager
def _idle() -> Iterator[None]:
    """Let networks and graphs compute nothing; all tokens are the same."""

    def run(step: GpuProgram, inputs: Any, *_: Any) -> Tensor:
        return torch.zeros(inputs.num_rows, _WIDTH, dtype=torch.bfloat16)

    def logits(model: Transformer, hidden: Tensor, *, widen: bool = True) -> Tensor:
        return torch.zeros(len(hidden), _VOCAB_SIZE, dtype=torch.bfloat16)

    def run_graph(graphs: StepGraphs, packed: Tensor, shape: BatchShape, num_sampled: int, kind: Kind) -> Tensor:
        graphs._numbers[: len(packed)] = packed
        graphs._chosen[:num_sampled, 0] = _TOKEN
        return graphs._chosen[:num_sampled]

    with (
        mock.patch.object(GpuProgram, "run", run),
        mock.patch.object(Transformer, "logits", logits),
        mock.patch.object(StepGraphs, "prepare", return_value=None),
        mock.patch.object(StepGraphs, "run", run_graph),
    ):
        yield
