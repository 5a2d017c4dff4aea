"""Compiles the CPU's kernels while the package is built: every level, except in an editable install, which needs this
CPU's only. The wheel is named after the platform only, because the library uses no Python and no torch.

It is also the build backend: hatchling's, with a metadata step that compiles nothing. So pip refuses an older Python,
which can run this file, before anything is compiled.

LIGHTWELL_KERNEL_TARGET names a platform other than this machine's, one of `TARGETS` of model/kernels/build.py.
"""

from __future__ import annotations

import functools
import os
import platform
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

os.environ.pop("PIP_BUILD_TRACKER", None)  # where pip sets it, hatchling builds the wheel to know its metadata

from hatchling.build import *  # noqa: F403
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET_VARIABLE = "LIGHTWELL_KERNEL_TARGET"
OLDEST = (3, 11)


@functools.cache
def _build() -> dict[str, Any]:
    """Return the names of model/kernels/build.py, which needs this Python."""
    if sys.version_info < OLDEST:
        raise RuntimeError(f"Lightwell needs Python 3.11 or later; this is {sys.version.split()[0]}")
    return runpy.run_path(str(Path(__file__).parent / "model" / "kernels" / "build.py"))


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook for wheels, editable ones too."""

    def dependencies(self) -> list[str]:
        """Return a compiler from PyPI if the machine has none for the target."""
        if sys.version_info < OLDEST or _build()["find_compiler"](_target()):
            return []
        return ["ziglang>=0.15,<1"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and put it into the wheel."""
        if self.target_name != "wheel":
            return
        if version == "editable" and not Path(self.root, "src", "lightwell", "server").exists():
            raise RuntimeError("src/lightwell has no links to server and model: an editable installation needs a clone")
        _build()["find_compiler"].cache_clear()
        target = _target()
        output = Path(self.root, "model", "kernels", _build()["library_name"](target))
        if target is None:
            levels = _build()["own_levels"]() if version == "editable" else None
            if not _build()["is_current"](output, levels=levels):
                _build()["build"](output, levels=levels)
            build_data["artifacts"].append(f"model/kernels/{output.name}")
        else:  # in a folder of its own: the library next to the sources is for this machine
            made = Path(self.root, "build", target, output.name)
            if not _build()["is_current"](made, target=target):  # pip asks twice: for the metadata, and for the wheel
                _build()["build"](made, target=target)
            build_data["force_include"][str(made)] = f"lightwell/model/kernels/{output.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{target or _this_platform()}"


def _target() -> str | None:
    return os.environ.get(TARGET_VARIABLE) or None


def _this_platform() -> str:
    # A Python for two architectures is one machine's all the same, and so is the library.
    name = sysconfig.get_platform().replace("universal2", platform.machine())
    return name.replace("-", "_").replace(".", "_")
