"""Measures our engine in process: tokens a second while all sequences decode, the device's own time for a step, long
prompts.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.clock import seconds
from model.batch import Batch, Span
from model.kv_cache import KVCache
from model.network.transformer import Transformer
from server.engine.config import EngineConfig
from server.engine.engine import Engine
from server.engine.request import AttentionCapture, EngineRequest, GenerateTask
from server.engine.sampling_params import SamplingParams

BLOCK_SIZE = 32
MODES = ("off", "plain", "compiled")
"""Values of --cuda-graphs."""


def make_engine(model: Transformer, mode: str, max_num_seqs: int, max_len: int) -> Engine:
    """Return an engine with room for `max_num_seqs` sequences of `max_len` tokens. mode: one of MODES."""
    config = EngineConfig(
        model=Path("in memory"),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=1 << 14,
        enable_prefix_caching=False,
        cuda_graphs=mode,
    )
    num_blocks = max_num_seqs * -(-max_len // BLOCK_SIZE) + 1
    cache = KVCache(model.config, num_blocks, BLOCK_SIZE, model.dtype, model.device)
    return Engine(model, cache, config, max_len)


def mode_of(engine: Engine) -> str:
    """Return the mode that the engine really uses, which is less than requested where that fails: one of MODES."""
    graphs = engine._runner.graphs
    if graphs is None:
        return "off"
    return "compiled" if graphs.compiled else "plain"


def decode_tokens_per_second(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int, looking: int | None = None
) -> float:
    """Return the tokens a second after the first ones, greedy, all sequences together.

    looking: a layer whose attention rows, of all heads, the first sequence asks for with each token.
    """
    sampling = SamplingParams(max_tokens=num_tokens, seed=0, temperature=0.0, ignore_eos=True)
    capture = None
    if looking is not None:
        pairs = tuple((looking, head) for head in range(engine._model.config.num_heads))
        capture = AttentionCapture(pairs=pairs, dtype="float16")
    for uid, prompt in enumerate(prompts):
        task = GenerateTask(sampling=sampling, attention=capture if uid == 0 else None)
        engine.add_request(
            EngineRequest(uid=uid, prompt_token_ids=tuple(prompt), task=task, arrival_time=time.monotonic())
        )
    waiting = set(range(len(prompts)))
    while waiting:  # the prompts
        waiting -= {output.uid for output in engine.step().outputs if output.token_id is not None}
    began, count = time.perf_counter(), 0
    while engine.has_work:
        outputs = engine.step().outputs
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
        count += sum(output.token_id is not None for output in outputs)
    return count / (time.perf_counter() - began)


@torch.inference_mode()
def step_seconds(engine: Engine, num_rows: int, num_keys: int) -> float:
    """Return the seconds of one decode step on the device, without sampling and scheduling."""
    runner = engine._runner
    model, graphs = runner.model, runner.graphs
    width = -(-num_keys // BLOCK_SIZE)
    spans = [
        Span([1], num_keys - 1, range(1 + row * width, 1 + (row + 1) * width), model.config.num_layers)
        for row in range(num_rows)
    ]
    batch = Batch(spans, BLOCK_SIZE, model.device)

    def step() -> None:
        if graphs is None or graphs.run(batch) is None:
            model.logits(model.forward(batch, runner.cache))

    return seconds(step, model.device, calls=20)


@torch.inference_mode()
def prefill_seconds(model: Transformer, num_tokens: int) -> float:
    """Return the seconds of one prompt, with the logits of its last token."""
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    cache = KVCache(model.config, num_blocks + 1, BLOCK_SIZE, model.dtype, model.device)
    ids = torch.randint(1, model.config.vocab_size, (num_tokens,)).tolist()

    def run() -> None:
        span = Span(ids, 0, range(1, num_blocks + 1), model.config.num_layers)
        hidden = model.forward(Batch([span], BLOCK_SIZE, model.device), cache)
        model.logits(hidden[num_tokens - 1 :])

    return seconds(run, model.device)
