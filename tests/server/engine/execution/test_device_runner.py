"""Steps that run on a GPU, from one upload to one read-back, give the answers of plain torch.

Without a GPU Triton interprets the kernels, and the functions of a graph are called instead of replayed.
"""

import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kernels.choice import KernelChoice, KernelConfig
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution import cuda_graphs
from lightwell.server.engine.execution.device_executor import DeviceStep
from lightwell.server.engine.execution.step_result import StepResult
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionKind,
    AttentionTask,
    CaptureDtype,
    EngineRequest,
    Part,
)
from lightwell.server.engine.scheduling import scheduler
from tests import tiny
from tests.server.engine.driving import assert_near, build, generate, load, request, run
from tests.support.interpreted_product import multiply_in_one_order

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
from lightwell.model.kernels.cuda import paged_attention
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED

DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
pytestmark = [] if IS_INTERPRETED else [pytest.mark.gpu]
LATE_STEP = 16
"""Step before which all answers of the crowd except the long one have ended."""


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of programs and buffers: the interpreter runs them one by one."""
    if IS_INTERPRETED:
        monkeypatch.setattr(paged_attention, "SHARES", 4)
        monkeypatch.setattr(cuda_graphs, "PATTERN_BYTES", 1 << 18)
        multiply_in_one_order(monkeypatch)
    monkeypatch.setattr(cuda_graphs, "MIXED_ROWS", (8, 16))


def _crowd(layers: Sequence[int] = (0, 1)) -> list[EngineRequest]:
    """Return requests with prompts of all lengths: greedy, sampled, with edits, log-probabilities and captures. The
    last two are a long answer and a short prompt that arrives at `LATE_STEP`, when only the long answer still runs:
    there is at least one mixed step. layers: the layers with attention.
    """
    options: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_p": 0.95, "logprobs": 2},
        {"temperature": 0.8, "top_k": 7},
        {"repetition_penalty": 1.3, "logit_bias": {5: 3.0}, "min_tokens": 2},
        {"logprobs": 3},
        {},
        {},
    ]
    random.shuffle(options)
    crowd = []
    for uid, given in enumerate(options):
        prompt = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(random.choice([1, 2, random.randrange(3, 20)]))]
        looking = None
        if uid in (0, 3, 5):
            pairs = tuple((random.choice(layers), random.randrange(2)) for _ in range(random.randint(1, 5)))
            kind: AttentionKind = "scores" if uid == 5 else "pattern"  # attention does not write scores
            dtype: CaptureDtype = "float16" if uid == 0 else "float32"
            looking = AttentionCapture(pairs=pairs, kind=kind, top_k=(None, 3)[uid == 3], dtype=dtype)
        given = {"seed": uid} | given
        task = generate(
            random.randrange(2, 4), attention=looking, attention_prompt=looking is not None, ignore_eos=True, **given
        )
        crowd.append(request(uid, prompt, task))
    crowd.append(request(len(crowd), [2, 3], generate(LATE_STEP + 2, ignore_eos=True)))
    crowd.append(request(len(crowd), [3, 4, 5], generate(2, ignore_eos=True)))
    return crowd


def _ways(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the steps: graphs of decodes, graphs of mixed steps, steps kernel by kernel, steps that the device runner
    does not serve, and steps that were started while another ran.
    """
    runner = engine._runner._on_device
    assert runner is not None
    ways: Counter[str] = Counter()
    run_step = runner._executor.run

    def counted(step: DeviceStep, *arguments: Any) -> Any:
        ways["kernels" if step.spans else "mixed" if step.shape.long else "decodes"] += 1
        return run_step(step, *arguments)

    monkeypatch.setattr(runner._executor, "run", counted)
    whole = runner.run

    def asked(*arguments: Any) -> Any:
        passed = whole(*arguments)
        ways["neither"] += passed is None
        return passed

    monkeypatch.setattr(runner, "run", asked)
    go_on = engine._ahead.go_on

    def went_on(result: StepResult) -> None:
        go_on(result)
        ways["ahead"] += engine._ahead.is_running

    monkeypatch.setattr(engine._ahead, "go_on", went_on)
    return ways


