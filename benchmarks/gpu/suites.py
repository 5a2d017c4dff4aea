"""Run the tests that need a card, each suite in a separate process, if pytest is installed."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.report import Results

ROOT = Path(__file__).resolve().parents[2]
KERNEL_TESTS = (ROOT / "tests" / "model" / "kernels" / "cuda",)
_PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_PROCESSES = 8
"""Most processes of a suite: each takes half a gigabyte of the card."""
_WRONG_ACCESS = 99
"""The exit status of compute-sanitizer (its --error-exitcode) if it finds an error."""


def marked_tests() -> list[Path]:
    """Return the files with tests marked gpu: others import packages that a machine with a card may lack."""
    return sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())


def run_tests(results: Results, key: str, paths: Sequence[Path], options: Sequence[str], limit: float) -> None:
    """Run the tests of some files and store the outcome in `results`; limit: seconds."""
    _put(results, key, [sys.executable, *_pytest(paths, options)], limit)


def run_memcheck(results: Results, paths: Sequence[Path], options: Sequence[str], limit: float) -> None:
    """Run tests of kernels under compute-sanitizer's memcheck; limit: seconds."""
    program = shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", ""), *_PLACES)))
    if program is None:
        results.put("memcheck", None, "this machine has no compute-sanitizer")
        return
    checked = [program, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", str(_WRONG_ACCESS)]
    _put(results, "memcheck", [*checked, sys.executable, *_pytest(paths, options)], limit, stops_are_errors=False)


def _pytest(paths: Sequence[Path], options: Sequence[str]) -> list[str]:
    """Return pytest's arguments without our settings, which need plugins that are not required here."""
    own = ["-q", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist") is not None:  # most of the time kernels are compiled, by one core each
        own += ["--numprocesses", str(min(_PROCESSES, os.cpu_count() or 1))]
    return ["-m", "pytest", *own, *options, *map(str, paths)]


def _put(results: Results, key: str, command: Sequence[str], limit: float, *, stops_are_errors: bool = True) -> None:
    if importlib.util.find_spec("pytest") is None:
        results.put(key, None, "pytest is not installed")
        return
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if key == "memcheck":  # torch then allocates each tensor through the driver, so that memcheck can check its bounds
        environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with tempfile.TemporaryFile("w+") as output:
        try:
            status = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=limit, check=False, cwd=ROOT, env=environ
            ).returncode
        except subprocess.TimeoutExpired:
            results.put(key, 0.0 if stops_are_errors else None, f"not done in {limit:.0f} s")
            return
        output.seek(0)
        text = output.read().strip()
    if status != 0:
        print(text[-20_000:], flush=True)
    ends = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error|deselected).*?)(?: =+)?$", text, re.MULTILINE)
    faults = re.findall(r"ERROR SUMMARY: .*", text)
    said = [*ends[-1:], *faults[-1:]] or text.splitlines()[-1:]
    results.put(key, float(status == 0), "; ".join(said))
