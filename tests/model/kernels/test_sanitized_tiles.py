"""The tests of the kernels that use AMX tiles, on emulated tiles, with a check of every access."""

import sys
from pathlib import Path

from tests.model.kernels import emulated_tiles
from tests.model.kernels.sanitizers import sanitizer_variables
from tests.model.kernels.tools import HERE, needs_tools, needs_x86, run

pytestmark = needs_tools


@needs_x86
def test_no_address_is_outside_where_tiles_are_read(tmp_path: Path) -> None:
    """Emulate the tiles in software, which reads whole ones."""
    kernels = tmp_path / "sanitized-tiles.so"
    emulated_tiles.build_library(kernels, sanitize=True)
    files = [f"{HERE}/test_{name}.py" for name in ("products", "int8", "decoder", "encoder")]
    run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.model.kernels.emulated_tiles", *files),
        **sanitizer_variables(),
        LIGHTWELL_KERNEL_LIBRARY=str(kernels),
    )
