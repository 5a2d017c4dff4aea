"""A step of every family stays within its budget of operations on a card, and a step over the budget is found."""

import os
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.nightly
pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")


def fake_card(status: int, *arguments: str) -> str:
    """Return the output of Python with these arguments, in a separate process: here kernels may be interpreted."""
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_every_family_stays_within_its_budgets() -> None:
    told = fake_card(0, "-m", "benchmarks.gpu.fake_card")
    assert "EXCEEDS" not in told
    for what in ("decode 32 rows", "decode, top-p", "decode, 8 of 32 look", "31 decode, 4 chunks", "encode 32 texts"):
        assert what in told


def test_batch_invariance_takes_one_launch_more_for_a_product_at_most() -> None:
    told = fake_card(0, "-m", "benchmarks.gpu.fake_card", "llama", "--batch-invariant", "--places")
    assert "'matmul_kernel'" in told
    assert "'linear'" not in told


def test_products_of_4_bits_take_as_many_launches_as_those_of_16() -> None:
    told = fake_card(0, "-m", "benchmarks.gpu.fake_card", "llama", "--int4", "--places")
    assert "EXCEEDS" not in told
    assert "'grouped_matmul_kernel': 6" in told
    assert "'linear': 3" in told  # the head, and matrices with a number of inputs that 16 does not divide


def test_a_launch_too_many_and_a_copy_that_waits_are_found() -> None:
    code = """
import sys
from benchmarks.gpu import fake_card
from lightwell.model.network import gpu_program
gated = gpu_program.gated
def slower(gate, *others):
    gate = (gate * 1)[: int(gate.sum().item() * 0) + len(gate)]
    return gated(gate, *others)
gpu_program.gated = slower
sys.exit(fake_card.main(["llama"]))
"""
    told = fake_card(1, "-c", code)
    assert "EXCEEDS" in told
    assert "no waits" in told
