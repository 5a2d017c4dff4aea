"""The GPU's benchmark, on a CPU with interpreted kernels: its checks find errors, and its run measures every row of
its table within its time limit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
from benchmarks.gpu import __main__ as script
from benchmarks.gpu import checks, suites
from benchmarks.gpu.bars import BARS, BY_KEY, NUMBERS, SPEED
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.measure import Measurement
from benchmarks.gpu.networks import (
    key_value_bytes,
    llama,
    make_ours,
    make_theirs,
    prefill_operations,
    read_ours,
    weight_bytes,
    write_checkpoint,
)
from benchmarks.gpu.plan import Crowd, Plan
from benchmarks.gpu.report import Machine, Results, keep_other_part, table
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda import paged_attention
from lightwell.model.layers import triton_attention
from lightwell.model.layers.linear import Linear
from lightwell.server.engine.execution import cuda_graphs
from tests.support.interpreted_product import multiply_in_one_order

CPU = torch.device("cpu")
TINY = llama("tiny", 32, 48, 2, 2, 1, 300, initializer_range=0.3)
PLAN = Plan(
    small=llama("small", 32, 48, 1, 2, 1, 300, initializer_range=0.3),
    large=llama("untied", 32, 48, 1, 2, 1, 300, initializer_range=0.3, tie_word_embeddings=False),
    dtype=torch.float32, kernels=KernelConfig("triton"), block_size=16, rows=(1, 2, 3), peer_rows=(1,),
    prompt=2, answer=2, repeats=1, calls=1, long_prompt=10, batched_tokens=32, attention_keys=40,
    looking_streams=2, looking_answer=2, looking_runs=1,
    mixed_streams=1, mixed_steps=3, mixed_tokens=16, mixed_prompt=6, mixed_every=2, start_seqs=2, start_tokens=16,
    crowd=Crowd(TINY, requests=3, longest_prompt=8, longest_answer=2, context=32),
    num_bytes=1 << 16, matrix=32,
)  # fmt: skip


@pytest.fixture
def results() -> Results:
    return Results(Machine("a card", "2", "5", bytes_per_second=1e9, operations_per_second=1e9))


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of programs and buffers: the interpreter runs them one by one."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here, for which the benchmark is")
    monkeypatch.setattr(paged_attention, "SHARES", 1)
    monkeypatch.setattr(cuda_graphs, "PATTERN_BYTES", 1 << 18)
    monkeypatch.setattr(cuda_graphs, "MIXED_ROWS", (8, 16))
    multiply_in_one_order(monkeypatch)


def met(results: Results) -> dict[str, bool | None]:
    return {key: found.is_met(BY_KEY[key]) for key, found in results.rows.items()}


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--out", str(tmp_path / "out")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("part", "calls", "status"),
    [
        ([], ["speed", "numbers", "suites"], 1),
        (["--part", "speed"], ["speed"], 0),
        (["--part", "numbers"], ["numbers", "suites"], 1),
    ],
)
def test_wrong_numbers_are_a_status_and_missed_bars_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Results, part: list[str], calls: list[str], status: int
) -> None:
    called = []

    class Played(Measurement):
        def speed(self) -> None:
            called.append("speed")
            self._results.put("attention", 0.01)

        def numbers(self) -> None:
            called.append("numbers")
            self._results.put("bits", 0.0, "23 of 24")

        def suites(self, gpu_tests: Sequence[Path], kernel_tests: Sequence[Path], *options: str) -> None:
            called.append("suites")
            assert all(path.exists() for path in (*gpu_tests, *kernel_tests))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(script, "read_machine", lambda device, plan: results.machine)
    monkeypatch.setattr(script, "Measurement", Played)
    assert script.main(["--out", str(tmp_path), *part]) == status
    assert called == calls
    assert ("| failed; 23 of 24 | NO |" in (tmp_path / "table.md").read_text()) == (status == 1)


@pytest.mark.nightly
def test_every_row_of_speed_is_measured(tmp_path: Path) -> None:
    clock = Clock(1000)
    results = Results(script.read_machine(CPU, PLAN))
    Measurement(PLAN, CPU, clock, results, lambda: script.write(results, clock, tmp_path)).speed()
    found = json.loads((tmp_path / "results.json").read_text())
    rows = {row["key"]: row for row in found["rows"]}
    assert rows.keys() == {bar.key for bar in BARS if bar.part == SPEED}
    assert all(row["value"] > 0 and not row["is_error"] and row["met"] in (True, False) for row in rows.values())
    assert [(row["network"], row["rows"]) for row in found["decode"]] == [
        (name, count) for name in ("small", "untied") for count in (1, 2, 3)
    ]
    assert [row["theirs"] is not None for row in found["decode"]] == [True] + 5 * [False]
    assert found["left_out"] == []
    assert not results.has_errors, "a bar that is missed is none"
    written = (tmp_path / "table.md").read_text()
    assert all(f"| {bar.check} | {bar.asked} |" in written for bar in BARS)


@pytest.mark.nightly
def test_checks_pass(results: Results) -> None:
    Measurement(PLAN, CPU, Clock(1000), results, lambda: None).numbers()
    assert met(results) == {"logits": True, "graphs": True, "kernels": True, "bits": True}, results.rows
    assert "3 of 3 greedy answers equal" in results.rows["graphs"].detail
    assert not results.has_errors


@pytest.mark.nightly
def test_attention_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch, results: Results) -> None:
    attend = paged_attention.paged_attention

    def off(q: Tensor, *arguments: Any, **options: Any) -> None:
        attend(q * 1.5, *arguments, **options)

    monkeypatch.setattr(triton_attention, "paged_attention", off)
    checks.check_answers(PLAN, CPU, results)
    assert met(results) == {"logits": False, "graphs": False, "kernels": False}
    assert results.has_errors


@pytest.mark.nightly
def test_a_graph_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch, results: Results) -> None:
    draw = cuda_graphs.StepGraphs._draw

    def off(self: Any, rows: int, kind: Any) -> None:
        self.logits[:rows, 7] += 100
        draw(self, rows, kind)

    monkeypatch.setattr(cuda_graphs.StepGraphs, "_draw", off)
    checks.check_answers(PLAN, CPU, results)
    assert met(results) == {"logits": True, "graphs": False, "kernels": True}


@pytest.mark.nightly
def test_bits_that_depend_on_the_batch_are_found(monkeypatch: pytest.MonkeyPatch, results: Results) -> None:
    call = Linear.__call__
    monkeypatch.setattr(Linear, "__call__", lambda self, x: call(self, x) * (1 + len(x) * 1e-6))
    checks.check_bits(PLAN, CPU, results)
    assert results.rows["bits"].value == 0.0
    assert results.has_errors


def test_what_does_not_fit_the_time_is_named(results: Results) -> None:
    clock = Clock(0)
    measurement = Measurement(PLAN, CPU, clock, results, lambda: None)
    measurement.speed()
    measurement.numbers()
    measurement.suites([], [])
    results.left_out = clock.left_out
    assert results.rows == {}
    assert "Left out for want of time: small by transformers;" in table(results)


def test_an_error_is_told_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch, results: Results) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no kernel image\nmore lines")

    monkeypatch.setattr(checks, "check_answers", fails)
    monkeypatch.setattr(checks, "check_bits", lambda *_: results.put("bits", 1.0))
    Measurement(PLAN, CPU, Clock(1000), results, lambda: None).numbers()
    assert met(results) == {"logits": False, "graphs": False, "kernels": False, "bits": True}
    assert results.rows["logits"].detail == "RuntimeError: no kernel image"
    assert results.has_errors
    assert "no kernel image | NO |" in table(results)


def test_two_parts_make_one_table(tmp_path: Path, results: Results) -> None:
    results.put("bits", 1.0, "24 of 24")
    results.put("attention", 0.5, "before")
    script.write(results, Clock(10), tmp_path)
    later = Results(results.machine)
    keep_other_part(later, SPEED, tmp_path)
    assert later.rows == {"bits": results.rows["bits"]}
    other = Results(Machine("another card", "2", "5", 1e9, 1e9))
    keep_other_part(other, NUMBERS, tmp_path)
    assert other.rows == {}


def a_test(folder: Path, body: str) -> Path:
    path = folder / "test_it.py"
    path.write_text(f"def test_it():\n    {body}\n")
    return path


@pytest.mark.nightly
@pytest.mark.parametrize(("body", "value", "said"), [("pass", 1.0, "1 passed"), ("assert False", 0.0, "1 failed")])
def test_suites_are_run_and_their_outcome_is_told(
    tmp_path: Path, results: Results, body: str, value: float, said: str
) -> None:
    suites.run_tests(results, "kernel tests", [a_test(tmp_path, body)], [], 60)
    assert results.rows["kernel tests"].value == value
    assert said in results.rows["kernel tests"].detail


def test_suites_that_take_too_long_are_ended(tmp_path: Path, results: Results) -> None:
    suites.run_tests(results, "gpu tests", [a_test(tmp_path, "pass")], [], 0.01)
    assert results.rows["gpu tests"].value == 0.0
    assert {path.name for path in suites.marked_tests()} >= {"test_device_runner.py", "test_fixed_shapes.py"}


def test_memcheck_needs_its_program_and_finds_wrong_accesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Results
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(suites, "_PLACES", ())
    suites.run_memcheck(results, [], [], 60)
    assert results.rows["memcheck"].is_met(BY_KEY["memcheck"]) is None
    assert not results.has_errors
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\necho ========= ERROR SUMMARY: 2 errors\nexit 99\n")
    program.chmod(0o755)
    suites.run_memcheck(results, [], [], 60)
    assert results.rows["memcheck"].value == 0.0
    assert results.rows["memcheck"].detail == "ERROR SUMMARY: 2 errors"


def test_the_floors_are_those_of_the_network(tmp_path: Path) -> None:
    theirs = make_theirs(TINY, torch.float64, CPU, 64)
    write_checkpoint(theirs, tmp_path)
    model = read_ours(tmp_path, torch.float64, CPU, KernelConfig())
    matrices = [p for p in theirs.parameters() if p.dim() == 2]  # the head is the token table
    assert weight_bytes(model.config, torch.float64) == sum(p.numel() * 8 for p in matrices)
    untied = make_ours(PLAN.large, torch.float64, CPU, 64, KernelConfig())
    assert not untied.config.tie_word_embeddings
    assert weight_bytes(untied.config, torch.float64) < weight_bytes(model.config, torch.float64), "a layer fewer"
    assert key_value_bytes(model.config, torch.float64, 10) == 2 * 2 * 1 * 16 * 10 * 8
    one, two = (prefill_operations(model.config, n) for n in (1, 2))
    blocks = sum(p.numel() for p in matrices) - 300 * 32
    assert two - one == 2 * (blocks + 2 * 2 * 16 * (4 - 1))
