"""Emulates the level `amx` on a machine without it: a library of only that level, with tiles in software
(`emulated_tiles.h`). As a plugin of pytest this lets the other tests run at that level and no other.

    LIGHTWELL_KERNEL_LIBRARY=FILE python -m pytest -p tests.model.kernels.emulated_tiles tests/model/kernels
"""

import functools
import shutil
import tempfile
from pathlib import Path

import pytest

from lightwell.model.kernels import build, library

LEVEL = "amx"
_HEADER = Path(__file__).with_suffix(".h")


def build_library(output: Path, *, sanitize: bool = False, only: tuple[str, ...] = ()) -> None:
    """Compile the library, everything except the tiles for the highest level that this machine does have.

    only: names of the files of kernels that it needs to have, by default all.
    """
    own = build.own_levels()[0]
    flags = (
        *build.LEVELS["x86_64"]["avx512_bf16" if own == LEVEL else own],
        "-D__AMX_BF16__",
        "-include",
        str(_HEADER),
        "-O1",
    )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(build, "LEVELS", {"x86_64": {LEVEL: flags}})
        if only:
            sources = shutil.copytree(build.SOURCES, Path(folder) / "cpu")
            for path in [path for path in sources.rglob("*.cpp") if path.name not in only]:
                if str(path.relative_to(sources)) not in build._ONCE:
                    path.unlink()
            patch.setattr(build, "SOURCES", sources)
        build.build(output, compiler=("g++",) if sanitize else None, sanitize=sanitize)


def pytest_configure() -> None:
    """Restrict the tests to that level."""
    library.levels = functools.cache(lambda: (LEVEL,))
