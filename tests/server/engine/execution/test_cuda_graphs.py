"""Steps of single tokens in fixed shapes answer as the ordinary ones do. Without a GPU the function that a graph holds
is called instead of replayed; all else is the same.
"""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.batch import Batch, Span
from model.kv_cache import KVCache
from model.layers import batched_attention
from model.network.transformer import Transformer
from server.engine.engine import Engine
from server.engine.execution import cuda_graphs
from server.engine.execution.cuda_graphs import DecodeGraphs, why_no_graphs
from server.engine.request import AttentionCapture, EngineRequest
from tests import tiny
from tests.server.engine.driving import Answer, build, generate, load, request, run

DEVICES = [
    pytest.param("cpu", torch.float64),
    pytest.param(
        "cuda",
        torch.float64,
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
        ],
    ),
]
ONE_OF_EACH = list({tiny.VARIANTS[name][0]: name for name in reversed(tiny.DECODERS)}.values())
"""A variant of each family."""


@pytest.fixture(autouse=True)
def _small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make shapes small enough for short texts to use several, on a CPU too."""
    monkeypatch.setattr(cuda_graphs, "LEAST_KEYS", 16)
    monkeypatch.setattr(cuda_graphs, "DEVICE_TYPES", ("cpu", "cuda"))


def _passes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Count how many steps were served by a graph (True), and how many were not."""
    graphs = engine._runner.graphs
    assert graphs is not None
    counts: Counter[bool] = Counter()
    run_step = graphs.run

    def counted(*arguments: object) -> object:
        passed = run_step(*arguments)  # type: ignore[arg-type]
        counts[passed is not None] += 1
        return passed

    monkeypatch.setattr(graphs, "run", counted)
    return counts


