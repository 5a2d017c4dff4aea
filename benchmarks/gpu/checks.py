"""Checks of the numbers on this device: a small network against `transformers`, many requests with and without graphs
against plain torch, and the bits of batch-invariant answers in batches of one and of many.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.networks import make_theirs, read_ours, write_checkpoint
from benchmarks.gpu.ours import make_cache, make_engine
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import Results
from lightwell.model.batch import Batch, Span
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.request import AttentionCapture, EngineRequest
from tests.server.engine.driving import Answer, generate, request, run

MAX_ERROR = 1e-4
"""Most that an attention row may differ in float32."""
_SEQUENCES = 8
"""Sequences at once."""


def check_answers(plan: Plan, device: torch.device, results: Results) -> None:
    """Check logits, and answers with graphs and without, in float32, so that little may differ."""
    theirs = make_theirs(plan.crowd.network, torch.float32, device, plan.crowd.context)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(theirs, Path(folder))
        plain = read_ours(Path(folder), torch.float32, device, KernelConfig("torch"))
        model = read_ours(Path(folder), torch.float32, device, plan.kernels)
    results.put("logits", logits_error(theirs, model, plan), f"of the largest logit, {plan.crowd.longest_prompt} rows")
    requests = crowd(plan, 7, model)
    expected = answers(_engine(plain, plan, graphs=False), requests)
    for key, graphs in (("graphs", True), ("kernels", False)):
        alike, detail = compare(answers(_engine(model, plan, graphs=graphs), requests), expected)
        results.put(key, alike, detail)


@torch.inference_mode()
def logits_error(theirs: Any, model: Transformer, plan: Plan) -> float:
    """Return the largest error of the logits of a prompt in two chunks, over the largest logit."""
    count, size = plan.crowd.longest_prompt, plan.block_size
    first, num_blocks = count * 2 // 3, -(-count // size)
    ids = torch.randint(1, model.config.vocab_size, (count,))
    expected = theirs(ids[None].to(model.device)).logits[0, first:].float()
    cache = make_cache(model, plan, num_blocks + 1)
    for start, stop in ((0, first), (first, count)):
        span = Span(ids[start:stop].tolist(), start, range(1, num_blocks + 1), model.config.num_layers)
        hidden = model.forward(Batch([span], size, model.device), cache)
    return float((model.logits(hidden) - expected).abs().max() / expected.abs().max())


def crowd(plan: Plan, seed: int, model: Transformer) -> list[EngineRequest]:
    """Return random requests of many lengths: greedy, with log-probabilities, half of them with captures."""
    draw, config, asked = random.Random(seed), model.config, plan.crowd
    every = [(layer, head) for layer in range(config.num_layers) for head in range(config.num_heads)]
    requests = []
    for uid in range(asked.requests):
        prompt = tuple(draw.randrange(1, config.vocab_size) for _ in range(draw.randint(1, asked.longest_prompt)))
        answer = draw.randint(min(5, asked.longest_answer), asked.longest_answer)
        capture = AttentionCapture(pairs=tuple(draw.sample(every, 3))) if uid % 2 else None
        task = generate(answer, seed=uid, ignore_eos=True, logprobs=uid % 3 or None, attention=capture)
        requests.append(request(uid, prompt, task))
    return requests


def _engine(model: Transformer, plan: Plan, *, graphs: bool = True) -> Engine:
    most = _SEQUENCES * plan.block_size
    return make_engine(model, plan, max_num_seqs=_SEQUENCES, max_len=plan.crowd.context, max_tokens=most, graphs=graphs)


def answers(
    engine: Engine, requests: Sequence[EngineRequest], arrivals: Sequence[int] | None = None
) -> dict[int, Answer]:
    """Run requests and return their results; request i is added before step arrivals[i], or at once."""
    found = run(engine, requests, arrivals=arrivals)
    for answer in found.values():
        if answer.error is not None:
            raise RuntimeError(answer.error)
    return found


def rows_of(answer: Answer) -> list[np.ndarray]:
    return [answer.array(name, event) for event, arrays in enumerate(answer.tensors) for name in arrays]


def compare(found: dict[int, Answer], expected: dict[int, Answer]) -> tuple[float, str]:
    """Return 1 if answers are alike, or 0, and how much they are."""
    same = [uid for uid in found if found[uid].tokens == expected[uid].tokens]
    error = 0.0
    for uid in same:  # after another token all that follows is another text
        rows = zip(rows_of(found[uid]), rows_of(expected[uid]), strict=True)
        error = max([error, *(float(abs(a - b).max()) for a, b in rows)])
    detail = f"{len(same)} of {len(found)} greedy answers equal, attention rows within {error:.1e}"
    return float(len(same) == len(found) and error < MAX_ERROR), detail


def check_bits(plan: Plan, device: torch.device, results: Results) -> None:
    """Check that answers of a batch-invariant network have the same bits as single requests and in random batches."""
    seed = random.SystemRandom().randrange(1 << 32)
    dtype = plan.dtype
    theirs = make_theirs(plan.crowd.network, dtype, device, plan.crowd.context)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(theirs, Path(folder))
        model = read_ours(Path(folder), dtype, device, plan.kernels, batch_invariant=True)
    requests, draw = crowd(plan, seed, model), random.Random(seed)
    engine = _engine(model, plan)
    alone = {uid: told for each in requests for uid, told in answers(engine, [each]).items()}
    arrivals = [draw.randrange(plan.crowd.longest_answer) for _ in requests]
    together = answers(engine, requests, arrivals)
    same = sum(alone[uid] == told for uid, told in together.items())
    results.put(
        "bits", float(same == len(requests)), f"{same} of {len(requests)} answers have the same bits, seed {seed}"
    )
