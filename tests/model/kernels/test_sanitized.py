"""The tests next to this file with kernels that sanitizers check for invalid addresses and undefined behaviour."""

import sys
from pathlib import Path

from lightwell.model.kernels import build
from tests.model.kernels.sanitizers import sanitized_library, sanitizer_variables
from tests.model.kernels.tools import HERE, needs_tools, run

pytestmark = needs_tools


def test_no_address_is_outside_and_nothing_is_undefined() -> None:
    """Run the tests next to this one, with kernels that g++ compiles with a check of every access."""
    run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", HERE, f"--ignore={HERE / 'cuda'}"),
        **sanitizer_variables(),
        LIGHTWELL_KERNEL_LIBRARY=str(sanitized_library()),
    )


def test_threads_of_the_pool_do_not_race(tmp_path: Path) -> None:
    """Run several callers at once and change the pool's size, under ThreadSanitizer."""
    sources = build.SOURCES / "threads" / "pool.cpp", HERE / "stress.cpp"
    flags = "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-DLEVEL=base", f"-I{build.SOURCES}", "-lpthread"
    run("g++", *sources, *flags, "-o", tmp_path / "stress")
    elsewhere = int(run(tmp_path / "stress", TSAN_OPTIONS="halt_on_error=1"))
    assert elsewhere > 0