def _crowd() -> list[EngineRequest]:
    """Return requests with prompts of all lengths, greedy and drawn, with log-probabilities, and some of each kind
    of capture.
    """
    crowd = []
    for uid in range(9):
        prompt = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(random.choice([1, 2, random.randrange(3, 70)]))]
        looking = None
        if uid % 3 == 0:
            pairs = tuple((layer, head) for layer in range(2) for head in range(2) if random.random() < 0.7)
            looking = AttentionCapture(
                pairs=pairs or ((1, 0),), kind=random.choice(["pattern", "scores", "dots"]), top_k=(None, 3)[uid // 6]
            )
        options: dict[str, Any] = {"temperature": 0.9, "seed": uid, "top_p": 0.95} if uid % 2 else {}
        task = generate(
            random.randrange(4, 30),
            attention=looking,
            attention_prompt=looking is not None and random.random() < 0.5,
            logprobs=3,
            ignore_eos=True,
            **options,
        )
        crowd.append(request(uid, prompt, task))
    return crowd


def _assert_alike(found: dict[int, Answer], expected: dict[int, Answer]) -> None:
    assert found.keys() == expected.keys()
    for uid, answer in found.items():
        assert (answer.tokens, answer.finish_reason) == (expected[uid].tokens, expected[uid].finish_reason)
        for one, other in zip(answer.logprobs, expected[uid].logprobs, strict=True):
            assert one is not None
            assert other is not None
            assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
        assert len(answer.tensors) == len(expected[uid].tensors)
        for event, tensors in enumerate(answer.tensors):
            assert tensors.keys() == expected[uid].tensors[event].keys()
            for name in tensors:
                seen, wanted = answer.array(name, event), expected[uid].array(name, event)
                assert np.allclose(seen, wanted, rtol=1e-6, atol=1e-7, equal_nan=True), (uid, event, name)


@pytest.mark.parametrize(("device", "dtype"), DEVICES)
@pytest.mark.parametrize("name", tiny.DECODERS)
def test_any_traffic_is_answered_as_without_graphs(
    name: str, device: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.make_variant(name, tmp_path), dtype, torch.device(device))
    crowd, arrivals = _crowd(), sorted(random.randrange(20) for _ in range(9))
    options = {"num_blocks": 60, "max_num_seqs": random.randrange(3, 9), "max_num_batched_tokens": 40}
    expected = run(build(model, cuda_graphs="off", **options), crowd, arrivals=arrivals)
    engine = build(model, cuda_graphs="plain", **options)
    counts = _passes(engine, monkeypatch)
    _assert_alike(run(engine, crowd, arrivals=arrivals), expected)
    assert counts[True] > 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    return load(tiny.make("llama", tmp_path_factory.mktemp("llama")), torch.float64)


def _batch(model: Transformer, lengths: list[int], *, rows: int = 1, layers: int | None = None) -> Batch:
    size, free = 8, 1
    spans = []
    for length in lengths:
        table = list(range(free, free + -(-length // size)))
        free = table[-1] + 1
        depth = model.config.num_layers if layers is None else layers
        spans.append(Span([5] * rows, length - rows, table, depth))
    return Batch(spans, size, model.device)


def test_every_shape_gives_the_same_and_filling_does_not_matter(model: Transformer) -> None:
    cache = KVCache(model.config, 80, 8, model.dtype, model.device)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    batch = _batch(model, [30, 9, 1])
    expected = model.logits(model.forward(batch, cache))
    graphs = DecodeGraphs(model, cache, 8, 64)
    shapes = [shape for shape in graphs.shapes if shape.rows >= 3 and shape.blocks >= 4]
    assert len(shapes) == 4
    for shape in shapes:
        graphs._shape_of = lambda batch, shape=shape: shape  # type: ignore[method-assign, misc]
        passed = graphs.run(batch)
        assert passed is not None
        assert torch.allclose(passed.logits, expected, rtol=1e-9, atol=1e-9)


def test_what_no_graph_serves_is_left_to_the_ordinary_way(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(model.config, 80, 8, model.dtype, model.device)
    graphs = DecodeGraphs(model, cache, max_rows=4, max_len=40)
    assert graphs.run(_batch(model, [30, 9, 1, 4])) is not None
    assert graphs.run(_batch(model, [30, 9, 1, 4, 4])) is None, "too many rows"
    assert graphs.run(_batch(model, [41])) is None, "too long"
    assert graphs.run(_batch(model, [30, 9], rows=2)) is None, "prompts"
    assert graphs.run(_batch(model, [30, 9], layers=1)) is None, "rows that stop early"
    layer = cache.layers[0].keys
    monkeypatch.setattr(batched_attention, "GATHER_BYTES", 2 * 16 * layer[0].nbytes // 8)
    assert {(shape.rows, shape.blocks) for shape in graphs.shapes} == {(2, 2), (1, 2), (1, 4), (1, 5)}
    assert graphs.run(_batch(model, [14, 9])) is not None
    assert graphs.run(_batch(model, [14, 9, 9])) is None, "keys that are gathered in pieces"
    assert graphs.run(_batch(model, [40])) is not None


def test_a_network_without_graphs_says_why_and_is_served_without(model: Transformer, tmp_path: Path) -> None:
    assert why_no_graphs(model) is None
    encoder = load(tiny.make("bert", tmp_path / "bert"), torch.float64)
    assert why_no_graphs(encoder) == "graphs are of decoders that stand alone, not of an encoder"
    invariant = load(tiny.make("llama", tmp_path / "llama"), torch.float64, batch_invariant=True)
    why_not = "graphs need BatchedAttention, not PlainAttention"
    assert why_no_graphs(invariant) == why_not
    with pytest.raises(ValueError, match=why_not):
        DecodeGraphs(invariant, KVCache(invariant.config, 20, 8, invariant.dtype, invariant.device), 4, 64)
    assert run(build(invariant, cuda_graphs="plain"), [request(0, [5, 6], generate(4))])[0].finish_reason is not None


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_compiler_can_read_the_step_of_every_family_as_one_graph(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check without generating code, which takes long; once for any number of blocks."""
    torch.compiler.reset()
    monkeypatch.setattr(cuda_graphs, "BACKEND", "eager")
    _compiles(load(tiny.make_variant(name, tmp_path), torch.float64))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code, which the compiler imports
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch finds no compiler for the code it writes")
@pytest.mark.parametrize("name", ["llama-gqa"])
def test_compiled_code_gives_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    _compiles(load(tiny.make_variant(name, tmp_path), torch.float64))


def _compiles(model: Transformer) -> None:
    cache = KVCache(model.config, 80, 8, model.dtype, model.device)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    graphs = DecodeGraphs(model, cache, 4, 64, compiled=True)
    assert [shape.blocks for shape in graphs.shapes] == [8, 4, 2, 8, 4, 2]
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    for lengths in ([30, 9, 1, 4], [16, 10], [60, 64, 2], [30], [60]):
        batch = _batch(model, lengths)
        expected = model.logits(model.forward(batch, cache))
        passed = graphs.run(batch)
        assert passed is not None
        assert torch.allclose(passed.logits, expected, rtol=1e-9, atol=1e-9)
    assert counters["unique_graphs"] - before == 2, "one for each number of rows"


def test_without_a_compiler_graphs_are_plain(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_here(*arguments: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify it.")

    monkeypatch.setattr(cuda_graphs, "BACKEND", none_here)
    torch.compiler.reset()
    engine = build(model)
    counts = _passes(engine, monkeypatch)
    answer = run(engine, [request(0, [5, 6, 7], generate(5, ignore_eos=True))])[0]
    assert len(answer.tokens) == 5
    assert counts[True] == 4
    assert "decode graphs are not compiled" in caplog.text
    assert "Failed to find C compiler" in caplog.text
