"""Measure our engine in process: tokens per second while all sequences decode, the time of a graph, long prompts, steps
with prompts among streams, and a start.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from benchmarks.checkpoint import random_prompts
from benchmarks.gpu.clock import seconds, wait_for
from benchmarks.gpu.plan import Plan
from lightwell.model.batch import Batch, Span
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers import device_batch
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.device_rows import Kind
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution.cuda_graphs import StepGraphs
from lightwell.server.engine.messages.outputs import RequestOutput
from lightwell.server.engine.messages.request import AttentionCapture
from tests.server.engine.driving import generate, request

CAPTURE_TOKENS = 256
"""The default of a server on a card (`server.engine.loading`)."""


def make_engine(
    model: Transformer, plan: Plan, *, max_num_seqs: int, max_len: int, max_tokens: int, graphs: bool = True
) -> Engine:
    """Return an engine with room for `max_num_seqs` sequences of `max_len` tokens. max_tokens: of a step."""
    config = EngineConfig(
        model=Path("in memory"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_tokens,
        max_capture_tokens=CAPTURE_TOKENS,
        enable_prefix_caching=False,
        block_size=plan.block_size,
        cuda_graphs="on" if graphs else "off",
    )
    num_blocks = max_num_seqs * -(-max_len // plan.block_size) + 1
    return Engine(model, make_cache(model, plan, num_blocks), config, max_len)


def make_cache(model: Transformer, plan: Plan, num_blocks: int) -> KVCache:
    return KVCache(
        model.cache_config, num_blocks, plan.block_size, model.dtype, model.device, keys_in_rows=model.keys_in_rows
    )


def graphs_of(engine: Engine) -> StepGraphs | None:
    """Return the graphs that an engine really uses."""
    runner = engine._runner._on_device
    return None if runner is None else runner._executor.graphs


def step(engine: Engine) -> Sequence[RequestOutput]:
    """Run a step, and return its outputs. Raises RuntimeError when a request ends in an error."""
    outputs = engine.step().outputs
    for output in outputs:
        if output.error is not None:
            raise RuntimeError(output.error)
    return outputs


def ask(engine: Engine, uid: int, prompt: Sequence[int], num_tokens: int, *, looks: bool = False) -> None:
    """Add a request for `num_tokens` greedy tokens. looks: capture the attention rows of all layers and heads."""
    capture = None
    if looks:
        config = engine._model.config
        pairs = tuple((layer, head) for layer in range(config.num_layers) for head in range(config.num_heads))
        capture = AttentionCapture(pairs=pairs, dtype="float16")
    engine.add_request(request(uid, prompt, generate(num_tokens, seed=0, ignore_eos=True, attention=capture)))


def decode_tokens_per_second(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int, num_looking: int = 0
) -> float:
    """Return the tokens a second while all sequences decode: from when each has its first token until one ends.

    num_looking: how many of them capture the attention rows of all layers and heads.
    """
    for uid, prompt in enumerate(prompts):
        ask(engine, uid, prompt, num_tokens, looks=uid < num_looking)
    waiting = set(range(len(prompts)))
    while waiting:
        waiting -= {output.uid for output in step(engine) if output.token_id is not None}
    began, count = time.perf_counter(), 0
    while engine.has_work:
        outputs = step(engine)
        count += sum(output.token_id is not None for output in outputs)
        if any(output.finish_reason for output in outputs):
            break
    rate = count / (time.perf_counter() - began)
    while engine.has_work:
        step(engine)
    return rate


@torch.inference_mode()
def graph_seconds(engine: Engine, plan: Plan, num_rows: int, num_keys: int) -> float:
    """Return the seconds of a graph of one greedy token for each sequence, without the host's work."""
    graphs, model = graphs_of(engine), engine._model
    assert graphs is not None, "the engine has no graphs"
    size, layers = engine._runner.cache.block_size, model.config.num_layers
    width = -(-num_keys // size)
    spans = [Span([1], num_keys - 1, range(1 + row * width, 1 + (row + 1) * width), layers) for row in range(num_rows)]
    packing = graphs.packing(Batch(spans, size, model.device), (), 0, range(num_rows))
    assert packing is not None, "these rows are of no graph"
    on_host = device_batch.on_host(packing.size, model.device)
    packing.write(on_host.numpy())[:] = 0
    numbers = device_batch.upload(on_host, model.device)
    run = partial(graphs.run, numbers, packing.shape, packing.shape.rows, Kind.GREEDY)
    return seconds(run, model.device, repeats=plan.repeats, calls=plan.calls)


@torch.inference_mode()
def prefill_seconds(model: Transformer, plan: Plan) -> float:
    """Return the seconds of one prompt of `plan.long_prompt` tokens, with the logits of its last token."""
    count, size = plan.long_prompt, plan.block_size
    num_blocks = -(-count // size)
    cache = make_cache(model, plan, num_blocks + 1)
    ids = torch.randint(1, model.config.vocab_size, (count,)).tolist()

    def run() -> None:
        span = Span(ids, 0, range(1, num_blocks + 1), model.config.num_layers)
        hidden = model.forward(Batch([span], size, model.device), cache)
        model.logits(hidden[count - 1 :])

    return seconds(run, model.device, repeats=plan.repeats)


@dataclass(frozen=True)
class Mixed:
    seconds: list[float]
    """The duration of each step, ascending."""
    with_prompts: int
    """Steps that read a part of a prompt."""

    def quantile(self, share: float) -> float:
        """Return the step time that this share of the steps does not exceed."""
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def mixed_steps(engine: Engine, plan: Plan, vocabulary: int) -> Mixed:
    """Let streams decode, let a prompt arrive every few steps, and return the time of each step."""
    streams = random_prompts(plan.mixed_streams, 1, plan.prompt, vocabulary)
    for uid, prompt in enumerate(streams):
        ask(engine, uid, prompt, plan.mixed_steps + 1)
    waiting = set(range(len(streams)))
    while waiting:
        waiting -= {output.uid for output in step(engine) if output.token_id is not None}
    arriving = random_prompts(1 + plan.mixed_steps // plan.mixed_every, 2, plan.mixed_prompt, vocabulary)
    times, with_prompts = [], 0
    for i in range(plan.mixed_steps):
        if i % plan.mixed_every == 0:
            ask(engine, len(streams) + i, arriving[i // plan.mixed_every], plan.mixed_every)
        began = time.perf_counter()
        output = engine.step()
        times.append(time.perf_counter() - began)
        chosen = sum(each.token_id is not None for each in output.outputs)
        with_prompts += output.stats.iteration_tokens > chosen
        if any(each.uid < len(streams) and each.finish_reason for each in output.outputs):
            break  # with fewer streams steps are others
    while engine.has_work:
        step(engine)
    return Mixed(sorted(times), with_prompts)


def start_seconds(folder: Path, plan: Plan, device: torch.device, free: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds to start a folder's engine as a server does, with an empty compile cache, and again.

    free: releases the memory of an engine that has ended.
    """
    config = EngineConfig(
        model=folder,
        dtype=str(plan.dtype).removeprefix("torch."),
        device=str(device),
        kernels=plan.kernels.kernels,
        block_size=plan.block_size,
        max_num_seqs=plan.start_seqs,
        max_num_batched_tokens=plan.start_tokens,
        kv_cache_bytes=1 << 24 if device.type == "cpu" else None,
    )

    def start() -> float:
        began = time.perf_counter()
        engine = Engine.from_folder(config)
        wait_for(device)
        took = time.perf_counter() - began
        del engine
        free()
        return took

    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {"TRITON_CACHE_DIR": cache}):
        return start(), start()
