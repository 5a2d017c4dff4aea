"""Checks of the numbers on this device: a small network against `transformers`, many requests with and without graphs
against plain torch, and the bits of batch-invariant answers in batches of one and of many.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.networks import make_theirs, read_ours, write_checkpoint
from benchmarks.gpu.ours import make_cache, make_engine
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import Results
from model.batch import Batch, Span
from model.kernels.choice import KernelConfig
from model.network.transformer import Transformer
from server.engine.engine import Engine
from server.engine.request import AttentionCapture, EngineRequest, GenerateTask
from server.engine.sampling_params import SamplingParams

MAX_ERROR = 1e-4
"""Most that an attention row may differ in float32."""
_SEQUENCES = 8
"""Sequences at once."""


@dataclass
class Told:
    """The answer of one request: tokens, their log-probabilities, and an attention row for each."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)

    def has_bits_of(self, other: "Told") -> bool:
        rows = zip(self.rows, other.rows, strict=False)
        return (self.tokens, self.logprobs, len(self.rows)) == (other.tokens, other.logprobs, len(other.rows)) and all(
            a.tobytes() == b.tobytes() for a, b in rows
        )


def check_answers(plan: Plan, device: torch.device, results: Results) -> None:
    """Check logits, and answers with graphs and without, in float32, so that little may differ."""
    theirs = make_theirs(plan.crowd.network, torch.float32, device, plan.crowd.context)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(theirs, Path(folder))
        plain = read_ours(Path(folder), torch.float32, device, KernelConfig("torch"))
        model = read_ours(Path(folder), torch.float32, device, plan.kernels)
    results.put("logits", logits_error(theirs, model, plan), f"of the largest logit, {plan.crowd.longest_prompt} rows")
    requests = crowd(plan, 7, model)
    expected = run(_engine(plain, plan, graphs=False), requests)
    for key, graphs in (("graphs", True), ("kernels", False)):
        alike, detail = compare(run(_engine(model, plan, graphs=graphs), requests), expected)
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
        sampling = SamplingParams(
            max_tokens=answer, seed=uid, temperature=0.0, ignore_eos=True, logprobs=uid % 3 or None
        )
        capture = AttentionCapture(pairs=tuple(draw.sample(every, 3))) if uid % 2 else None
        task = GenerateTask(sampling=sampling, attention=capture)
        requests.append(EngineRequest(uid=uid, prompt_token_ids=prompt, task=task, arrival_time=time.monotonic()))
    return requests


def _engine(model: Transformer, plan: Plan, *, graphs: bool = True) -> Engine:
    most = _SEQUENCES * plan.block_size
    return make_engine(model, plan, max_num_seqs=_SEQUENCES, max_len=plan.crowd.context, max_tokens=most, graphs=graphs)


def run(engine: Engine, requests: Sequence[EngineRequest], arrivals: Sequence[int] = ()) -> dict[int, Told]:
    """Run requests and return their results; request i is added before step arrivals[i], or at once."""
    told = {request.uid: Told() for request in requests}
    waiting = sorted(zip(arrivals or [0] * len(requests), requests, strict=True), key=lambda pair: pair[0])
    steps = 0
    while waiting or engine.has_work:
        while waiting and (waiting[0][0] <= steps or not engine.has_work):
            engine.add_request(waiting.pop(0)[1])
        for output in engine.step().outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
            own = told[output.uid]
            if output.token_id is not None:
                own.tokens.append(output.token_id)
            if output.logprobs is not None:
                own.logprobs += [output.logprobs.logprob, *(logprob for _, logprob in output.logprobs.top)]
            for array in output.tensors.values():
                own.rows.append(np.frombuffer(array.data, array.dtype).reshape(array.shape))
        steps += 1
    return told


def compare(found: dict[int, Told], expected: dict[int, Told]) -> tuple[float, str]:
    """Return 1 if answers are alike, or 0, and how much they are."""
    same = [uid for uid in found if found[uid].tokens == expected[uid].tokens]
    error = 0.0
    for uid in same:  # after another token all that follows is another text
        rows = zip(found[uid].rows, expected[uid].rows, strict=True)
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
    alone = {uid: told for each in requests for uid, told in run(engine, [each]).items()}
    arrivals = [draw.randrange(plan.crowd.longest_answer) for _ in requests]
    together = run(engine, requests, arrivals)
    same = sum(alone[uid].has_bits_of(told) for uid, told in together.items())
    results.put(
        "bits", float(same == len(requests)), f"{same} of {len(requests)} answers have the same bits, seed {seed}"
    )
