"""Checks that the numbers are right on this device: a small network against `transformers`, and decode graphs
against steps without. The tests marked `gpu` are run too, where pytest is installed.
"""

import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.networks import Network, make_ours, make_theirs
from benchmarks.gpu.ours import MODES, make_engine, mode_of
from model.batch import Batch, Span
from model.kv_cache import KVCache
from model.network.transformer import Transformer
from server.engine.request import AttentionCapture, EngineRequest, GenerateTask
from server.engine.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
_TINY = Network(
    "tiny",
    {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "initializer_range": 0.15,  # large, so that what attention adds decides
    },
)
_CONTEXT = 512
_PAIRS = ((0, 1), (1, 7), (2, 0))


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    detail: str


def run_checks(device: torch.device, modes: tuple[str, ...] = MODES) -> list[Check]:
    """Run the checks in float32, so that little may differ."""
    theirs = make_theirs(_TINY, torch.float32, device, _CONTEXT)
    with tempfile.TemporaryDirectory() as folder:
        model = make_ours(theirs, Path(folder), torch.float32, device)
    checks = [_logits(theirs, model)]
    without, mode = _crowd(model, modes[0])
    for asked in modes[1:]:
        found, mode = _crowd(model, asked)
        checks.append(
            _alike(asked, found, without) if mode == asked else Check(f"decode graphs ({asked})", False, mode)
        )
    return checks


@torch.inference_mode()
def _logits(theirs: Any, model: Transformer) -> Check:
    """Check the logits of a prompt in two chunks."""
    ids = torch.randint(1, 1000, (300,))
    expected = theirs(ids[None].to(model.device)).logits[0, 200:].float()
    cache = KVCache(model.config, 11, 32, model.dtype, model.device)
    for start, stop in ((0, 200), (200, 300)):
        span = Span(ids[start:stop].tolist(), start, range(1, 11), model.config.num_layers)
        hidden = model.forward(Batch([span], 32, model.device), cache)
    error = ((model.logits(hidden) - expected).abs().max() / expected.abs().max()).item()
    detail = f"largest difference {error:.1e} of the largest logit"
    return Check("logits against transformers, float32", error < 1e-4, detail)


@dataclass
class _Told:
    """What one request returned: tokens, and an attention row for each."""

    tokens: list[int]
    rows: list[np.ndarray]


def _crowd(model: Transformer, mode: str) -> tuple[list[_Told], str]:
    """Run requests of many lengths through one engine, half of them with captures. Return what they returned, and
    the mode that it really has.
    """
    draw = random.Random(7)
    engine = make_engine(model, mode, max_num_seqs=8, max_len=_CONTEXT)
    told = [_Told([], []) for _ in range(12)]
    for uid in range(len(told)):
        prompt = tuple(draw.randrange(1, 1000) for _ in range(draw.randrange(1, 300)))
        sampling = SamplingParams(max_tokens=draw.randrange(5, 40), seed=uid, temperature=0.0, ignore_eos=True)
        capture = AttentionCapture(pairs=_PAIRS) if uid % 2 else None
        task = GenerateTask(sampling=sampling, attention=capture)
        engine.add_request(EngineRequest(uid=uid, prompt_token_ids=prompt, task=task, arrival_time=time.monotonic()))
    while engine.has_work:
        for output in engine.step().outputs:
            if output.token_id is not None:
                told[output.uid].tokens.append(output.token_id)
            for array in output.tensors.values():
                told[output.uid].rows.append(np.frombuffer(array.data, array.dtype).reshape(array.shape))
    return told, mode_of(engine)


def _alike(mode: str, found: list[_Told], expected: list[_Told]) -> Check:
    same = sum(a.tokens == b.tokens for a, b in zip(found, expected, strict=True))
    error = 0.0
    for a, b in zip(found, expected, strict=True):
        if a.tokens == b.tokens:  # after another token all that follows is another text
            error = max([error, *(float(abs(x - y).max()) for x, y in zip(a.rows, b.rows, strict=True))])
    detail = f"{same} of {len(found)} greedy answers equal, attention rows within {error:.1e}"
    return Check(f"decode graphs ({mode}) against steps without, float32", same == len(found) and error < 1e-4, detail)


def run_tests(limit: float) -> Check:
    """Run the tests marked `gpu`, in a process of their own; limit: seconds."""
    name = "tests marked gpu"
    if importlib.util.find_spec("pytest") is None:
        return Check(name, True, "left out: pytest is not installed")
    # Named one by one: other files need more than torch and transformers, and our settings pytest's plugins.
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    options = ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *options, *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"not done in {limit:.0f} s")
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
    return Check(name, done.returncode == 0, lines[-1])
