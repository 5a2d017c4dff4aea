"""A step of every family stays within its budget of operations on a card, and a step over the budget is found."""

import os
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.nightly
pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")


def fake_card(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark in a process of its own: here kernels may be interpreted."""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu.fake_card", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)


def test_every_family_stays_within_its_budgets() -> None:
    done = fake_card()
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "EXCEEDS" not in done.stdout
    for what in ("decode 32 rows", "decode, top-p", "decode, 8 of 32 look", "31 decode, 4 chunks", "encode 32 texts"):
        assert what in done.stdout


def test_batch_invariance_takes_one_launch_more_for_a_product_at_most() -> None:
    done = fake_card("llama", "--batch-invariant", "--places")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "'matmul_kernel'" in done.stdout
    assert "'linear'" not in done.stdout


def test_a_launch_too_many_and_a_copy_that_waits_are_found() -> None:
    code = """
import sys
from benchmarks.gpu import fake_card
from model.network import triton_step
gated = triton_step.gated
def slower(up, activation):
    up = (up * 1)[: int(up.sum().item() * 0) + len(up)]
    return gated(up, activation)
triton_step.gated = slower
sys.exit(fake_card.main(["llama"]))
"""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert "EXCEEDS" in done.stdout
    assert "no waits" in done.stdout
