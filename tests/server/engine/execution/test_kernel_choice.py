"""Kernels of an engine: the requested ones, or an error, or a warning."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.kernels import library
from lightwell.model.kernels.cpus import DOT_LEVELS
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.execution import kernel_choice, run_ahead
from lightwell.server.engine.execution.kernel_choice import choose_kernels, kernels_in_use
from tests.model.kernels.levels import at_level

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_kernels = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")


def config(**interventions: Any) -> EngineConfig:
    return EngineConfig(model=Path("folder"), **interventions)


@needs_kernels
@pytest.mark.parametrize(("dtype", "device"), [(torch.float16, CPU), (torch.float64, CPU), (torch.bfloat16, CUDA)])
def test_native_kernels_for_what_they_cannot_compute_are_refused(dtype: torch.dtype, device: torch.device) -> None:
    with pytest.raises(ModelLoadError, match=r"--kernels native: .* --kernels auto and torch are accepted"):
        choose_kernels(config(kernels="native"), dtype, device)


@pytest.mark.parametrize(
    ("kernels", "dtype", "device", "warns"),
    [
        ("auto", torch.float16, CPU, True),
        ("torch", torch.float16, CPU, False),
        ("torch", torch.float32, CPU, False),
        ("auto", torch.float64, CUDA, False),
        ("torch", torch.float16, CUDA, False),
    ],
)
def test_torch_serves_what_kernels_cannot_and_says_so_where_nobody_asked_for_it(
    kernels: str, dtype: torch.dtype, device: torch.device, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = choose_kernels(config(kernels=kernels), dtype, device)
    assert ("plain torch operations" in caplog.text) == warns
    assert kernels_in_use(chosen, dtype, device) == ("torch", None, None)


@needs_kernels
@pytest.mark.parametrize("level", library.levels())
def test_float32_is_never_said_to_use_dot_products_and_bfloat16_where_the_level_has_them(level: str) -> None:
    with at_level(level):
        chosen = choose_kernels(config(kernels="native", kernel_arithmetic="bf16-dot"), torch.bfloat16, CPU)
        assert kernels_in_use(chosen, torch.float32, CPU) == ("native", level, "float32")
        arithmetic = "bf16-dot" if level in DOT_LEVELS else "float32"
        assert kernels_in_use(chosen, torch.bfloat16, CPU) == ("native", level, arithmetic)


def test_rows_are_rounded_to_8_bits_by_our_kernels_alone() -> None:
    with pytest.raises(ModelLoadError, match=r"--activations int8: .*--activations dtype is accepted"):
        choose_kernels(config(kernels="torch", activations="int8"), torch.bfloat16, CPU)


def test_a_triton_that_cannot_compile_our_kernels_for_all_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
    monkeypatch.setattr(kernel_choice, "version", lambda name: "3.4.0")
    with pytest.raises(ModelLoadError, match=r"Triton 3\.4 is installed; on a GPU 3\.5 and above .* torch 2\.9"):
        choose_kernels(config(), torch.bfloat16, CUDA)
    choose_kernels(config(kernels="torch"), torch.bfloat16, CUDA)
    monkeypatch.setattr(kernel_choice, "version", lambda name: "3.10.0+git")
    choose_kernels(config(), torch.bfloat16, CUDA)


def test_a_step_that_cannot_start_early_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no room")

    step = SimpleNamespace(schedule=SimpleNamespace(sequences=[1]), captures={})
    monkeypatch.setattr(run_ahead, "_may_begin", lambda *_: True)
    ahead = run_ahead.RunAhead(lambda: step, lambda: None)  # type: ignore[arg-type]
    for _ in range(2):
        ahead._start_next(SimpleNamespace(start=fail), None)  # type: ignore[arg-type]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no room" in caplog.text
    assert not ahead.is_running
