"""Measure the time from an empty folder to the first answer, the packages installed, and sizes.

    python -m benchmarks.installation [--only serve wheel-uv wheel-pip test start memory compile image]

`serve`: `make serve` in a fresh clone. `wheel-uv` and `wheel-pip`: the commit's wheels, which are built first, in an
empty virtual environment, without a compiler on PATH. `test`: `make test` in a fresh clone. The package caches are
used: a second run finds them warm. Only a temporary folder is changed.

In this environment, with the default model: `start` is the time of a start divided by that of
`python -c 'import torch'`, measured in turn. `memory` is the proportional memory of all processes of an idle server.
`compile` is the CPU time to compile the kernels of this CPU's highest level. `image` is the compressed size of the
image that BUILD_IMAGE builds (see the Makefile); it needs buildah and is skipped without BUILD_IMAGE.
"""

import argparse
import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import install
from tests.support.processes import ROOT, free_port, serve

LIMIT = 3600
"""Seconds after which a row has failed."""
QUESTION = {"prompt": "The capital of France is", "max_tokens": 4}
COUNT = "import importlib.metadata as m; print(len({each.metadata['Name'].lower() for each in m.distributions()}))"


@dataclass(frozen=True)
class Figures:
    seconds: float
    distributions: int
    gigabytes: float
    """Size of the virtual environment on the disk."""


def figures_of(seconds: float, environment: Path) -> Figures:
    python = environment / "bin" / "python"
    counted = subprocess.run([python, "-c", COUNT], cwd="/", capture_output=True, text=True, check=True).stdout
    blocks = (os.lstat(Path(place, name)).st_blocks for place, _, names in os.walk(environment) for name in names)
    return Figures(seconds, int(counted), 512 * sum(blocks) / 1e9)


def seconds_to_answer(
    command: Sequence[str | Path], port: int, folder: Path, variables: Mapping[str, str], since: float
) -> float:
    """Start a server, wait for its first answer and end it; return the seconds from `since` to the answer."""
    with subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True) as server:
        try:
            while not is_answering(port):
                if server.poll() is not None or time.monotonic() - since > LIMIT:
                    raise RuntimeError(f"{command[0]} ended with {server.returncode}, or gave no answer in {LIMIT} s")
                time.sleep(0.05)
            return time.monotonic() - since
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def is_answering(port: int) -> bool:
    url, headers = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, json.dumps(QUESTION).encode(), headers)
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return bool(json.load(answer)["choices"])
    except OSError:  # the server does not listen yet, or no worker is ready (503)
        return False


def clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "clone"], check=True)
    return folder / "clone"


def plain_environment() -> dict[str, str]:
    """Return this environment without the virtual environment of this process and settings of make."""
    left_out = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "EXTRAS")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def measure_serve(folder: Path) -> Figures:
    """`make serve` in a fresh clone."""
    checkout, port, began = clone(folder), free_port(), time.monotonic()
    command = ["make", "serve", f"PORT={port}"]
    return figures_of(seconds_to_answer(command, port, checkout, plain_environment(), began), checkout / ".venv")


def measure_test(folder: Path) -> Figures:
    """`make test` in a fresh clone."""
    checkout, began = clone(folder), time.monotonic()
    subprocess.run(["make", "test"], cwd=checkout, env=plain_environment(), check=True)
    return figures_of(time.monotonic() - began, checkout / ".venv")


