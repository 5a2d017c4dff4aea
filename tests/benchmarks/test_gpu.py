"""The GPU's benchmark, on a CPU: its checks find what is wrong, its run leaves its figures and keeps to its time."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as script
from benchmarks.gpu import checks
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.networks import Network, key_value_bytes, make_ours, make_theirs, prefill_operations, weight_bytes
from benchmarks.gpu.report import Machine, Results, table
from model.layers.batched_attention import BatchedAttention
from model.layers.decode_batch import DecodeBatch
from server.engine.execution import cuda_graphs

CPU = torch.device("cpu")
TINY = Network(
    "tiny",
    {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50257,
    },
)
PLAN = script.Plan(
    networks=(TINY,),
    dtype=torch.float64,  # which no compiled kernel takes: the way of a GPU
    rows=(1, 3),
    modes=("off", "plain"),
    prompt=8,
    answer=5,
    long_prompt=40,
    capture_runs=3,
    looking_answer=6,
)


@pytest.fixture
def results() -> Results:
    return Results(Machine("a card", "2", "5", bytes_per_second=1e9, operations_per_second=1e9))


@pytest.fixture(autouse=True)
def _graphs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "DEVICE_TYPES", ("cpu",))


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert script.main(["--out", str(tmp_path / "out")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_measures_each_way_and_leaves_its_figures(tmp_path: Path, results: Results) -> None:
    clock = Clock(1000)
    script.measure(TINY, PLAN, CPU, clock, results)
    script.write(results, clock, tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert [(row["rows"], row["mode"]) for row in found["decode"]] == [
        (1, "off"),
        (3, "off"),
        (1, "plain"),
        (3, "plain"),
    ]
    assert all(row["tokens_per_second"] > 0 and row["theirs"] > 0 for row in found["decode"])
    assert len(found["captures"][0]["ratios"]) == 3
    assert found["prefill"][0]["num_tokens"] == 40
    assert found["left_out"] == []
    written = (tmp_path / "table.md").read_text()
    assert written.count("| tiny |") == 6


def test_what_does_not_fit_the_time_is_named(results: Results) -> None:
    clock = Clock(0)
    script.measure(TINY, PLAN, CPU, clock, results)
    results.left_out = clock.left_out
    assert results.decode == []
    assert "Left out for want of time: tiny." in table(results)


def test_checks_pass_and_find_a_wrong_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.loading.stack_builder.attention_for", lambda *_, **__: BatchedAttention())
    found = checks.run_checks(CPU, ("off", "plain"))
    assert [check.passed for check in found] == [True, True], found
    assert "12 of 12 greedy answers equal" in found[1].detail
    attend = BatchedAttention.attend

    def off_by_a_little(self, q, cache, batch, key_range, rule):  # type: ignore[no-untyped-def]
        out = attend(self, q, cache, batch, key_range, rule)
        return out * 1.5 if isinstance(batch, DecodeBatch) else out

    monkeypatch.setattr(BatchedAttention, "attend", off_by_a_little)
    found = checks.run_checks(CPU, ("off", "plain"))
    assert [check.passed for check in found] == [True, False]


@pytest.mark.slow
def test_the_tests_of_a_gpu_are_found_and_their_outcome_is_told() -> None:
    found = checks.run_tests(300)
    assert found.passed or torch.cuda.is_available(), found
    assert "skipped" in found.detail or "passed" in found.detail
    assert not checks.run_tests(0.01).passed


def test_the_floors_are_those_of_the_network(tmp_path: Path) -> None:
    theirs = make_theirs(TINY, torch.float64, CPU, 64)
    model = make_ours(theirs, tmp_path, torch.float64, CPU)
    matrices = [p for p in theirs.parameters() if p.dim() == 2]  # the head is the token table
    assert weight_bytes(model.config, torch.float64) == sum(p.numel() * 8 for p in matrices)
    assert key_value_bytes(model.config, torch.float64, 10) == 2 * 2 * 2 * 8 * 10 * 8
    one, two = (prefill_operations(model.config, n) for n in (1, 2))
    blocks = sum(p.numel() for p in matrices) - 50257 * 32
    assert two - one == 2 * (blocks + 2 * 4 * 8 * (4 - 1))