def _one_with_a_step_of_its_own(names: tuple[str, ...], path: Path) -> tuple[Path, Transformer]:
    """Return a checkpoint and the network of a random family that has a Triton step."""
    for name in random.sample(names, len(names)):
        folder = tiny.make_variant(name, path / name)
        model = load(folder, device=DEVICE, kernels=KernelConfig("triton"))
        if model.decoder is not None and model.decoder.gpu_program is not None:
            return folder, model
    raise AssertionError(f"none of {names} has one")


@pytest.mark.parametrize(
    "names", [("llama-gqa",), pytest.param(tiny.DECODERS, marks=pytest.mark.nightly)], ids=["llama", "another"]
)
def test_any_traffic_is_answered_as_by_plain_torch(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = _one_with_a_step_of_its_own(names, tmp_path)
    crowd = _crowd(model.config.attention_layers)
    arrivals = [*sorted(random.randrange(5) for _ in crowd[2:]), 5, LATE_STEP]
    options: dict[str, Any] = {"num_blocks": 40, "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 24}
    plain = load(folder, device=DEVICE, kernels=KernelConfig("torch"))
    expected = run(build(plain, **options), crowd, arrivals=arrivals)
    engine = build(model, **options)
    ways = _ways(engine, monkeypatch)
    assert_near(run(engine, crowd, arrivals=arrivals), expected, rtol=1e-4)
    assert min(ways[way] for way in ("decodes", "mixed", "neither", "ahead")) > 0, ways


@pytest.mark.parametrize("name", ["llama-gqa", "bert", "t5"])
def test_patterns_are_those_of_plain_torch_where_nobody_needs_a_layer_s_output(name: str, tmp_path: Path) -> None:
    """Capture patterns only: the deepest captured layer needs no output."""
    folder = tiny.make_variant(name, tmp_path)
    config = read_config(folder)
    part: Part = "encoder" if config.kind == "encoder" else "decoder"
    pairs = [(1, 1), (0, 0), (1, 0), (1, 1)][: random.randint(1, 4)]  # in any order, and one of them twice
    prompt = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(random.randrange(2, 20))]
    task = AttentionTask(capture=AttentionCapture(pairs=tuple(pairs), part=part))
    asked = [request(0, prompt, task, encoded=prompt[:7] if config.encoder else ())]
    found, expected = (
        run(build(load(folder, device=DEVICE, kernels=KernelConfig(kernels)), block_size=16, max_num_seqs=4), asked)
        for kernels in ("triton", "torch")
    )
    assert_near(found, expected, rtol=1e-4)


@pytest.mark.parametrize("kernels", ["triton", "auto"])
def test_steady_rows_choose_the_same_tokens(
    kernels: KernelChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.make("llama", tmp_path / "llama"), device=DEVICE, kernels=KernelConfig(kernels))
    crowd = [
        request(uid, [2 + uid, 3], generate(5 + 2 * uid, seed=uid, temperature=uid % 3 * 0.7, ignore_eos=True))
        for uid in range(4)
    ]
    found = []
    for least_rows in (2, sys.maxsize):
        monkeypatch.setattr(scheduler, "LEAST_ROWS", least_rows)
        found.append(run(build(model, num_blocks=40, block_size=4), crowd, arrivals=[0, 0, 1, 4]))
    assert found[0] == found[1]


def test_penalties_count_the_token_that_only_the_device_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.make("llama", tmp_path / "llama")
    penalties: list[dict[str, Any]] = [
        {"frequency_penalty": 1.5, "presence_penalty": 1.0, "temperature": 0.9},
        {"repetition_penalty": 1.7},
    ]
    crowd = [
        request(uid, [2 + uid, 3, 3], generate(4, ignore_eos=True, **({"seed": uid} | options)))
        for uid, options in enumerate(penalties)
    ]
    options: dict[str, Any] = {"block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    expected = run(build(load(folder, device=DEVICE, kernels=KernelConfig("torch")), **options), crowd)
    engine = build(load(folder, device=DEVICE, kernels=KernelConfig("triton")), **options)
    ways = _ways(engine, monkeypatch)
    assert_near(run(engine, crowd), expected, rtol=1e-4)
    assert ways["ahead"] == 3  # all but the first


def test_a_mixed_step_has_the_least_graph_with_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MIXED_ROWS", (8, 16, 40))
    monkeypatch.setattr(cuda_graphs, "_MORE_TILES", 1)
    model = load(tiny.make("llama", tmp_path / "llama"), device=DEVICE, kernels=KernelConfig("triton"))
    runner = build(model, block_size=16, max_num_seqs=20, max_num_batched_tokens=50)._runner._on_device
    assert runner is not None
    graphs = runner._executor.graphs
    assert graphs is not None
    assert [shape.rows for shape in graphs.mixed] == [8, 16, 40]  # with more rows, kernel by kernel

    def shape_of(counts: list[int], sampled: list[int], num_layers: int = 2, num_patterns: int = 0) -> Any:
        spans = [Span([5] * count, 0, [1, 2], num_layers) for count in counts]
        assert graphs is not None
        packing = graphs.packing(Batch(spans, 16, DEVICE), (), num_patterns, sampled)
        return packing and (packing.shape.rows, packing.shape.long > 0)

    assert shape_of([1, 1, 1], [0, 1, 2]) == (4, False)
    assert shape_of([1, 1, 1], [0, 2]) == (8, True)  # as the last token of a prompt without requested logits
    assert shape_of([1, 7], [0]) == (8, True)
    assert shape_of([9], []) == (16, True)
    assert shape_of([2, 2, 2], [1, 3, 5]) == (40, True)  # the graphs of few rows have too few tiles
    assert shape_of([20, 21], [19, 40]) is None
    assert shape_of([1, 7], [0], num_layers=1) is None
    assert shape_of([1, 7], [0], num_patterns=len(graphs.patterns) + 1) is None


@pytest.mark.parametrize("most", [1, 24, 64, 100, 2048, 8192])
def test_graphs_of_mixed_steps_are_few_and_hardly_larger_than_a_step(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    sizes = cuda_graphs.mixed_sizes(most)
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= 16
    assert sizes[-1] == min(most, 2048)
    assert all(after - before <= max(64, 0.25 * before) for before, after in pairwise(sizes))


def test_mixed_graphs_have_the_bits_of_steps_kernel_by_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also run a step that holds only a piece of a prompt and samples no token."""
    options: dict[str, Any] = {"block_size": 16, "max_num_seqs": 2, "max_num_batched_tokens": 14}
    folder = tiny.make("llama", tmp_path / "llama")
    model = load(folder, device=DEVICE, kernels=KernelConfig("triton"), batch_invariant=True)
    crowd = [
        request(uid, [2 + uid] * length, generate(2, ignore_eos=True, seed=uid, temperature=0.7 * uid, logprobs=1))
        for uid, length in enumerate((16, 2))
    ]
    expected = run(build(model, cuda_graphs="off", **options), crowd)
    engine = build(model, **options)
    ways = _ways(engine, monkeypatch)
    assert run(engine, crowd) == expected
    assert ways["kernels"] == ways["neither"] == 0
    assert ways["mixed"] > 1


def test_plain_torch_and_our_cpu_kernels_have_no_use_for_it(tmp_path: Path) -> None:
    folder = tiny.make("llama", tmp_path)
    assert build(load(folder, kernels=KernelConfig("torch")))._runner._on_device is None
    assert build(load(folder))._runner._on_device is None