@functools.cache
def wheels() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with the wheels of a clone. Every row installs the same ones."""
    built = tempfile.TemporaryDirectory()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built.name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*build, ".", "./clients/python", install.MODEL], cwd=clone(Path(folder)), check=True)
    return built


def measure_wheel(folder: Path, *, with_uv: bool) -> Figures:
    """The wheels in an empty virtual environment without a compiler, installed by uv or pip."""
    files, environment, settings = [*Path(wheels().name).iterdir()], folder / "venv", install.pip_settings()
    index = install.torch_index(install.CPU_INDEX, settings)
    python, variables = environment / "bin" / "python", plain_environment() | {"PATH": str(environment / "bin")}
    uv = shutil.which("uv") or Path(sys.executable).with_name("uv")
    began = time.monotonic()
    if with_uv:
        more = [index] if index else []
        settings["extra-index-url"] = [*more, *settings.get("extra-index-url", [])]
        variables = install.uv_environment(settings) | variables
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        command = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        command = [python, "-m", "pip", "install", "--quiet", *(["--extra-index-url", index] if index else [])]
    subprocess.run([*command, "--constraint", install.LOCK, *files], env=variables, check=True)
    port = free_port()
    command = [environment / "bin" / "lightwell", "serve", "--port", str(port)]
    return figures_of(seconds_to_answer(command, port, folder, variables, began), environment)


def start_ratio(folder: Path, rounds: int = 7) -> float:
    """Return the median time from the command to the first answer, in times that importing torch takes."""
    ratios = []
    for _ in range(rounds):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], cwd=folder, check=True)
        import_time, port, began = time.monotonic() - began, free_port(), time.monotonic()
        command = [Path(sys.executable).with_name("lightwell"), "serve", "--port", str(port)]
        ratios.append(seconds_to_answer(command, port, folder, plain_environment(), began) / import_time)
    return statistics.median(ratios)


def idle_megabytes(folder: Path) -> float:
    with serve(["smollm2"]) as server:
        time.sleep(10)  # the worker reads the vocabulary and releases library pages after its start
        return sum(server.resident_bytes().values()) / 1e6


def compile_seconds(folder: Path) -> float:
    before = os.times()
    command = [sys.executable, "model/kernels/build.py", "--output", folder / "kernels.so"]
    subprocess.run(command, cwd=ROOT, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def image_megabytes(folder: Path) -> float:
    tag = "lightwell-size"
    subprocess.run([os.environ["BUILD_IMAGE"], tag], cwd=clone(folder), check=True)
    subprocess.run(["buildah", "push", "--quiet", f"localhost/{tag}", f"dir:{folder / 'layers'}"], check=True)
    subprocess.run(["buildah", "rmi", f"localhost/{tag}"], check=True)
    return sum(file.stat().st_size for file in (folder / "layers").iterdir()) / 1e6


ROWS: dict[str, tuple[Callable[[Path], Figures], int]] = {
    "serve": (measure_serve, 90),
    "wheel-uv": (lambda folder: measure_wheel(folder, with_uv=True), 30),
    "wheel-pip": (lambda folder: measure_wheel(folder, with_uv=False), 90),
    "test": (measure_test, 900),
}
"""The measure of each row, and its limit in seconds on two idle cores with warm package caches."""


SINGLE: dict[str, tuple[Callable[[Path], float], float, str]] = {
    "start": (start_ratio, 1.4, "times the import of torch"),
    "memory": (idle_megabytes, 650, "MB"),
    "compile": (compile_seconds, 90, "CPU seconds"),
    "image": (image_megabytes, 600, "MB"),
}
"""The other figures, with their limits and units."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name in (*ROWS, *SINGLE) if name != "image" or "BUILD_IMAGE" in os.environ]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    wanted = parser.parse_args().only
    if rows := [name for name in wanted if name in ROWS]:
        print("| row | seconds | target | distributions | GB |\n|---|---|---|---|---|", flush=True)
    for name in rows:
        measure, target = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder))
        print(
            f"| {name} | {found.seconds:.0f} | {target} | {found.distributions} | {found.gigabytes:.2f} |", flush=True
        )
    if figures := [name for name in wanted if name in SINGLE]:
        print("\n| figure | value | target |\n|---|---|---|", flush=True)
    for name in figures:
        of, limit, unit = SINGLE[name]
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {of(Path(folder)):.2f} {unit} | {limit:g} |", flush=True)


if __name__ == "__main__":
    main()
