"""The script that compiles the card's kernels without a card: its checks, and a compilation."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.compile_ahead import Usage, main
from tests.source_tree import ROOT

GOOD = Usage(
    "kernel", "variant", 90, 128, 0, 0, 0, "wgmma.mma_async", True, sums_like="d 8", sums=frozenset({"8xf32 a layout"})
)


@pytest.mark.parametrize(
    ("usage", "fault"),
    [
        (replace(GOOD, registers=129), "129 registers"),
        (replace(GOOD, stack=8), "8 bytes of stack"),
        (replace(GOOD, local=4), "4 of local memory"),
        (replace(GOOD, shared=100 << 10), "102400 bytes of shared memory"),
        (replace(GOOD, tensor_cores=""), "without tensor cores"),
    ],
)
def test_what_a_variant_takes_has_bars(usage: Usage, fault: str) -> None:
    assert not list(GOOD.faults())
    assert not list(replace(GOOD, tensor_cores="", needs_tensor_cores=False).faults())
    assert [fault in found for found in usage.faults()] == [True]


def test_variants_that_need_the_same_bits_sum_in_one_order() -> None:
    other = replace(GOOD, variant="another", sums=frozenset({"8xf32 another layout"}))
    assert list(other.other_sums([GOOD])) == ["sums in another order than kernel variant"]
    for changes in ({"capability": 80}, {"sums_like": "d 9"}, {"sums": GOOD.sums}):
        assert not list(replace(other, **changes).other_sums([GOOD]))


def test_a_process_that_interprets_kernels_cannot_compile_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main([]) == 2
    assert "unset TRITON_INTERPRET" in capsys.readouterr().err


@pytest.mark.nightly
def test_kernels_compile_without_a_card_and_keep_to_the_bars(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
    command = [sys.executable, "-m", "benchmarks.gpu.compile_ahead", "--capability", "90", "--only"]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "1"}
    words = (
        "bf16 d 4096, 1",
        "bf16 H 32, K 8, D 128, R 128, norm head",
        "bf16 silu",
        "bf16 G 2, D 256, B 32, causal, window, cap, patterns",
        "attend_single_kernel fp32 G 1, D 64",
    )
    done = subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "8 variants, 0 faults"
    done = subprocess.run([*command, "nothing"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (2, "no variant contains nothing")
