"""A temporary folder with what the checks share: the committed source, environments, what was built of it.

Each is made when a check first asks for it, so that one check alone makes only what it needs. It judges nothing.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from deploy.release.versions import ROOT, CheckFailed, version
from model.kernels.build import TARGETS

KERNEL_TARGET = "LIGHTWELL_KERNEL_TARGET"
HERE = next((target for target in TARGETS if target.endswith(f"linux_2_17_{os.uname().machine}")), "")
"""The target that this machine can run, if it is one that wheels are made for."""
NEWEST = ("numpy", "transformers", "pydantic")
"""What users have in its newest release beside the server and the client."""


class Skipped(Exception):
    """A check could not be made; the message says what it lacks."""


def run(
    command: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str] | None = None, seconds: float = 1800
) -> str:
    """Run a command and return what it printed. Raises CheckFailed, with the end of that, if its status is not 0."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=clean_environment(environment), timeout=seconds, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        raise CheckFailed(f"{' '.join(words)[:300]} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def clean_environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's variables without those that would bring our source tree, or settings, along."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LIGHTWELL_"))}
    return {**kept, **(added or {})}


def export(commit: str, folder: Path) -> Path:
    """Write a commit's files into a new folder, and return it: what is not committed does not come along."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--directory", folder], input=archive, check=True)
    return folder


class Workplace:
    """What the checks share, in one folder."""

    def __init__(self, folder: Path, build_image: str | None) -> None:
        self.folder = folder
        self.build_image = build_image

    @cached_property
    def source(self) -> Path:
        """The last commit's files."""
        return export("HEAD", self.folder / "source")

    @cached_property
    def empty(self) -> Path:
        """A folder with nothing in it, for commands that must find no files of ours."""
        (self.folder / "empty").mkdir()
        return self.folder / "empty"

    def environment(self, name: str) -> Path:
        """Make a virtual environment; return its Python."""
        run([sys.executable, "-m", "venv", self.folder / name], folder=self.folder)
        return self.folder / name / "bin" / "python"

    def pip(self, python: Path, *arguments: str | Path) -> str:
        """Run pip in an environment; return what it printed."""
        return run([python, "-m", "pip", *arguments], folder=self.empty)

    @cached_property
    def tools(self) -> Path:
        """The Python of an environment with what builds and checks packages."""
        python = self.environment("tools")
        self.pip(python, "install", "--quiet", "build", "twine", "hatchling>=1.25")
        return python

    @cached_property
    def can_cross_compile(self) -> bool:
        """Whether PyPI's ziglang, which compiles for other machines, could be installed beside the tools."""
        try:
            self.pip(self.tools, "install", "--quiet", "ziglang>=0.15,<1")
        except CheckFailed:
            return False
        return True

    def _build(self, source: Path, kind: str, target: str = "") -> Path:
        """Build "sdist" or "wheel" from a source folder, or a wheel from an sdist; return the new file."""
        into = self.folder / "dist"
        into.mkdir(exist_ok=True)
        before = set(into.iterdir())
        command: list[str | Path] = [self.tools, "-m", "build", "--sdist", "--outdir", into, "--no-isolation", source]
        if kind == "wheel":
            command = [self.tools, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", into, source]
        run(command, folder=self.empty, environment={KERNEL_TARGET: target} if target else None)
        (made,) = set(into.iterdir()) - before
        return made

    @cached_property
    def server_sdist(self) -> Path:
        """The server's sdist, built from the last commit."""
        return self._build(self.source, "sdist")

    @cached_property
    def server_wheel(self) -> Path:
        """The server's wheel for this machine, built from its sdist."""
        return self._build(self.server_sdist, "wheel", HERE if self.can_cross_compile else "")

    @cached_property
    def other_wheels(self) -> list[Path]:
        """The server's wheels for other machines, built from its sdist."""
        others = [target for target in TARGETS if target != HERE and self.can_cross_compile]
        return [self._build(self.server_sdist, "wheel", target) for target in others]

    @cached_property
    def client_sdist(self) -> Path:
        """The client's sdist."""
        return self._build(self.source / "clients" / "python", "sdist")

    @cached_property
    def client_wheel(self) -> Path:
        """The client's wheel, built from its sdist."""
        return self._build(self.client_sdist, "wheel")

    @cached_property
    def server(self) -> Path:
        """The Python of an environment with the server's wheel, and the newest releases beside it."""
        python = self.environment("server")
        self.pip(python, "install", "--quiet", self.server_wheel, "--upgrade", *NEWEST)
        return python

    @cached_property
    def client(self) -> Path:
        """The Python of an environment with the client's wheel, and the newest releases beside it."""
        python = self.environment("client")
        self.pip(python, "install", "--quiet", self.client_wheel, "--upgrade", *NEWEST)
        return python

    def replace(self, python: Path, file: Path) -> None:
        """Put another build of a distribution in the place of the one that an environment has."""
        self.pip(python, "install", "--quiet", "--no-deps", "--force-reinstall", file)

    @property
    def files(self) -> list[Path]:
        """All that would be uploaded."""
        return [self.server_sdist, self.server_wheel, *self.other_wheels, self.client_sdist, self.client_wheel]

    @property
    def version(self) -> str:
        """The version that is to be released."""
        return version()
