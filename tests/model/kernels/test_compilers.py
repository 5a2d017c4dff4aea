"""The kernels compile without a warning, by each compiler and for each system."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.model.kernels.tools import ZIG, needs_tools, run

pytestmark = needs_tools


def test_macos_compiles(tmp_path: Path) -> None:
    """Only compile for macOS: this machine cannot run the result."""
    run(
        ZIG,
        "model/kernels/build.py",
        "--strict",
        "--target",
        "macosx_11_0_arm64",
        "--output",
        tmp_path / "kernels.dylib",
    )


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_a_compiler_has_nothing_to_warn_of(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    options = "--all-levels", "--strict", "--compiler", compiler, "--output", tmp_path / "strict.so"
    run(sys.executable, "model/kernels/build.py", *options)
