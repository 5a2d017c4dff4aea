"""Compiles the CPU's kernels while the package is built: every level, except in an editable install, which needs this
CPU's only. The wheel is named after the platform only, because the library knows neither Python nor torch.

LIGHTWELL_KERNEL_TARGET names a platform other than this machine's, one of `TARGETS` of model/kernels/build.py.
"""

import os
import platform
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET_VARIABLE = "LIGHTWELL_KERNEL_TARGET"
_BUILD = runpy.run_path(str(Path(__file__).parent / "model" / "kernels" / "build.py"))


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook for wheels, editable ones too."""

    def dependencies(self) -> list[str]:
        """Return a compiler from PyPI if the machine has none for the target."""
        return [] if _BUILD["find_compiler"](_target()) else ["ziglang>=0.15,<1"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and put it into the wheel."""
        if self.target_name != "wheel":
            return
        _BUILD["find_compiler"].cache_clear()
        target = _target()
        output = Path(self.root, "model", "kernels", _BUILD["library_name"](target))
        if target is None:
            levels = _BUILD["own_levels"]() if version == "editable" else None
            if not _BUILD["is_current"](output, levels=levels):
                _BUILD["build"](output, levels=levels)
            build_data["artifacts"].append(f"model/kernels/{output.name}")
        else:  # aside: what lies beside the sources is for this machine
            made = Path(self.root, "build", target, output.name)
            if not _BUILD["is_current"](made, target=target):  # pip asks twice: for the metadata, and for the wheel
                _BUILD["build"](made, target=target)
            build_data["force_include"][str(made)] = f"model/kernels/{output.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{target or _this_platform()}"


def _target() -> str | None:
    return os.environ.get(TARGET_VARIABLE) or None


def _this_platform() -> str:
    # A Python for two architectures is one machine's all the same, and so is the library.
    name = sysconfig.get_platform().replace("universal2", platform.machine())
    return name.replace("-", "_").replace(".", "_")
